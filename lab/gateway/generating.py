"""Generated text from Triton in OpenAI's words: as events, as messages of a WebSocket, or as one answer.

    Choices   one request's answers (several prompts, or n of one), as they come from the upstream
    Words     how OpenAI says it: chunks and whole answers of completions and chats

A chunk is text put between bytes that are the same for all chunks of an answer; it costs a few microseconds,
where a model of the response would cost as much as everything else here.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from lab.gateway.bodies import StreamOptions
from lab.gateway.core import Passage
from lab.gateway.triton import Generation, Piece

DONE = b"data: [DONE]\n\n"


class Choices:
    """Answers that belong to one request. They end together: when one breaks, the others are given up."""

    def __init__(self, passage: Passage, generations: Sequence[Generation]) -> None:
        self._passage, self._generations = passage, generations
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(passage.timeout_s, self._expire)

    def cancel(self) -> None:
        for generation in self._generations:
            generation.cancel()

    def close(self) -> None:
        """Gives up what is not whole."""
        self._limit.cancel()
        self.cancel()

    @property
    def prompt_tokens(self) -> int:
        return sum(generation.prompt_tokens or 0 for generation in self._generations)

    @property
    def tokens(self) -> int:
        return sum(generation.tokens for generation in self._generations)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """(which choice, what it says next), until all are whole. Refusal when one broke."""
        if len(self._generations) == 1:
            (generation,) = self._generations
            while (piece := await generation.next()) is not None:
                yield 0, piece
            return
        waiting = {asyncio.ensure_future(g.next()): n for n, g in enumerate(self._generations)}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    index = waiting.pop(task)
                    if (piece := task.result()) is not None:
                        waiting[asyncio.ensure_future(self._generations[index].next())] = index
                        yield index, piece
        finally:
            for task in waiting:
                task.cancel()

    def _expire(self) -> None:
        for generation in self._generations:
            generation.expire(self._passage.timeout_s)


class Words:
    """`chat`: of a chat, else of a completion."""

    def __init__(self, passage: Passage, choices: Choices, options: StreamOptions | None, *, chat: bool) -> None:
        self._choices, self._options, self._chat = choices, options, chat
        self.heard: list[str] | None = None
        """The texts so far, of each choice, where somebody wants them kept."""
        self._fields = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{passage.id}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": passage.route.model,
            "system_fingerprint": f"{passage.route.model}@{passage.version.version}",
        }
        streamed = {**self._fields, "object": "chat.completion.chunk"} if chat else self._fields
        self._head = json.dumps(streamed)[:-1] + ', "choices": ['

    async def chunks(self) -> AsyncIterator[str]:
        """Each chunk as JSON: what was said, in the end why it ended, and the counts where they are wanted."""
        begun: set[int] = set()
        async for index, piece in self._choices.pieces():
            if self._chat and index not in begun:
                begun.add(index)
                yield self._chunk(index, '{"role": "assistant", "content": ""}', None)
            if self.heard is not None:
                self.heard[index] += piece.text
            text = json.dumps(piece.text)
            if piece.text or piece.finish_reason:
                said = f'{{"content": {text}}}' if self._chat else text
                yield self._chunk(index, said, piece.finish_reason)
        if self._options is not None and self._options.include_usage:
            yield f'{self._head}], "usage": {json.dumps(self.usage())}}}'

    def whole(self, texts: Sequence[str], reasons: Sequence[str | None]) -> dict[str, Any]:
        """The answer as one object."""
        choices = []
        for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": reason})
        return {**self._fields, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """The model's own counts."""
        prompt, written = self._choices.prompt_tokens, self._choices.tokens
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _chunk(self, index: int, said: str, reason: str | None) -> str:
        name = "delta" if self._chat else "text"
        ended = "null" if reason is None else f'"{reason}"'
        counts = ""
        if self._options is not None and (self._options.include_usage or self._options.continuous_usage_stats):
            counts = f', "usage": {json.dumps(self.usage()) if self._options.continuous_usage_stats else "null"}'
        return (
            f'{self._head}{{"index": {index}, "{name}": {said}, "logprobs": null, "finish_reason": {ended}}}]{counts}}}'
        )


async def collected(choices: Choices, count: int) -> tuple[list[str], list[str | None]]:
    """Texts and finish reasons of whole answers."""
    texts = [""] * count
    reasons: list[str | None] = [None] * count
    async for index, piece in choices.pieces():
        texts[index] += piece.text
        reasons[index] = piece.finish_reason or reasons[index]
    return texts, reasons
