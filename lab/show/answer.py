"""One answer of a language model as the page "Try it" received it, and the same as records that figures are made of.

Pure. What it cannot know: when the server took the request up; `sent_ns` is when the process that asked sent it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.records import OK, Requests, Streams, Window
from lab.run.conversation import Piece
from lab.spec import ModelSpec


@dataclass(frozen=True)
class Answer:
    """`label` says with which settings `model` wrote it. Pieces come in order; stamps are perf_counter_ns."""

    label: str
    sent_ns: int
    pieces: tuple[Piece, ...]
    model: ModelSpec | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def tokens(self) -> int:
        """By the server's count."""
        return sum(piece.tokens for piece in self.pieces)

    @property
    def prompt_tokens(self) -> int | None:
        return next((p.prompt_tokens for p in self.pieces if p.prompt_tokens is not None), None)

    @property
    def finish_reason(self) -> str | None:
        """None while it is written, and when it was stopped."""
        return next((p.finish_reason for p in reversed(self.pieces) if p.finish_reason), None)

    @property
    def chunks(self) -> Sequence[Piece]:
        """The pieces that hold tokens."""
        return [piece for piece in self.pieces if piece.tokens > 0]

    def after_s(self, piece: Piece) -> float:
        """Seconds from the send to this piece."""
        return (piece.t_ns - self.sent_ns) / 1e9

    def records(self) -> tuple[Requests, Window]:
        """One request in a window that it fills, for lab.measure; ValueError before its first token."""
        chunks = self.chunks
        if not chunks:
            raise ValueError("an answer without a token has no figures")
        end_ns = chunks[-1].t_ns
        requests = Requests(
            due_ns=np.array([self.sent_ns]),
            sent_ns=np.array([self.sent_ns]),
            done_ns=np.array([end_ns]),
            # An answer that was stopped is scored as far as it got.
            outcome=np.array([OK], dtype=np.uint8),
            streams=Streams(
                prompt_tokens=np.array([-1 if self.prompt_tokens is None else self.prompt_tokens]),
                output_tokens=np.array([self.tokens]),
                reasoning_chunks=np.array([0]),
                first=np.array([0, len(chunks)]),
                t_ns=np.array([piece.t_ns for piece in chunks]),
                tokens=np.array([piece.tokens for piece in chunks]),
            ),
        )
        return requests, Window(self.sent_ns, self.sent_ns, end_ns + 1)
