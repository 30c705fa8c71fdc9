"""A shelf that evicts models on a GPU to host memory: their processes stay, and come back by a copy, not by a load.

Their GPU memory is moved by the driver (lab/serve/cuda_checkpoint.py). Who finds no host memory to spare, or is refused
by the driver, is unloaded as on every shelf; who is parked stays until it is asked again, or the shelf is cleared.
Triton takes a parked model for ready: the proxy fetches it for who asks there, anybody else's request waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import psutil

from lab.errors import InputError, ModelError
from lab.run.footprints import TritonShelf
from lab.serve import cuda_checkpoint, launch
from lab.serve.triton import Server
from lab.spec import ModelSpec, Store
from lab.watch import host

KEEP_FREE_FRACTION = 0.2
"""Of the machine's free memory, which is nobody's to park in."""


def spare_bytes() -> float:
    """Host memory that may be taken."""
    return float(psutil.virtual_memory().available) * (1 - KEEP_FREE_FRACTION)


class ParkingShelf(TritonShelf):
    """`models` are on GPUs, all of them. InputError where the driver can't do it."""

    def __init__(
        self, server: Server, models: Sequence[ModelSpec], *, spare_bytes: Callable[[], float] = spare_bytes
    ) -> None:
        if (why := cuda_checkpoint.unavailable()) is not None:
            raise InputError(f"eviction to host memory: {why}; allowed here: disk")
        if elsewhere := next((spec.name for spec in models if spec.device != "gpu"), None):
            raise InputError(f"eviction to host memory: {elsewhere} is on the CPU, whose memory it is; allowed: disk")
        super().__init__(server, models)
        self._spare_bytes = spare_bytes
        self._parked: dict[str, int] = {}  # bytes that each left behind on the GPU

    def load(self, name: str) -> Store:
        if name in self._parked:
            del self._parked[name]
            try:
                cuda_checkpoint.to_device(self._pids(name))
            except ModelError as error:
                self.refused[name] = str(error)
                self._end(name)
            else:
                self._loaded[name] = self.look(name) or self._expected(name)
                return "host"
        return super().load(name)

    def evict(self, name: str) -> Store:
        self.look(name)
        held = self._loaded.get(name)
        if held is None or held.own_bytes > self._spare_bytes():
            return super().evict(name)
        try:
            cuda_checkpoint.to_host(self._pids(name))
        except ModelError as error:
            self.refused[name] = str(error)
            return super().evict(name)
        left = self.measure(name)
        self._parked[name] = 0 if left is None else left.own_bytes
        del self._loaded[name]
        return "host"

    def size_bytes(self, names: Collection[str]) -> int:
        """With what parked models left on the GPU, which should be nothing."""
        return super().size_bytes(names) + sum(left for name, left in self._parked.items() if name not in names)

    def clear(self) -> None:
        while self._parked:
            self._end(self._parked.popitem()[0])

    def _end(self, name: str) -> None:
        """Unload a model that is not on its GPU. Its own way out would wait for the GPU for good, so it gets none."""
        managed = self._server.managed
        if managed is not None:
            launch.end_model(managed.prefix, name)
        self._server.unload(name)

    def _pids(self, name: str) -> list[int]:
        return host.model_processes(self.server_pid).get(name, [])
