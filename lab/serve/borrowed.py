"""A model on somebody else's server under another batching, for a while, and put back whatever happens to us.

The first change starts a guardian: a process of its own session that holds the configuration as it was and waits on a
pipe. When the pipe closes, because `close` was called or because we were interrupted, killed or crashed, the guardian
puts the model back; so there is one way back, and it does not depend on us. It writes what it did to a log.

Works where the server lets clients load models (--model-control-mode=explicit); every change reloads the model, which
other users of it feel. Knows one knob, Triton's dynamic batching.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, cast

from google.protobuf import json_format
from tritonclient.grpc import model_config_pb2 as pb
from tritonclient.utils import InferenceServerException

from lab.errors import InputError, LabError, ModelError, ServerError
from lab.serve.described import plainest, read
from lab.serve.triton import LOAD_LIMIT_S, Server
from lab.spec import Batching

ROOT = Path(__file__).resolve().parents[2]
PUT_BACK_LIMIT_S = 60.0
RETRY_S = 0.5


class Borrowed:
    """`put` changes it, `close` puts it back. `log` takes the guardian's words."""

    def __init__(self, server: Server, name: str, log: Path) -> None:
        self._server, self._name, self._log = server, name, log
        self._before = _config(server, name)
        self._guardian: subprocess.Popen[bytes] | None = None

    def put(self, batching: Batching | None) -> float | None:
        """Seconds that the reload took; None where the model batches so already. InputError for a model that cannot,
        ModelError when the server does not let us, or when it does not load; then it serves as before."""
        if read(_plain(_config(self._server, self._name))).batching == plainest(batching):
            return None
        wanted = with_batching(self._before, batching)
        if self._guardian is None:
            self._guardian = _start_guardian(self._server, self._before, self._log)
        began = time.perf_counter()
        try:
            load(self._server, wanted)
        except InferenceServerException as error:
            said = error.message() or str(error)
            if "not allowed" in said:
                said = "it does not let clients load models (--model-control-mode=explicit does)"
            raise ModelError(f"batching of {self._name} at {self._server.called} stays as it is: {said}") from None
        seconds = time.perf_counter() - began
        found = read(_plain(_config(self._server, self._name))).batching
        if found != plainest(batching):
            raise ModelError(f"{self._name} was loaded with {batching}, and its server says {found}")
        return seconds

    def close(self) -> str:
        """How it ended, in words; "" when nothing was changed. ServerError when it could not be put back."""
        if self._guardian is None:
            return ""
        guardian, self._guardian = self._guardian, None
        cast(IO[bytes], guardian.stdin).close()
        try:
            said = cast(IO[bytes], guardian.stdout).read().decode(errors="replace").strip()
            status = guardian.wait(PUT_BACK_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise ServerError(f"{self._name} is not put back yet; see {self._log}") from None
        if status:
            raise ServerError(said or f"{self._name} was not put back; see {self._log}")
        return said


def with_batching(before: pb.ModelConfig, batching: Batching | None) -> pb.ModelConfig:
    """The configuration with other dynamic batching. Off keeps the batch dimension, so clients send equal shapes."""
    if before.max_batch_size == 0:
        raise InputError(f"model {before.name} has no batch dimension, so its requests cannot be joined")
    if before.HasField("sequence_batching") or before.HasField("ensemble_scheduling"):
        raise InputError(f"model {before.name} is scheduled otherwise than by dynamic batching, which stays")
    wanted = pb.ModelConfig()
    wanted.CopyFrom(before)
    wanted.ClearField("dynamic_batching")
    # 1, not the model's own: above it some backends switch dynamic batching on by themselves.
    wanted.max_batch_size = 1 if batching is None else batching.max_batch_size
    if batching is not None:
        wanted.dynamic_batching.max_queue_delay_microseconds = batching.max_queue_delay_us
        wanted.dynamic_batching.preferred_batch_size.extend(batching.preferred_batch_sizes)
        if batching.max_queue_size is not None:
            wanted.dynamic_batching.default_queue_policy.max_queue_size = batching.max_queue_size
    return wanted


def load(server: Server, config: pb.ModelConfig) -> None:
    """InferenceServerException when the server refuses."""
    # The configuration must hold the name: Triton 2.51 crashes without it.
    written = json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None)
    server.client.load_model(config.name, config=written, client_timeout=LOAD_LIMIT_S)


def put_back(server: Server, before: pb.ModelConfig) -> str:
    """As it was told before; how, in words. Loading it by its name would not do: Triton 2.51 then keeps the
    configuration that it was last told, as long as the repository is as it was."""
    load(server, before)
    if _config(server, before.name) != before:
        raise ModelError(f"{before.name} was loaded with its earlier configuration, and its server says another")
    return f"{before.name} has its earlier configuration again"


def _config(server: Server, name: str) -> pb.ModelConfig:
    try:
        return server.client.get_model_config(name).config
    except InferenceServerException as error:
        raise ModelError(f"model {name} at {server.called}: {error.message() or error}") from None


def _plain(config: pb.ModelConfig) -> dict[str, Any]:
    found: dict[str, Any] = json_format.MessageToDict(config, preserving_proto_field_name=True)
    return found


def _start_guardian(server: Server, before: pb.ModelConfig, log: Path) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as words:
        guardian = subprocess.Popen(
            [sys.executable, "-m", "lab.serve.borrowed"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=words,
            start_new_session=True,  # a terminal's Ctrl-C ends us, not it
        )
    order = {"url": server.called, "before": json_format.MessageToJson(before)}
    pipe = cast(IO[bytes], guardian.stdin)
    pipe.write(json.dumps(order).encode() + b"\n")
    pipe.flush()
    if cast(IO[bytes], guardian.stdout).readline() != b"ready\n":  # nothing is changed before somebody can put it back
        raise ServerError(f"the process that puts models back did not start; see {log}")
    return guardian


def _guard() -> int:
    """The guardian: one order, then the end of the pipe, then the way back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.stdin.buffer.readline())
    before = json_format.Parse(order["before"], pb.ModelConfig())
    _tell("ready")
    sys.stdin.buffer.read()
    deadline = time.monotonic() + PUT_BACK_LIMIT_S
    while True:
        try:
            with Server.at(order["url"]) as server:
                _tell(put_back(server, before))
            return 0
        except (LabError, InferenceServerException) as error:
            if time.monotonic() > deadline:
                _tell(f"{before.name} at {order['url']} is not put back: {error}; load it again by its name")
                return 1
            time.sleep(RETRY_S)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # the log
    with contextlib.suppress(OSError):  # nobody may be left to hear it
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(_guard())
