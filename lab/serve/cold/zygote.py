"""A parent that has imported everything and waits: a worker is a fork of it, which takes milliseconds.

    python -m lab.serve.cold.zygote JOB       JOB as a worker's; its socket hears {"waiting": pid} once imports are done

Then it reads one job a line and forks for each; children serve exactly as worker.py does. It ends, and its children
too, when the socket's other end is gone. Forking is safe because this process has one thread and runs no operation that
would start more: torch is imported and computes nothing. Kernels are loaded where they are kept (`compile_cache`), by
the forking parent, so that no child does it again. The price is the parent's memory, held while nothing runs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

PR_SET_PDEATHSIG = 1


@contextmanager
def _untold(name: str) -> Iterator[None]:
    yield


def main() -> None:
    job = json.loads(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's to wait for
    os.environ.update(job["environment"])
    from lab.serve.cold import http, models, worker  # noqa: F401  for the children

    models.imports(job, _untold)
    if job["compile_cache"]:
        models.load_kernels(job)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    owner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    owner.connect(job["report"])
    owner.sendall(json.dumps({"waiting": os.getpid()}).encode() + b"\n")
    lines = owner.makefile("rb")
    for line in lines:
        if os.fork() == 0:
            began_ns = time.perf_counter_ns()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(owner.fileno())
            worker.serve(json.loads(line), began_ns)


if __name__ == "__main__":
    main()
