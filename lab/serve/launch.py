"""Starts a tritonserver process and waits until it answers; ends one. See lab/serve/triton.py for the server in use."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from lab import priority, stopping
from lab.errors import ServerError
from lab.serve import installation, leftovers, plain_path, ports, scratch, traces
from lab.serve.process import Process, born, last_lines
from lab.serve.record import ServerRecord

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
"""Limits, not expectations: a start takes about 1 s, a stop 3 s."""

DRAIN_S = 5
"""How long Triton itself waits for calls in flight when it is asked to stop."""

STUB_LIMIT_S = 10.0
"""How long stubs may take to notice that their server is gone."""

POLL_S = 0.02


def launch(
    repository: Path, log: Path, wanted: Sequence[int] = (), environment: Mapping[str, str] | None = None
) -> tuple[Process, ServerRecord]:
    """A server without models that listens on its three ports of 127.0.0.1: `wanted` (HTTP, gRPC, metrics) where they
    are free, any others elsewhere, with `environment` beside its own. It dies with this process. ServerError when it
    cannot be had."""
    leftovers.remove()
    scratch.sweep()
    repository.mkdir(parents=True, exist_ok=True)
    command = installation.command()
    for _ in range(3):  # another program may take a port between our look and Triton's
        picked, taken = ports.pick(wanted)
        for line in taken:
            print(line, file=sys.stderr, flush=True)
        launched = _try(command, repository.absolute(), log.absolute(), picked, environment or {})
        if launched is not None:
            return launched
    raise ServerError(f"Triton found its ports taken three times; see {log}")


def _try(
    command: list[str], repository: Path, log: Path, picked: Sequence[int], environment: Mapping[str, str]
) -> tuple[Process, ServerRecord] | None:
    """None when one of the ports was taken meanwhile."""
    http_port, grpc_port, metrics_port = picked
    prefix = leftovers.new_prefix()
    flags = [
        f"--model-repository={plain_path.of(repository)}",
        "--model-control-mode=explicit",
        # The configuration is written in full: completing it would start every model's process twice.
        "--disable-auto-complete-config",
        "--exit-on-error=false",
        f"--exit-timeout-secs={DRAIN_S}",
        f"--http-address={ports.HOST}",
        f"--grpc-address={ports.HOST}",
        f"--metrics-address={ports.HOST}",
        f"--http-port={http_port}",
        f"--grpc-port={grpc_port}",
        f"--metrics-port={metrics_port}",
        "--metrics-interval-ms=500",
        # Where traces go can be told at the start alone; without a level nothing is written (lab/serve/traces.py).
        "--trace-config=mode=triton",
        f"--trace-config=triton,file={traces.prefix(log)}",
        "--trace-config=triton,log-frequency=500",
        "--trace-config=rate=1",
        "--trace-config=count=-1",
        "--trace-config=level=OFF",
        f"--backend-config=python,shm-region-prefix-name={prefix}",
        # Threads that hand responses on, by turns: of the 32 that there are by default each one comes to a cold cache.
        "--backend-config=python,thread-pool-size=2",
    ]
    try:
        # LAB_TRITON: so that all it brings into the world is found.
        marked = {**installation.environment(), **environment, "LAB_TRITON": prefix}
        process = Process([*command, *flags], marked, log, niceness=priority.MEASURED, told=True)
    except OSError as error:
        raise ServerError(f"Triton could not be started: {error}") from None
    state = ServerRecord(
        pid=process.pid,
        started=born(process.pid) or time.time(),
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        repository=str(repository),
        log=str(log),
        prefix=prefix,
    )
    leftovers.record(prefix, state.pid, state.started)
    try:
        return (process, state) if _comes_up(process, log, picked) else None
    except BaseException:  # also a stop, or Ctrl-C
        end(state, limit_s=0.0)
        raise


def _comes_up(process: Process, log: Path, picked: Sequence[int]) -> bool:
    """Once it listens. False when one of the ports was taken meanwhile, ServerError when it is for another reason."""
    deadline = time.monotonic() + START_LIMIT_S
    # Its own sockets, not just an answer: a stranger's server on the same port would answer too.
    while not all(ports.listens(process.pid, port) for port in picked):
        stopping.check()
        if process.wait(POLL_S):
            last = last_lines(log, 4)
            if any("already in use" in line for line in last):
                return False
            raise ServerError(f"Triton ended while starting ({ending(process.exit_status)}): {' | '.join(last)}")
        if time.monotonic() > deadline:
            raise ServerError(f"Triton was not up after {START_LIMIT_S:g} s; see {log}")
    return True


def end(state: ServerRecord, limit_s: float = STOP_LIMIT_S) -> str:
    """Asks the server to stop, kills it after `limit_s`, and leaves neither stubs nor shared memory of it behind.
    "stopped", "killed after 30 s", or "had ended before"."""
    how = _terminate(state.pid, limit_s) if state.alive() else "had ended before"
    _, alive = psutil.wait_procs(leftovers.stubs([state.prefix]), timeout=min(STUB_LIMIT_S, limit_s))
    for stub in alive:
        with suppress(psutil.Error):
            stub.kill()
    psutil.wait_procs(alive, timeout=STUB_LIMIT_S)
    leftovers.remove()
    return how


def end_model(prefix: str, name: str) -> None:
    """Kills the processes of one model of the server with that region prefix, and waits until they are gone."""
    own = []
    for stub in leftovers.stubs([prefix]):
        with suppress(psutil.Error):
            if any(Path(word).parts[-3:-2] == (name,) for word in stub.cmdline() if word.endswith("/model.py")):
                stub.kill()
                own.append(stub)
    psutil.wait_procs(own, timeout=STUB_LIMIT_S)


def _terminate(pid: int, limit_s: float) -> str:
    try:
        server = psutil.Process(pid)
        if limit_s > 0:
            server.send_signal(signal.SIGTERM)
            server.wait(limit_s)
            return "stopped"
    except psutil.NoSuchProcess:
        return "stopped"
    except psutil.TimeoutExpired:
        pass
    with suppress(psutil.Error):
        server.kill()
        server.wait(STUB_LIMIT_S)
    return f"killed after {limit_s:g} s"


def ending(exit_status: int | None) -> str:
    """'signal 9' or 'status 1'."""
    if exit_status is None:
        return "status unknown"
    return f"signal {-exit_status}" if exit_status < 0 else f"status {exit_status}"
