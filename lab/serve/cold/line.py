"""The connection between a worker and its owner: a Unix socket that carries JSON lines, and whose end tells of an end.

Whichever process is gone, however it went, the kernel closes its side: a worker ends with its owner, and an owner
hears of a worker's end at once.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab import stopping
from lab.errors import ModelError

POLL_S = 0.02


class Failed(ModelError):
    """A worker that did not come up. `kind`: "memory" where its limit was the reason, else "error"."""

    def __init__(self, message: str, kind: str = "error") -> None:
        super().__init__(message)
        self.kind = kind


class Listener:
    """A Unix socket that one worker connects to."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(address)
        self._socket.listen(1)

    def accept(self, deadline: float, process: subprocess.Popen[bytes]) -> Line:
        """Failed when the process ends, or the time is over, before anybody came."""
        while not select.select([self._socket], [], [], POLL_S)[0]:
            stopping.check()
            if (status := process.poll()) is not None:
                raise Failed(f"the process did not come up: it ended ({ending(status)})")
            if time.monotonic() > deadline:
                raise Failed("the process did not come up: it took too long")
        return Line(self._socket.accept()[0])

    def accept_waiting(self) -> Line | None:
        """Whoever has connected already."""
        return Line(self._socket.accept()[0]) if select.select([self._socket], [], [], POLL_S)[0] else None

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        Path(self.address).unlink(missing_ok=True)


class Line:
    """The connection with a worker, or with the zygote: JSON lines, and by its end the process's."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._rest = b""

    def read(self, deadline: float) -> dict[str, Any] | None:
        """The next message; None when the process is gone or the time is over."""
        while b"\n" not in self._rest:
            stopping.check()
            if not select.select([self.socket], [], [], POLL_S)[0]:
                if time.monotonic() > deadline:
                    return None
                continue
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                return None
            if not data:
                return None
            self._rest += data
        first, self._rest = self._rest.split(b"\n", 1)
        found: dict[str, Any] = json.loads(first)
        return found

    def send(self, message: Mapping[str, Any]) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def ended(self) -> bool:
        try:
            return self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def hang_up(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def wait_for_end(self, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not self.ended():
            if time.monotonic() > deadline:
                return False
            select.select([self.socket], [], [], POLL_S)
        return True

    def close(self) -> None:
        self.socket.close()


def ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
