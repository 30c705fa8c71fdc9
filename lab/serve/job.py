"""A job for a process of its own, because it takes torch, much memory or all cores: one JSON document in, lines out.

    do("lab.serve.quantize", {…}, progress)      the owner's side: starts `python -m MODULE` and waits for its result
    serve(work)                                  the process's side: main() of MODULE

The process reads its job from stdin and answers on stdout with JSON lines: {"label", "done", "total"} for progress,
{"result": …} or {"error": one line} last. It ends at once when its stdin closes: then its owner is gone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from lab import home, stopping

Work = Callable[[dict[str, Any], home.Progress], Any]


class Failed(Exception):
    """One line. `refused`: the process said so itself; else it broke."""

    def __init__(self, message: str, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


def do(module: str, job: dict[str, Any], progress: home.Progress) -> Any:
    """The result of the job. Failed when there is none; Stopped, its process gone, when a stop is asked for."""
    told: dict[str, Any] = {}
    last = ""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  pipes were asked for
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()  # and left open, as long as somebody wants the result
            with stopping.ending(process):
                for line in process.stdout:
                    try:
                        message = json.loads(line)
                        progress(message["label"], message["done"], message["total"])
                    except ValueError:  # a library's own words
                        last = line.strip() or last
                    except KeyError:
                        told = message
        except BaseException:
            process.kill()
            raise
    if "error" in told:
        raise Failed(told["error"], refused=True)
    if "result" not in told:
        raise Failed(last or f"the process ended with status {process.returncode}", refused=False)
    return told["result"]


def serve(work: Work) -> int:
    """Does the one job on stdin; the exit status. A ValueError, OSError or LabError of `work` is told in its one line,
    any other is a traceback on stderr."""
    from lab.errors import LabError

    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_owner, daemon=True).start()
    try:
        _tell({"result": work(job, lambda label, done, total: _tell({"label": label, "done": done, "total": total}))})
    except (LabError, ValueError, OSError) as error:
        _tell({"error": " ".join(str(error).split())})
        return 1
    return 0


def _tell(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _end_with_owner() -> None:
    sys.stdin.read()
    os._exit(1)
