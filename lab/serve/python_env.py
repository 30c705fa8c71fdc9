"""The Python environment that served models run in: the lab's own packages with numpy 1.26 laid over them.

Triton 2.51's Python stub was built against numpy 1. With numpy 2 it reads the wrong field of numpy's type descriptor:
inputs arrive with every stride 0 (all elements equal the first), outputs leave with no bytes, texts crash it. Nothing
says so. The lab itself, its charts and its statistics, need numpy 2, so models get an environment apart: a venv
without packages, whose path file names first the unpacked numpy 1.26 and then the lab's own packages.

Python 3.12 is the newest that numpy 1.26 has wheels for.
"""

from __future__ import annotations

import shutil
import sys
import venv
from pathlib import Path

from lab import atomic, home

_NUMPY = "1.26.4"
_PLATFORM = "manylinux_2_17_x86_64.manylinux2014_x86_64"
NUMPY = {
    version: home.Package("numpy", _NUMPY, f"numpy-{_NUMPY}-{tag}-{tag}-{_PLATFORM}.whl", sha256)
    for version, tag, sha256 in (
        ((3, 11), "cp311", "666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5"),
        ((3, 12), "cp312", "675d61ffbfa78604709862923189bad94014bef562cc35cf61d3a07bba02a7ed"),
    )
}
"""By version of Python."""


def folder() -> Path:
    # Resolved, because the environment writes its own place down and LAB_HOME may be reached through a link.
    return (home.home() / "triton" / f"python-{sys.version_info.major}.{sys.version_info.minor}").resolve()


def is_ready() -> bool:
    return _path_file().is_file() and _path_file().read_text() == _paths() and _python().exists()


def prepare(progress: home.Progress | None = None) -> Path:
    """The environment's bin folder, made when it is missing or belongs to another installation of the lab."""
    home.fetch(NUMPY[sys.version_info[:2]], _numpy(), progress)
    if not is_ready():
        with home.locked(home.home() / "downloads" / "python.lock"):
            if is_ready():  # made by whoever held the lock
                return _python().parent
            shutil.rmtree(folder(), ignore_errors=True)
            venv.EnvBuilder(symlinks=True, with_pip=False).create(folder())
            atomic.write(_path_file(), _paths())
    return _python().parent


def _numpy() -> Path:
    return home.home() / "triton" / f"numpy-{_NUMPY}-{sys.version_info.major}.{sys.version_info.minor}"


def _python() -> Path:
    return folder() / "bin" / "python3"


def _path_file() -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder() / "lib" / version / "site-packages" / "lab.pth"


def _paths() -> str:
    """Lines of a .pth file: they are appended to sys.path in this order, so numpy 1.26 is found before the lab's."""
    own = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return "".join(f"{path}\n" for path in [str(_numpy().resolve()), *own])
