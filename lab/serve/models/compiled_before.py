"""What numba compiled, kept on disk for the next process: a served model loads in one second instead of 25.

numba's own cache goes by a source file's place and time. Triton gets copies of these modules, one a model, and a
module's compiled code contains that of the modules it calls; so here it goes by the content of all of them. And what is
kept names modules, which Triton imports from a package of another name: so it names those of ALIAS, under which every
process finds its own.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from numba.core import environment
from numba.core.caching import CompileResultCacheImpl, FunctionCache, _CacheLocator

SOURCES = (
    "attention.py",
    "formats.py",
    "forward.py",
    "kernels.py",
    "low_rank.py",
    "pieces.py",
    "tiles.py",
    "vector_code.py",
)
ALIAS = "kept_by_content"
"""A package that is nowhere but in the names of what is kept."""


def folder() -> Path:
    """NUMBA_CACHE_DIR where it is set, as it is in Triton. The lab's own processes find the same place, which
    lab/serve/installation.py names, by themselves: below LAB_HOME, or `.lab` beside the package."""
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(given)
    home = Path(os.environ.get("LAB_HOME") or Path(__file__).parents[3] / ".lab").expanduser().absolute()
    return home / "triton" / "compiled"


class _ByContent(_CacheLocator):
    def __init__(self) -> None:
        self._folder = str(folder())

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return self.get_disambiguator()

    def get_disambiguator(self) -> str:
        content = b"".join((Path(__file__).parent / name).read_bytes() for name in SOURCES)
        return hashlib.sha256(content).hexdigest()[:16]

    @classmethod
    def from_function(cls, function: Any, file: str) -> _ByContent:
        return cls()


class _Environment:
    """What is kept of a function's environment, which names the module whose globals it has."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __reduce__(self) -> Any:
        module, *rest = self._found.__reduce__()[1]
        return environment._rebuild_env, (_alias(module), *rest)


class _Content(CompileResultCacheImpl):
    _locator_classes: Any = (_ByContent,)

    def reduce(self, result: Any) -> Any:
        plain: Any = super()
        code, function, own, *rest, referenced = plain.reduce(result)
        function.modname = _alias(function.modname)
        return code, function, _Environment(own), *rest, tuple(_Environment(each) for each in referenced)


class _Cache(FunctionCache):
    _impl_class = _Content


def _alias(module: str) -> str:
    """The name of one of SOURCES that is the same in every process; any other module's own."""
    package, _, name = module.rpartition(".")
    return f"{ALIAS}.{name}" if package == __package__ else module


def keep(function: Any) -> Any:
    """A decorator over @njit, for one that other processes will call with the same types."""
    for name in (source.removesuffix(".py") for source in SOURCES):
        if (own := sys.modules.get(f"{__package__}.{name}")) is not None:
            sys.modules[f"{ALIAS}.{name}"] = own
    cache: Any = _Cache
    function._cache = cache(function.py_func)
    return function
