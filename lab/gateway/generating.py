"""Generated text from Triton in OpenAI's words: as events, as messages of a WebSocket, or as one answer.

    Choices   one request's answers (several prompts, or n of one), as they come from the upstream
    Words     how OpenAI says it: chunks and whole answers of completions and chats

A chunk is text put between what is the same for all chunks of an answer; it costs a microsecond, where a model of the
response would cost as much as everything else here. What has arrived together is said together.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from lab.gateway.bodies import StreamOptions
from lab.gateway.passage import Passage
from lab.gateway.triton import Generation, News, Piece

DONE = b"data: [DONE]\n\n"


class Choices:
    """Answers that belong to one request. They end together: when one breaks, the others are given up."""

    def __init__(self, passage: Passage, generations: Sequence[Generation]) -> None:
        self._passage, self._generations = passage, generations
        self._news = News()
        for generation in generations:
            generation.news = self._news
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

    async def next(self) -> list[tuple[int, Piece]]:
        """(which choice, what it says) of all that has arrived since the last call, once something has; empty when all
        are whole. Refusal when one broke."""
        while True:
            found = [(n, piece) for n, one in enumerate(self._generations) if (piece := one.take()) is not None]
            if found or all(one.whole for one in self._generations):
                return found
            await self._news.wait()

    def _expire(self) -> None:
        for generation in self._generations:
            generation.expire(self._passage.timeout_s)


class Words:
    """`chat`: of a chat, else of a completion."""

    def __init__(self, passage: Passage, choices: Choices, options: StreamOptions | None, *, chat: bool) -> None:
        self._choices, self._options, self._chat = choices, options, chat
        self._name = "delta" if chat else "text"
        self._begun: set[int] = set()
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

    def chunks(self, pieces: Sequence[tuple[int, Piece]]) -> list[str]:
        """What these say, as JSON: a chunk each, and before the first of a chat's choice one that says whose it is."""
        said, counts = [], self._counts()
        for index, piece in pieces:
            if self._chat and index not in self._begun:
                self._begun.add(index)
                said.append(self._chunk(index, '{"role": "assistant", "content": ""}', "null", counts))
            if self.heard is not None:
                self.heard[index] += piece.text
            text = quoted(piece.text)
            ended = "null" if piece.finish_reason is None else quoted(piece.finish_reason)
            said.append(self._chunk(index, f'{{"content": {text}}}' if self._chat else text, ended, counts))
        return said

    def last(self) -> list[str]:
        """The chunk that holds the counts, where they are wanted."""
        if self._options is None or not self._options.include_usage:
            return []
        return [f'{self._head}], "usage": {json.dumps(self.usage())}}}']

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

    def _counts(self) -> str:
        """What stands behind the choices of each chunk."""
        if self._options is None:
            return ""
        if self._options.continuous_usage_stats:
            prompt, written = self._choices.prompt_tokens, self._choices.tokens
            return (
                f', "usage": {{"prompt_tokens": {prompt}, "completion_tokens": {written}, '
                f'"total_tokens": {prompt + written}}}'
            )
        return ', "usage": null' if self._options.include_usage else ""

    def _chunk(self, index: int, said: str, ended: str, counts: str) -> str:
        return (
            f'{self._head}{{"index": {index}, "{self._name}": {said}, "logprobs": null, "finish_reason": {ended}}}]'
            f"{counts}}}"
        )


async def collected(choices: Choices, count: int) -> tuple[list[str], list[str | None]]:
    """Texts and finish reasons of whole answers."""
    texts = [""] * count
    reasons: list[str | None] = [None] * count
    while pieces := await choices.next():
        for index, piece in pieces:
            texts[index] += piece.text
            reasons[index] = piece.finish_reason or reasons[index]
    return texts, reasons
