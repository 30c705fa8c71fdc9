"""What the children of this process have started ends with it, however it ends.

The signal by which a child dies with its owner (process.py) reaches the child alone, not what the child has started: a
stub of Triton's whose server was killed may wait for its word for ever. So a small process of its own is told of each
child's session and reads from a pipe that nobody but us has the other end of. When that end closes we are gone, and it
kills whoever is left in those sessions, without asking: nobody is left to wait for them.

It is there only while there are sessions to watch. Killed itself, it is started again with the next one, but what
ends before that goes unseen: lab/serve/leftovers.py finds what was left then.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress

END_LIMIT_S = 5.0

_WATCH = """
import os, signal, sys
sessions = set()
for line in sys.stdin:
    (sessions.add if line[0] == "+" else sessions.discard)(int(line[1:]))
for session in sessions:
    try:
        os.killpg(session, signal.SIGKILL)
    except OSError:
        pass
"""

_lock = threading.Lock()
_sessions: set[int] = set()
_dog: subprocess.Popen[bytes] | None = None


def watch(session: int) -> None:
    """The processes of that session (the pid of its leader) end when this one does, unless it is forgotten before."""
    with _lock:
        _sessions.add(session)
        _tell(f"+{session}")


def forget(session: int) -> None:
    """To be called when nobody is left in that session: another process may get its number."""
    global _dog
    with _lock:
        _sessions.discard(session)
        _tell(f"-{session}")
        if _dog is not None and not _sessions:
            with suppress(OSError, subprocess.TimeoutExpired):
                _dog.communicate(timeout=END_LIMIT_S)  # closes the pipe: there is nobody to kill
            _dog = None


def _tell(line: str) -> None:
    """One line to the watchdog; to a new one, if there is none, all that it has to know. A machine that has no process
    left for it loses the watch and nothing else."""
    global _dog
    lines = [line]
    with suppress(OSError):
        if _dog is None or _dog.poll() is not None:
            if not _sessions:
                return
            lines = [f"+{session}" for session in sorted(_sessions)]
            command = [sys.executable, "-I", "-S", "-c", _WATCH]
            _dog = subprocess.Popen(
                command,
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C ends us, not it
            )
        if _dog.stdin is not None:
            _dog.stdin.write("".join(f"{each}\n" for each in lines).encode())
            _dog.stdin.flush()
