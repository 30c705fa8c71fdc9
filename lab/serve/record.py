"""LAB_HOME/server.json: which Triton is the lab's, so that another process finds it and nobody signals a stranger.

Holds the first live server; one started while that lives is not recorded. Pid and start time together name a process:
a pid alone comes again.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from lab import atomic
from lab.home import home
from lab.serve.process import is_same


@dataclass(frozen=True)
class ServerRecord:
    """`started`: seconds since the epoch, as the kernel tells. `models`: names, as far as the lab loaded them."""

    pid: int
    started: float
    http_port: int
    grpc_port: int
    metrics_port: int
    repository: str
    log: str
    prefix: str
    models: tuple[str, ...] = ()

    def alive(self) -> bool:
        return is_same(self.pid, self.started)

    @property
    def run(self) -> str | None:
        """The run that started it for itself and ends it, in whose folder its log is; None for everybody's."""
        owner = Path(self.log).parent
        return owner.name if owner.parent == home() / "runs" else None


def read() -> ServerRecord | None:
    """The recorded server if it still lives; None when there is none or the file makes no sense."""
    try:
        written = json.loads(path().read_text())
        known = {field.name for field in dataclasses.fields(ServerRecord)}
        state = ServerRecord(**{key: value for key, value in written.items() if key in known})
        state = dataclasses.replace(state, models=tuple(state.models))
        return state if state.alive() else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def write(state: ServerRecord) -> bool:
    """Records `state` unless another live server is recorded; whether it did."""
    other = read()
    if other is not None and (other.pid, other.prefix) != (state.pid, state.prefix):
        return False
    atomic.write(path(), json.dumps(dataclasses.asdict(state), indent=1) + "\n")
    return True


def remove(state: ServerRecord) -> None:
    """Forgets `state` if it is the one recorded."""
    try:
        recorded = json.loads(path().read_text()).get("prefix")
    except (OSError, ValueError, AttributeError):
        return
    if recorded == state.prefix:
        path().unlink(missing_ok=True)


def path() -> Path:
    """server.json, whether or not it is there; replaced whole when it changes."""
    return home() / "server.json"
