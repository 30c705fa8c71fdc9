"""A load as every later one is: the first of an engine on a machine compiles, which leaves memory in that process.

Up to 200 MiB of it (lab/measure/ledger.py), and for as long as the process lives. What is compared with a model's
memory is compared with a process that found its code compiled.
"""

from __future__ import annotations

from typing import Protocol

from lab.serve.models import compiled_before
from lab.spec import ModelSpec


class Loads(Protocol):
    """What is asked of a server (lab.serve.triton.Server)."""

    def load(self, spec: ModelSpec) -> float: ...
    def unload(self, name: str) -> None: ...


def load(server: Loads, spec: ModelSpec) -> float:
    """Seconds of the load that stays: a first one that compiled is unloaded, and followed by one that did not."""
    before = _kept()
    took_s = server.load(spec)
    if _kept() <= before:
        return took_s
    server.unload(spec.name)
    return server.load(spec)


def _kept() -> set[tuple[str, int]]:
    """(name, time) of each file of compiled code that is kept."""
    place = compiled_before.folder()
    return {(path.name, path.stat().st_mtime_ns) for path in place.glob("*.nbc")} if place.is_dir() else set()
