"""Where requests go: one protocol, a target for each wire format.

    one answer    triton_grpc.py    Triton, gRPC            triton_http.py     Triton, HTTP
    in chunks     triton_stream.py  Triton, gRPC stream     generate_stream.py Triton, /generate_stream (SSE)
                  openai.py         /v1/completions and /v1/chat/completions (SSE)
                  replicate.py      Replicate's predictions, streamed or polled
    either        torchserve.py     TorchServe, /predictions (one answer, or a stream of text)

A target tells how each request ended by calling `done`, not by returning from a coroutine: a task and a future a
request would cost as much as the request itself, and a closed loop can send its next request from inside the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lab.load.targets.tensors import Tensors as Tensors
from lab.measure.records import OK, OUTCOMES, TRUNCATED

INVALID = len(OUTCOMES)
"""In place of an outcome: the server says that the request itself is wrong (its shape, its type, no such model). As
the first answer of a block it means that the set-up is wrong, not that the server is failing."""


@dataclass(slots=True)
class Generated:
    """What has arrived of a generated answer.

    A chunk is a message of the server that holds text or at least one token; what only opens, counts or closes an
    answer is none. Token counts are the server's: None where it gave none, `chunk_tokens` also where its total says
    that the chunks held other numbers than it was taken for. `reasoning_chunks` of them, from the first on, were
    reasoning. `cached_tokens` of the prompt's the server did not compute, as its prefix cache had them.
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] | None = field(default_factory=list)
    reasoning_chunks: int = 0
    cached_tokens: int | None = None

    def add(self, arrived_ns: int, text: bool, tokens: int | None, *, reasoning: bool = False) -> None:
        """A message has arrived: whether it holds text, and the tokens that the server says it holds."""
        if not text and not tokens:
            return
        if reasoning and self.reasoning_chunks == len(self.chunk_ns):
            self.reasoning_chunks += 1
        self.chunk_ns.append(arrived_ns)
        if tokens is None:
            self.chunk_tokens = None
        elif self.chunk_tokens is not None:
            self.chunk_tokens.append(tokens)

    def summed(self) -> Generated:
        """With the tokens of the chunks as the answer's."""
        self.output_tokens = None if self.chunk_tokens is None else sum(self.chunk_tokens)
        return self


class Done(Protocol):
    def __call__(
        self, number: int, outcome: int, detail: str | None, arrived_ns: int, generated: Generated | None = None, /
    ) -> None:
        """`number` is the request's, `outcome` an index of records.OUTCOMES or INVALID, `detail` None exactly when the
        outcome is OK, `arrived_ns` the perf_counter_ns at which the end was seen; `generated` of answers in chunks."""


class Target(Protocol):
    """A server that requests can be sent to. Built inside the running event loop with the `done` to call."""

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Any]:
        """The requests as messages that `send` takes, everything done that can be done before the clock starts."""

    async def open(self) -> None:
        """Connect, in advance. A server that cannot be reached is no error here: its requests are refused later."""

    def send(self, number: int, message: Any) -> None:
        """Send one prepared message now. `done` is called once for it, later or before this returns."""

    def cancel(self, number: int) -> Generated | None:
        """Give the request up; `done` is not called for it any more. What had arrived of an answer in chunks."""

    async def close(self) -> None: ...


MOST_TOKENS = 2**31 - 1
"""That a record can hold."""


def token_count(value: Any) -> int | None:
    """A count of tokens as a server gave it, None where it gave null; ValueError for what is no such number."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{value!r} is no count of tokens")
    return value


def broken(outcome: int, generated: Generated) -> int:
    """The outcome of an answer that ended with `outcome`: one that had begun is truncated, whatever ended it."""
    return TRUNCATED if outcome != OK and generated.chunk_ns else outcome
