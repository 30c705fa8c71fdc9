"""Makes a served model's adapters be those that multi_lora.json names, {name: folder}, as Triton's vLLM backend has it:
once when it is loaded, and again whenever a request says so.

That request's sampling_parameters are {"update_loras": true}; no path comes with it, so who may only ask cannot have
files read. It is answered when all is done: reading takes tenths of a second, unloading until the adapter's last answer
is sent, and a thread of its own does both, so that no other request waits.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .adapters import Adapters

UPDATE = "update_loras"
DRAIN_LIMIT_S = 60.0

Tell = Callable[[str | None, str | None], None]
"""(what was done, as JSON; or why not all of it)"""


class AdapterDesk:
    def __init__(self, adapters: Adapters, place: Path) -> None:
        """`place`: multi_lora.json, which need not be there. ValueError when one of its adapters cannot be served."""
        self._adapters, self._place = adapters, place
        for name, folder in _named(place).items():
            adapters.load(name, folder)
        self._orders: queue.SimpleQueue[Tell | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
        self._thread.start()

    @staticmethod
    def is_order(parameters: Mapping[str, Any]) -> bool:
        """Whether a request's parameters ask for an update. ValueError when they ask for more than that."""
        if UPDATE not in parameters:
            return False
        if dict(parameters) != {UPDATE: True}:
            raise ValueError(f'{UPDATE} with other parameters, or not true; allowed: {{"{UPDATE}": true}} alone')
        return True

    def order(self, tell: Tell) -> None:
        """An update; `tell` is called from the desk's thread."""
        self._orders.put(tell)

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (tell := self._orders.get()) is not None:
            try:
                tell(json.dumps(self._update()), None)
            except Exception as error:  # noqa: BLE001  the boundary: one wrong folder must not end the desk
                tell(None, " ".join(str(error).split()) or type(error).__name__)

    def _update(self) -> dict[str, Any]:
        """Unloads first, so that there is place. ValueError naming every adapter that was refused; the others are
        done."""
        wanted, there = _named(self._place), self._adapters.folders
        leaving = {name: self._adapters.unload(name) for name in there if wanted.get(name) != there[name]}
        loaded, load_s, refused = {}, {}, []
        for name, gone in leaving.items():
            if not gone.wait(DRAIN_LIMIT_S):
                refused.append(f"{name} takes no new request and still writes answers after {DRAIN_LIMIT_S:g} s")
        for name, folder in wanted.items():
            if there.get(name) != folder:
                began = time.perf_counter()
                try:
                    loaded[name] = self._adapters.load(name, folder)
                except ValueError as error:
                    refused.append(f"{name}: {error}")
                load_s[name] = time.perf_counter() - began
        if refused:
            raise ValueError("; ".join(refused))
        return {"loaded": loaded, "load_s": load_s, "unloaded": sorted(set(leaving) - set(wanted))}


def _named(place: Path) -> dict[str, Path]:
    if not place.is_file():
        return {}
    try:
        found = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{place}: cannot be read: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(folder, str) for folder in found.values()):
        raise ValueError(f"{place}: allowed is an object of folders by name")
    return {name: Path(folder) for name, folder in found.items()}
