"""The adapters that an engine serves, by name; and an adapter in torch, as the decoder to read applies it.

A request holds its adapter from the moment that it is asked until it has ended. So what is unloaded takes no new
requests at once, and its memory goes when the last of its requests does: nobody's answer changes under way.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .adapter_folder import PARTS, Adapter, read, shapes
from .llama_config import LlamaConfig

NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")


class PlainAdapter:
    """An adapter for Decoder, in its `dtype` on its `device`."""

    low = 1

    def __init__(self, adapter: Adapter, config: LlamaConfig, dtype: torch.dtype, device: str) -> None:
        self.bytes = adapter.elements * torch.empty((), dtype=dtype).element_size()
        self._parts: dict[tuple[int, int], list[tuple[int, Tensor, Tensor]]] = {}
        rows = {name: out for name, (out, _) in shapes(config).items()}
        for (layer, name), change in adapter.changes.items():
            part = next(number for number, names in enumerate(PARTS) if name in names)
            first = sum(rows[other] for other in PARTS[part][: PARTS[part].index(name)])
            a, b = (torch.from_numpy(half.copy()) for half in (change.scale * change.a, change.b))
            self._parts.setdefault((layer, part), []).append((first, a.to(device, dtype), b.to(device, dtype)))

    def change(self, layer: int, part: int, rows: Tensor, x: Tensor, out: Tensor) -> None:
        """out[rows] += scale × B A x[rows]: x [n, in] and out [n, …] of the `part` of PARTS in a layer."""
        for first, a, b in self._parts.get((layer, part), ()):
            columns = slice(first, first + len(b))
            out[rows, columns] += (x[rows] @ a.T) @ b.T


class Company:
    """The adapters of a batch's rows, for Decoder."""

    def __init__(self, adapters: Sequence[PlainAdapter | None], device: str) -> None:
        by_adapter: dict[PlainAdapter, list[int]] = {}
        for row, adapter in enumerate(adapters):
            if adapter is not None:
                by_adapter.setdefault(adapter, []).append(row)
        self._rows = [(adapter, torch.tensor(rows, device=device)) for adapter, rows in by_adapter.items()]

    def change(self, layer: int, part: int, x: Tensor, out: Tensor) -> Tensor:
        for adapter, rows in self._rows:
            adapter.change(layer, part, rows, x, out)
        return out


class Adapters:
    """Any thread may call; `make` makes a decoder's own kind of one."""

    def __init__(self, config: LlamaConfig, make: Callable[[Adapter], Any], most: int | None = None) -> None:
        self._config, self._make, self._most = config, make, most
        self._there: dict[str, Any] = {}
        self._folders: dict[str, Path] = {}
        self._changing, self._reading = threading.Lock(), threading.Lock()

    def load(self, name: str, folder: Path) -> int:
        """Its bytes, once it may be asked; in place of an earlier one of that name, whose requests end with it.
        ValueError in one line when it does not fit this base or is broken, or there is no place for it."""
        if not NAME.fullmatch(name):
            raise ValueError(
                f"adapter name {name!r}; allowed: up to 64 letters, digits and _.-, a letter or digit first"
            )
        with self._changing:
            if self._most is not None and name not in self._there and len(self._there) >= self._most:
                raise ValueError(f"adapter {name} would be number {len(self._there) + 1}; allowed: {self._most}")
            made = self._make(read(folder, self._config))
            with self._reading:
                self._there[name], self._folders[name] = made, folder
            return int(made.bytes)

    def unload(self, name: str) -> threading.Event:
        """No new request may ask it; the event is set when its last one has ended and its memory is free. ValueError
        when there is none of that name."""
        gone = threading.Event()
        with self._changing, self._reading:
            if name not in self._there:
                raise ValueError(f"adapter {name!r} is not loaded; allowed: {self._names()}")
            weakref.finalize(self._there[name], gone.set).atexit = False
            del self._there[name], self._folders[name]
        return gone

    def get(self, name: object) -> Any:
        """The one that a request asks for. ValueError when it is not loaded."""
        with self._reading:
            if not isinstance(name, str) or name not in self._there:
                raise ValueError(f"lora_name {name!r}: no such adapter is loaded; allowed: {self._names()}")
            return self._there[name]

    @property
    def folders(self) -> dict[str, Path]:
        with self._reading:
            return dict(self._folders)

    @property
    def bytes(self) -> int:
        """Of all that requests may ask for."""
        with self._reading:
            return sum(adapter.bytes for adapter in self._there.values())

    def __len__(self) -> int:
        return len(self._there)

    def _names(self) -> str:
        return ", ".join(sorted(self._there)) or "none, for the base alone serves"
