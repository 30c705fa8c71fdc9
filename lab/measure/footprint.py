"""What processes take of memory, together: pages that several of them map are counted once. Pure.

Adding up what each process shows alone would count the libraries of a framework once a model. PSS does not, but divides
a page by everybody who maps it, strangers included, so a model looks smaller while somebody else runs torch. Here pages
are of two kinds: a process's own (anonymous), which add up, and pages of a file, which are there once however many map
them: of each file the largest part that one of the processes holds. (Two that hold different parts of one file hold
more than that; copies of one model hold the same.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Footprint:
    """`own_bytes`: anonymous pages. `files`: path → resident bytes of that file. `regions`: the same of shared memory
    (/dev/shm), which an instance shares with its server and with nobody of its kind."""

    own_bytes: int
    files: Mapping[str, int] = field(default_factory=dict)
    regions: Mapping[str, int] = field(default_factory=dict)

    @property
    def alone_bytes(self) -> int:
        """What it takes when nothing else runs."""
        return together([self])


def together(footprints: Iterable[Footprint]) -> int:
    """Bytes of all of them, living at the same time."""
    footprints = list(footprints)
    mapped: dict[str, int] = {}
    for footprint in footprints:
        for path, held in [*footprint.files.items(), *footprint.regions.items()]:
            mapped[path] = max(held, mapped.get(path, 0))
    return sum(footprint.own_bytes for footprint in footprints) + sum(mapped.values())


def copies(one: Footprint, count: int) -> list[Footprint]:
    """What `count` more of it would show: the same files, regions of their own."""
    own = one.own_bytes + sum(one.regions.values())
    return [Footprint(own, one.files)] * count


def merged(parts: Iterable[Footprint]) -> Footprint:
    """The instances of one model as one footprint."""
    parts = list(parts)
    files: dict[str, int] = {}
    regions: dict[str, int] = {}
    for part in parts:
        for path, held in part.files.items():
            files[path] = max(held, files.get(path, 0))
        for path, held in part.regions.items():
            regions[path] = max(held, regions.get(path, 0))
    return Footprint(sum(part.own_bytes for part in parts), files, regions)
