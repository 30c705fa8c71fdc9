"""Triton's traces of one model for a while: switched on, switched off, and the files taken away.

Where Triton writes them is told at its start (lab/serve/launch.py); the level can be changed while it runs, and
switching it off writes out what is still held back. Only on a server that the lab started.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tritonclient.utils import InferenceServerException

from lab.errors import ServerError

if TYPE_CHECKING:
    from lab.serve.triton import Server


def prefix(log: Path) -> Path:
    """Triton adds .0, .1, … to it."""
    return log.with_suffix(".trace")


def files(log: Path) -> list[Path]:
    found = prefix(log).parent.glob(f"{prefix(log).name}.*")
    return sorted((path for path in found if path.suffix[1:].isdecimal()), key=lambda path: int(path.suffix[1:]))


class Traces:
    """Of `model` on `server`, from `begin` to `end`."""

    def __init__(self, server: Server, model: str) -> None:
        assert server.managed is not None  # noqa: S101  the caller has looked
        self._client, self._model, self._log = server.client, model, Path(server.managed.log)

    def begin(self) -> None:
        """ServerError when the server does not trace."""
        self._level("TIMESTAMPS")

    def end(self, folder: Path) -> None:
        """Stop, and move what was written into `folder`. A server that died meanwhile has written what it had."""
        with suppress(ServerError):
            self._level("OFF")
        for path in files(self._log):
            folder.mkdir(exist_ok=True)
            shutil.move(path, folder / path.name)

    def _level(self, level: str) -> None:
        try:
            self._client.update_trace_settings(model_name=self._model, settings={"trace_level": [level]})
        except InferenceServerException as error:
            raise ServerError(f"model {self._model} cannot be traced: {error.message() or error}") from None
