"""One prompt, one answer as it comes: what the page "Try it" and the equality check ask a language model through.

A plain tritonclient stream, not the load generator: nothing is measured for a verdict here, and whoever reads this
file sees how a client of a decoupled Triton model is written.

`say` asks from a process of its own (this module run with `-m`: one request as JSON on stdin, a line of JSON for each
piece on stdout), because a page's process draws, holds its interpreter's lock and has the lowest priority: stamps that
it took came in bunches, up to half a second late.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from lab import priority
from lab.errors import ModelError, ServerError
from lab.run.lock import who_measures
from lab.serve import repository, weights
from lab.serve.chat import as_turn
from lab.serve.triton import Server
from lab.spec import ModelSpec

PROJECT = Path(__file__).parents[2]
SILENCE_LIMIT_S = 120.0
"""The longest wait for the next piece; without a cache a token of a long text takes seconds."""


@dataclass(frozen=True)
class Piece:
    """A chunk of the answer. `tokens`: how many it holds; `output_tokens`: how many the answer holds with it, by the
    server's count. The last piece has a `finish_reason` ("stop", "length"). `sent_ns` is when the request was sent,
    `t_ns` when this piece came, both perf_counter_ns of the process that asked."""

    text: str
    tokens: int
    sent_ns: int
    t_ns: int
    finish_reason: str | None
    prompt_tokens: int | None
    output_tokens: int | None


Lack = Literal["quiet", "server", "weights"]


def lacking(spec: ModelSpec) -> tuple[Lack, str] | None:
    """What keeps `spec` from being talked to now, and one line about it; None when `prepare` may be called."""
    if (holder := who_measures()) is not None:
        return "quiet", f"Run {holder} measures now, and a second user would falsify its figures; wait or stop it."
    if Server.attach() is None:
        return "server", "No Triton runs."
    if not weights.is_ready(spec):
        return "weights", f"The weights of {spec.name} are not here."
    return None


REMEDIES: Mapping[Lack, str] = {
    "quiet": "",
    "server": " Start the dashboard with `make lab`, or `python -m lab serve` beside it.",
    "weights": " `python -m lab fetch {family}` brings them.",
}


def why_not(spec: ModelSpec) -> str | None:
    """The same in one line with the command that helps."""
    found = lacking(spec)
    return None if found is None else found[1] + REMEDIES[found[0]].format(family=spec.family)


def prepare(spec: ModelSpec) -> str:
    """The managed server with `spec` in force, loaded anew only where its configuration differs; its gRPC address.
    LabError in one line when it does not load."""
    if (reason := why_not(spec)) is not None:
        raise ServerError(reason)
    server = Server.attach()
    if server is None:
        raise ServerError("Triton ended just now; start it again")
    with server:
        if not in_force(server, spec):
            server.load(spec)
        return server.grpc_url


def say(
    prompt: str,
    *,
    grpc_url: str,
    model: str = "llm",
    max_tokens: int = 128,
    temperature: float = 0.0,
    seed: int = 0,
    chat: bool = True,
) -> Iterator[Piece]:
    """The answer of `model`, piece by piece; leaving the loop early stops the generation.

    `chat` puts the prompt into the turn of a user, as the instructed SmolLM2 was trained to see it; without it the
    model goes on with the text. ServerError in one line when the server refuses, breaks off, or falls silent.
    """
    asked = {
        "grpc_url": grpc_url,
        "model": model,
        "prompt": as_turn(prompt) if chat else prompt,
        "sampling": {"max_tokens": max_tokens, "temperature": temperature, "seed": seed},
    }
    speaker = subprocess.Popen(
        [sys.executable, "-m", "lab.run.conversation"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=PROJECT,
        text=True,
        start_new_session=True,  # a session of its own has a priority of its own
    )
    priority.give(speaker.pid, priority.MEASURED)
    try:
        assert speaker.stdin is not None and speaker.stdout is not None  # noqa: S101  pipes were asked for
        with speaker.stdin as stdin:
            json.dump(asked, stdin)
        for line in speaker.stdout:
            told = json.loads(line)
            if "error" in told:
                raise ServerError(told["error"])
            yield Piece(**told)
        if speaker.wait():
            raise ServerError(f"model {model}: the process that asked it ended with status {speaker.returncode}")
    finally:
        speaker.kill()  # its connection closes, and with it the generation
        speaker.wait()
        if speaker.stdout is not None:
            speaker.stdout.close()


def request(prompt: str, sampling: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The inputs of a language model by the names of Triton's vLLM backend, each of shape [1]."""
    return {
        "text_input": np.array([prompt.encode()], dtype=object),
        "stream": np.array([True]),
        "sampling_parameters": np.array([json.dumps(dict(sampling)).encode()], dtype=object),
        "exclude_input_in_output": np.array([True]),
        "return_finish_reason": np.array([True]),
        "return_num_input_tokens": np.array([True]),
        "return_num_output_tokens": np.array([True]),
    }


def stream(grpc_url: str, model: str, inputs: Mapping[str, np.ndarray]) -> Generator[Piece, None, None]:
    """The pieces of the answer to one request, given as tensors. Errors as for `say`."""
    answers: queue.SimpleQueue[tuple[int, Any, InferenceServerException | None]] = queue.SimpleQueue()
    client = triton.InferenceServerClient(grpc_url)
    finished, told = False, 0
    try:
        client.start_stream(lambda result, error: answers.put((time.perf_counter_ns(), result, error)))
        tensors = tensors_of(inputs)
        sent_ns = time.perf_counter_ns()
        client.async_stream_infer(model, tensors, enable_empty_final_response=True)
        while not finished:
            t_ns, result, error = answers.get(timeout=SILENCE_LIMIT_S)
            if error is not None:
                raise ServerError(f"model {model}: {error.message()}")
            piece = _piece(result, sent_ns, t_ns, told)
            told = piece.output_tokens or 0
            finished = bool(result.get_response().parameters["triton_final_response"].bool_param)
            if piece.tokens or piece.finish_reason:
                yield piece
    except queue.Empty:
        raise ServerError(f"model {model} said nothing for {SILENCE_LIMIT_S:g} s") from None
    except InferenceServerException as error:
        raise ServerError(f"model {model}: {error.message()}") from None
    finally:
        client.stop_stream(cancel_requests=not finished)
        client.close()


def in_force(server: Server, spec: ModelSpec) -> bool:
    """Whether the model that serves under this name was configured from an equal spec."""
    try:
        loaded = server.config(spec.name).get("parameters", {})
    except ModelError:
        return False
    wanted = repository.config(spec).parameters
    same = {name: value["string_value"] for name, value in loaded.items()} == {
        name: value.string_value for name, value in wanted.items()
    }
    return same and server.state(spec.name).ready


def tensors_of(inputs: Mapping[str, np.ndarray]) -> list[triton.InferInput]:
    """Arrays by name as tritonclient's inputs."""
    tensors = []
    for name, array in inputs.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def _piece(result: triton.InferResult, sent_ns: int, t_ns: int, told: int) -> Piece:
    """`told`: tokens of the pieces before. A response's own count is of its own tokens, as the vLLM backend has it."""

    def first(name: str) -> Any:
        array = result.as_numpy(name)
        return None if array is None or array.size == 0 else array.flat[0]

    text, reason, prompt_tokens = first("text_output"), first("finish_reason"), first("num_input_tokens")
    tokens = int(first("num_output_tokens") or 0)
    finish = None if reason is None else reason.decode()
    return Piece(
        text="" if text is None else text.decode(),
        tokens=tokens,
        sent_ns=sent_ns,
        t_ns=t_ns,
        finish_reason=None if finish in (None, "", "None") else finish,
        prompt_tokens=None if prompt_tokens is None else int(prompt_tokens),
        output_tokens=told + tokens,
    )


def _speak() -> None:
    """The process of its own: see the module's docstring."""
    asked = json.load(sys.stdin)
    pieces = stream(asked["grpc_url"], asked["model"], request(asked["prompt"], asked["sampling"]))
    try:
        for piece in pieces:
            print(json.dumps(asdict(piece)), flush=True)
    except ServerError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    except BrokenPipeError:  # nobody listens any more
        pieces.close()


if __name__ == "__main__":
    _speak()
