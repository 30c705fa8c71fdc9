"""What each kind of model was seen to take, kept in LAB_HOME/footprints.json: sizes are known before the next load.

A kind is all that decides about memory: family, precision, weights, cache …, but not the name, the seed or the rate at
which it is asked. A footprint is of one instance group after it has answered, since a model grows with its first
requests. Of another version of the packages it may be wrong by a little; the next load corrects it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab import atomic, home
from lab.measure.footprint import Footprint, copies, merged, together
from lab.serve.triton import Server
from lab.spec import ModelSpec, Store, set_path
from lab.watch import host, smaps
from lab.watch.gpu import read_gpus, used_bytes

NOT_MEMORY = {"name", "seed", "stream_interval"}
MOST_KEPT = 64


def kind(spec: ModelSpec) -> str:
    """The key of the file."""
    return json.dumps(spec.model_dump(mode="json", exclude=NOT_MEMORY, exclude_defaults=True), sort_keys=True)


def known(spec: ModelSpec) -> Footprint | None:
    """What such a model was last seen to take, or so many of its instances as one of them was seen to; None when none
    was loaded here before."""
    entry = _read().get(kind(spec))
    try:
        found = None if entry is None else Footprint(int(entry["own_bytes"]), dict(entry["files"]))
    except (KeyError, TypeError, ValueError):
        return None
    if found is None and spec.instances > 1 and spec.scaling is None:
        one = known(set_path(spec, "instances", 1))
        return None if one is None else merged(copies(one, spec.instances))
    return found


def keep(spec: ModelSpec, found: Footprint) -> None:
    """Regions are counted as the instance's own: the next copy has its own."""
    place = _place()
    with home.locked(place.with_suffix(".lock")):
        entries = _read()
        entries.pop(kind(spec), None)
        own = copies(found, 1)[0]
        entries[kind(spec)] = {"own_bytes": own.own_bytes, "files": dict(own.files)}
        atomic.write(place, json.dumps(dict(list(entries.items())[-MOST_KEPT:])))


def predicted_bytes(specs: Sequence[ModelSpec]) -> int | None:
    """What these models will take together; None when one of them is of a kind never seen here."""
    found = [known(spec) for spec in specs]
    whole = [footprint for footprint in found if footprint is not None]
    return together(whole) if len(whole) == len(found) else None


def as_filled(kinds: Sequence[str], filled: Sequence[Mapping[str, Any]]) -> list[int | None]:
    """What models of these kinds take, each with all before it, by what each added in another run (`filled` of its
    document): the first of a kind brings its files along, later ones do not. None from the first kind on that was not
    loaded there. As predicted there where all was, since a run takes its budget from that, else as measured."""
    of = "planned_bytes" if all(entry.get("planned_bytes") is not None for entry in filled) else "total_bytes"
    added: dict[str, list[int]] = {}
    before = 0
    for entry in filled:
        added.setdefault(str(entry["model"]).rpartition("_")[0], []).append(int(entry[of]) - before)
        before = int(entry[of])
    found: list[int | None] = []
    seen: Counter[str] = Counter()
    total = 0
    for kind in kinds:
        if kind not in added:
            break
        total += added[kind][min(seen[kind], len(added[kind]) - 1)]
        seen[kind] += 1
        found.append(total)
    return [*found, *[None] * (len(kinds) - len(found))]


def _place() -> Path:
    return home.home() / "footprints.json"


def _read() -> dict[str, Any]:
    try:
        entries = json.loads(_place().read_text())
        return entries if isinstance(entries, dict) else {}
    except (OSError, ValueError):
        return {}


class TritonShelf:
    """A Shelf (lab/serve/shelf.py) of `models` on `server`, which measures what it loads. A model of a kind never seen
    before counts nothing until it is loaded, and what it takes from then on. Where NVML does not tell which process
    holds what, a model on a GPU counts as what all GPUs hold more after its load than before."""

    def __init__(self, server: Server, models: Sequence[ModelSpec]) -> None:
        self._server = server
        self.specs = {spec.name: spec for spec in models}
        self.refused: dict[str, str] = {}
        """Why a model that was to be kept at hand was not (parked.py)."""
        self._loaded: dict[str, Footprint] = {}
        self._known: dict[str, Footprint] = {}
        for spec in models:
            if kind(spec) not in self._known and (found := known(spec)) is not None:
                self._known[kind(spec)] = found

    def load(self, name: str) -> Store:
        before = used_bytes() if self.specs[name].device == "gpu" else None
        self._server.load(self.specs[name])
        if self.look(name) is None and before is not None:  # as in a container: NVML knows other pids there, or none
            self._found(name, Footprint(max(0, round((used_bytes() or before) - before))))
        return "disk"

    def evict(self, name: str) -> Store:
        self.unload(name)
        return "disk"

    def unload(self, name: str) -> None:
        self.look(name)  # it has answered meanwhile: this is what its kind takes
        self._server.unload(name)
        self._loaded.pop(name, None)

    def clear(self) -> None:
        """End what is kept of evicted models: nothing, here."""

    def size_bytes(self, names: Collection[str]) -> int:
        return together(self._expected(name) for name in set(names))

    @property
    def server_pid(self) -> int:
        assert self._server.pid is not None  # noqa: S101  only for the lab's own
        return self._server.pid

    def is_known(self, name: str) -> bool:
        """Whether a model of its kind has been measured."""
        return kind(self.specs[name]) in self._known

    def is_healthy(self, name: str) -> bool:
        return self._server.state(name).ready

    def look(self, name: str) -> Footprint | None:
        """Measure a loaded model, and remember it for its kind; None when its processes can't be read."""
        found = self.measure(name)
        if found is not None:
            self._found(name, found)
        return found

    def _found(self, name: str, found: Footprint) -> None:
        spec = self.specs[name]
        self._loaded[name] = found
        before = self._known.get(kind(spec))
        if before is None or found.own_bytes > before.own_bytes:
            self._known[kind(spec)] = copies(found, 1)[0]
            keep(spec, found)

    def measure(self, name: str) -> Footprint | None:
        """What the model's processes take now, remembered by nobody."""
        pids = host.model_processes(self.server_pid).get(name, [])
        if self.specs[name].device == "gpu":
            return _on_gpu(pids)
        return smaps.footprint(pids) if pids else None

    def measured_bytes(self) -> int:
        """What the loaded models take together, as last looked at."""
        return together(self._loaded.values())

    def pss_bytes(self) -> float | None:
        """The same as the kernel adds it up, a page's share divided by all who map it, strangers included."""
        serving = host.model_processes(self.server_pid)
        return host.memory("models", [pid for name in self._loaded for pid in serving.get(name, [])]).value

    def _expected(self, name: str) -> Footprint:
        seen, usual = self._loaded.get(name), self._known.get(kind(self.specs[name]))
        found = [footprint for footprint in (seen, usual) if footprint is not None]
        return max(found, key=lambda footprint: footprint.own_bytes, default=Footprint(0))


def _on_gpu(pids: Sequence[int]) -> Footprint | None:
    """Device memory by NVML; nothing is shared there. None when NVML does not tell it of single processes."""
    wanted = {f"process_memory_bytes:{pid}" for pid in pids}
    found = [reading.value for reading in read_gpus() if reading.field in wanted]
    if not found or any(value is None for value in found):
        return None
    return Footprint(round(sum(value or 0.0 for value in found)))
