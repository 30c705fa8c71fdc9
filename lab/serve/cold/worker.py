"""The process: it loads one model, tells when each stage began and ended, and answers requests over HTTP.

    python -m lab.serve.cold.worker JOB       JOB is JSON, see task.Task

On the Unix socket that the job names it writes a JSON line for each stage, then {"ready": port} or {"failed": why}. It
ends when the other end of that socket is gone. All stamps are time.perf_counter_ns, on Linux CLOCK_MONOTONIC, which
all processes share. The stage "process" ends once this code runs and has its owner's ear.
"""

# ruff: noqa: E402  the first stamp comes before all other imports

import time

BEGAN_NS = time.perf_counter_ns()

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OUT_OF_MEMORY = ("allocate memory", "not enough memory", "MemoryError", "bad_alloc")
"""In the words of torch and of C++."""


class Owner:
    """The connection to whoever started this process."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)

    def tell(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began_ns = time.perf_counter_ns()
        yield
        self.tell(stage=name, begin_ns=began_ns, end_ns=time.perf_counter_ns())

    def wait_for_end(self) -> None:
        while self._socket.recv(4096):
            pass


def serve(job: dict[str, Any], began_ns: int) -> None:
    """Everything from the process's first moment to its last. Never returns."""
    owner = Owner(job["report"])
    threading.Thread(target=_end_with, args=(owner,), daemon=True).start()
    owner.tell(
        stage="process", begin_ns=job["asked_ns"], end_ns=time.perf_counter_ns(), pid=os.getpid(), ran_ns=began_ns
    )
    try:
        os.environ.update(job["environment"])
        with owner.stage("import_model"):
            from lab.serve.cold import http, models

        model = models.load(job, owner.stage)
        with owner.stage("runtime"):
            server = http.Server(job["name"], model)
        with owner.stage("warm_up"):
            model.warm_up()
    except (Exception, SystemExit) as error:  # noqa: BLE001  the boundary: whatever it was, the owner is told in one line
        words = " ".join(f"{type(error).__name__}: {error}".split())
        kind = "memory" if any(sign in words for sign in OUT_OF_MEMORY) else "error"
        owner.tell(failed=words[:500], kind=kind)
        os._exit(1)
    owner.tell(ready=server.port, ready_ns=time.perf_counter_ns())
    server.run()


def _end_with(owner: Owner) -> None:
    owner.wait_for_end()
    os._exit(0)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), BEGAN_NS)
