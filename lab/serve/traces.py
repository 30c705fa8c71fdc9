"""Triton's traces of one model for a while: switched on, switched off, and the files taken away.

Where Triton writes them is told at its start (lab/serve/launch.py); the level can be changed while it runs. What is
still held back when it is switched off is written once the server has let go of the last request, which is a moment
after its answer left: so the files are taken when they are whole and have stopped growing, and whatever an earlier
while left behind is thrown away before the next one begins. Only on a server that the lab started.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tritonclient.utils import InferenceServerException

from lab.errors import ServerError

if TYPE_CHECKING:
    from lab.serve.triton import Server

POLL_S = 0.02
STILL = 3
"""Looks in a row that find the files whole and as they were."""
WRITE_LIMIT_S = 5.0


def prefix(log: Path) -> Path:
    """Triton adds .0, .1, … to it."""
    return log.with_suffix(".trace")


def files(log: Path) -> list[Path]:
    found = prefix(log).parent.glob(f"{prefix(log).name}.*")
    return sorted((path for path in found if path.suffix[1:].isdecimal()), key=lambda path: int(path.suffix[1:]))


def written(log: Path) -> bool:
    """Wait until the files are whole and nothing has been added for a moment; False when that does not come in time."""
    deadline = time.monotonic() + WRITE_LIMIT_S
    before: list[tuple[str, int]] | None = None
    still = 0
    while still < STILL:
        if time.monotonic() > deadline:
            return False
        now = [(path.name, path.stat().st_size) for path in files(log)]
        still = still + 1 if now == before and all(_whole(path) for path in files(log)) else 0
        before = now
        time.sleep(POLL_S)
    return True


def _whole(path: Path) -> bool:
    """A file of Triton's is a JSON list: whole once its bracket is closed."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - 8, 0))
        return file.read().rstrip().endswith(b"]")


class Traces:
    """Of `model` on `server`, from `begin` to `end`."""

    def __init__(self, server: Server, model: str) -> None:
        assert server.managed is not None  # noqa: S101  the caller has looked
        self._client, self._model, self._log = server.client, model, Path(server.managed.log)

    def begin(self) -> None:
        """ServerError when the server does not trace."""
        for path in files(self._log):
            path.unlink(missing_ok=True)
        self._level("TIMESTAMPS")

    def end(self, folder: Path) -> bool:
        """Stop, and move what was written into `folder`. False when the server had not written all of it in time, or
        died meanwhile: then the files are what there is."""
        stopped = True
        try:
            self._level("OFF")
        except ServerError:
            stopped = False
        whole = stopped and written(self._log)
        for path in files(self._log):
            folder.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):
                shutil.move(path, folder / path.name)
        return whole

    def _level(self, level: str) -> None:
        try:
            self._client.update_trace_settings(model_name=self._model, settings={"trace_level": [level]})
        except InferenceServerException as error:
            raise ServerError(f"model {self._model} cannot be traced: {error.message() or error}") from None
