"""A shard of rows asked of Triton: many at a time, each until it has its answer or its error.

A model that answers once gets packed requests of rows alike in length; if one fails, its halves are asked, so that one
row's error stays its own. A language model batches by itself and gets a row a request. A server that cannot answer
just now (a queue that is full, a model being loaded) is asked again for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from lab.batch import packing, questions
from lab.batch.table import Row
from lab.errors import RunError
from lab.gateway.refusals import Refusal
from lab.gateway.triton import TritonUpstream
from lab.spec import ModelSpec

AGAIN_S, PATIENCE_S = 0.25, 30.0
LATER = (429, 503)
"""Statuses of what may be had in a moment."""

Answer = dict[str, Any]
"""A row's columns, or {"error": why}."""


class Asker:
    """`places` requests are under way at most; `most` rows and `budget` tokens make a request. `alive()` says whether
    waiting for the server makes sense."""

    def __init__(
        self,
        upstream: TritonUpstream,
        spec: ModelSpec,
        sampling: Mapping[str, Any],
        *,
        places: int,
        most: int,
        budget: int,
        alive: Any,
    ) -> None:
        self._upstream, self._spec, self._sampling = upstream, spec, sampling
        self._places = asyncio.Semaphore(places)
        self._most, self._budget, self._alive = most, budget, alive
        self.answered = 0

    async def ask(self, rows: Sequence[Row], lengths: Sequence[int]) -> list[Answer]:
        """The answers in the order of `rows`, whose `lengths` in tokens may be estimates. RunError when the server
        is gone."""
        answers: list[Answer] = [{"error": row.error} for row in rows]
        sound = [i for i, row in enumerate(rows) if row.error is None]
        most = 1 if self._spec.family == "llm" else self._most
        batches = packing.packed([lengths[i] for i in sound], self._budget, most)
        self.answered += len(rows) - len(sound)

        async def fill(batch: Sequence[int]) -> None:
            places = [sound[i] for i in batch]
            async with self._places:
                found = await self._answers([rows[place].value for place in places])
            for place, answer in zip(places, found, strict=True):
                answers[place] = answer
            self.answered += len(places)

        async with asyncio.TaskGroup() as group:
            for batch in batches:
                group.create_task(fill(batch))
        return answers

    async def _answers(self, values: list[Any]) -> list[Answer]:
        try:
            return await self._patiently(values)
        except Refusal as why:
            if len(values) == 1:
                return [{"error": str(why)}]
        half = len(values) // 2
        return await self._answers(values[:half]) + await self._answers(values[half:])

    async def _patiently(self, values: list[Any]) -> list[Answer]:
        waited_s = 0.0
        while True:
            try:
                return await (self._generated(values[0]) if self._spec.family == "llm" else self._inferred(values))
            except Refusal as why:
                if why.status < 500 and why.status not in LATER:
                    raise
                if not self._alive():
                    raise RunError("Triton has ended; the same command goes on where this one stopped") from None
                if why.status == 500 and waited_s:  # twice: it is the row
                    raise
                if waited_s >= PATIENCE_S:
                    raise RunError(
                        f"model {self._spec.name} has not answered for {PATIENCE_S:g} s ({why}); the same command goes "
                        "on where this one stopped"
                    ) from None
            await asyncio.sleep(AGAIN_S)
            waited_s += AGAIN_S

    async def _inferred(self, values: list[Any]) -> list[Answer]:
        response = await self._upstream.infer(self._spec.name, questions.tensors(self._spec.family, values), "")
        return questions.answers(self._spec.family, response.raw_output_contents[0], len(values))

    async def _generated(self, prompt: str) -> list[Answer]:
        generation = self._upstream.generate(
            self._spec.name, prompt, self._sampling, stream=False, echo=False, request_id=""
        )
        text, reason = "", None
        while (piece := await generation.next()) is not None:
            text, reason = text + piece.text, piece.finish_reason or reason
        return [
            {
                "answer": text,
                "finish_reason": reason,
                "prompt_tokens": generation.prompt_tokens,
                "output_tokens": generation.tokens,
            }
        ]
