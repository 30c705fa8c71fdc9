"""What the gateway does with a request that has come in: generate, embed, predict, each as the parts of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from lab.errors import InputError
from lab.gateway import bodies, predicting
from lab.gateway.answering import EVENTS, JSON, Answering
from lab.gateway.asking import Asked
from lab.gateway.chat import ChatTemplate
from lab.gateway.core import Gateway, Upstream
from lab.gateway.generating import DONE, Choices, Words, collected
from lab.gateway.openai import OpenAIUpstream, said
from lab.gateway.passage import Asking, Passage
from lab.gateway.reading import Reading
from lab.gateway.refusals import Refusal, late, wrong
from lab.gateway.triton import TritonUpstream
from lab.track.routing import Replica

PATHS = {False: "/v1/completions", True: "/v1/chat/completions"}
Folder = Callable[[Replica], Path | None]
"""Where the tokenizer of what a replica serves lies on this machine; None: it is not known."""


@dataclass(frozen=True)
class Question:
    """What a language model is asked: each prompt with its sampling parameters is one choice of the answer."""

    prompts: tuple[tuple[str, dict[str, Any]], ...]
    chat: bool
    stream: bool
    echo: bool = False
    options: bodies.StreamOptions | None = None

    def begin(self, upstream: TritonUpstream, passage: Passage) -> Choices:
        return Choices(
            passage,
            [
                upstream.generate(
                    passage.replica.model,
                    prompt,
                    sampling,
                    stream=self.stream,
                    echo=self.echo,
                    request_id=passage.id,
                )
                for prompt, sampling in self.prompts
            ],
        )


class Edge:
    def __init__(self, gateway: Gateway, folder_of: Folder) -> None:
        self._gateway, self._folder_of = gateway, folder_of
        self._templates: dict[Path, ChatTemplate] = {}
        self._reading = Reading()

    # --- answers over HTTP --------------------------------------------------------------------------------------

    async def generate(self, asked: Asked, *, chat: bool) -> Answering:
        kind = EVENTS if asked.body.get("stream") is True else JSON
        return _answering(asked.enter(), lambda passage: self.generated(passage, asked.body, chat), kind)

    async def embed(self, asked: Asked) -> Answering:
        return _answering(asked.enter(), lambda passage: self._embedded(passage, asked.body), JSON)

    async def predict(self, asked: Asked) -> Answering:
        return _answering(asked.enter(), lambda passage: self._predicted(passage, asked.body), JSON)

    # --- generation ---------------------------------------------------------------------------------------------

    async def generated(self, passage: Passage, body: dict[str, Any], chat: bool) -> AsyncGenerator[bytes, None]:
        """An answer as HTTP has it: events, or one document."""
        upstream = await self._gateway.upstream(passage.replica.url)
        if isinstance(upstream, OpenAIUpstream):
            async for part in self._relayed(upstream, passage, PATHS[chat], body):
                yield part
            return
        if body.get("stream") is True:
            async with aclosing(self.chunks(passage, body, chat)) as told:
                async for chunks in told:
                    yield "".join([f"data: {chunk}\n\n" for chunk in chunks]).encode()
            yield DONE
            return
        question = self._question(passage, body, chat)
        choices = await self._begin(upstream, passage, question)
        try:
            texts, reasons = await collected(choices, len(question.prompts))
            passage.said = texts
            words = Words(passage, choices, None, chat=chat)
            yield json.dumps(words.whole(texts, reasons)).encode()
        finally:
            passage.tokens = choices.tokens
            choices.close()

    async def chunks(self, passage: Passage, body: dict[str, Any], chat: bool) -> AsyncGenerator[list[str], None]:
        """A streamed answer of a Triton's model, each chunk as JSON; those in one list that came together."""
        upstream = await self._gateway.upstream(passage.replica.url)
        if not isinstance(upstream, TritonUpstream):
            raise wrong(f"{passage.route.model} is served by another gateway; allowed here: its HTTP paths", "model")
        question = self._question(passage, body, chat)
        choices = await self._begin(upstream, passage, question)
        words = Words(passage, choices, question.options, chat=chat)
        if passage.compared:
            words.heard = [""] * len(question.prompts)
        try:
            while pieces := await choices.next():
                yield words.chunks(pieces)
            if last := words.last():
                yield last
            passage.said = words.heard
        finally:
            passage.tokens = choices.tokens
            choices.close()

    async def _begin(self, upstream: TritonUpstream, passage: Passage, question: Question) -> Choices:
        await self._gateway.hold(passage)
        if not predicting.writes_text(await upstream.config(passage.replica.model)):
            upstream.forget(passage.replica.model)  # it may be loaded anew as one that does
            raise wrong(f"model {passage.route.model} writes no text; allowed: /predict/…", "model", code="no_text")
        self._gateway.mirror(passage)
        return question.begin(upstream, passage)

    def _question(self, passage: Passage, body: dict[str, Any], chat: bool) -> Question:
        """Refusal for a body that is none, or asks for what is not served."""
        if chat:
            talk = bodies.read(bodies.Chat, body)
            talk.check()
            messages = [{"role": message.role, "content": message.text()} for message in talk.messages]
            texts, most = [self._template(passage).prompt(messages)], talk.most_tokens
            given: bodies.Chat | bodies.Completion = talk
        else:
            given = bodies.read(bodies.Completion, body)
            texts, most = given.prompts(), given.max_tokens or 16
        sampling = given.sampling(most)
        prompts = []
        for text in texts:
            for n in range(given.n or 1):
                seed = {} if given.seed is None else {"seed": given.seed + n}
                prompts.append((text, {**sampling, **seed}))
        echo = isinstance(given, bodies.Completion) and given.echo
        return Question(tuple(prompts), chat, given.stream, echo, given.stream_options)

    def _template(self, passage: Passage) -> ChatTemplate:
        model = passage.route.model
        folder = self._folder_of(passage.replica)
        if folder is None:
            raise wrong(f"model {model}: its chat template is not known here; allowed: {PATHS[False]}", "model")
        if folder not in self._templates:
            try:
                self._templates[folder] = ChatTemplate(folder)
            except InputError as error:
                raise wrong(f"model {model}: {error}", "model", code="no_chat_template") from None
        return self._templates[folder]

    async def _relayed(
        self, upstream: OpenAIUpstream, passage: Passage, path: str, body: Mapping[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        """Somebody else's answer, as it is."""
        model = passage.replica.model
        self._gateway.mirror(passage)
        ways = upstream.stream if body.get("stream") is True else upstream.whole
        until_s = asyncio.get_running_loop().time() + passage.timeout_s
        heard: list[bytes] = []
        async with aclosing(ways(path, body, model, passage.id)) as parts:
            while True:
                try:
                    async with asyncio.timeout_at(until_s):  # never around a yield: it would end whoever reads there
                        part = await anext(parts, None)
                except TimeoutError:
                    raise late(passage.timeout_s) from None
                if part is None:
                    break
                if passage.compared:
                    heard.append(part)
                yield part
        if passage.compared:
            passage.said = said(b"".join(heard))

    # --- one answer ---------------------------------------------------------------------------------------------

    async def _embedded(self, passage: Passage, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        upstream = await self._gateway.upstream(passage.replica.url)
        if isinstance(upstream, OpenAIUpstream):
            async for part in self._relayed(upstream, passage, "/v1/embeddings", body):
                yield part
            return
        given = bodies.read(bodies.Embeddings, body)
        texts = given.texts()
        await self._gateway.hold(passage)
        config = await upstream.config(passage.replica.model)
        name = next((tensor.name for tensor in config.input if tensor.data_type == pb.TYPE_STRING), None)
        if (
            name is None
            or len(config.input) != 1
            or len(config.output) != 1
            or config.model_transaction_policy.decoupled
        ):
            raise wrong(f"model {passage.route.model} embeds no texts", "model", code="not_an_embedder")
        # One request a text: to put them together is the server's work, which knows who else waits.
        tensors = [predicting.tensors(config, {name: [text]}) for text in texts]
        self._gateway.mirror(passage)
        asked = [self._one(upstream, passage, arrays) for arrays in tensors]
        rows = [next(iter(found.values())) for found in await _together(asked)]
        data = [
            {"object": "embedding", "index": n, "embedding": predicting.row_as_text(row, given.encoding_format)}
            for n, row in enumerate(rows)
        ]
        passage.said = data
        usage = await asyncio.to_thread(self._reading.usage, config, texts)
        answer = {"object": "list", "data": data, "model": passage.route.model, "usage": usage}
        yield json.dumps(answer).encode()

    async def _predicted(self, passage: Passage, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        upstream = _triton(await self._gateway.upstream(passage.replica.url), passage)
        given = bodies.read(bodies.Prediction, body)
        await self._gateway.hold(passage)
        config = await upstream.config(passage.replica.model)
        if config.model_transaction_policy.decoupled:  # ModelInfer is for models of one answer a request
            upstream.forget(passage.replica.model)
            raise wrong(f"model {passage.route.model} streams; allowed: {PATHS[False]}", "model", code="streams")
        arrays = predicting.tensors(config, given.inputs)
        self._gateway.mirror(passage)
        found = await self._one(upstream, passage, arrays)
        if passage.compared:
            passage.said = {name: array.tobytes() for name, array in found.items()}
        told = {name: predicting.plain(array) for name, array in found.items()}
        answer = {"model": passage.route.model, "version": passage.version.version, "id": passage.id, "outputs": told}
        yield json.dumps(answer, allow_nan=False).encode()

    async def _one(self, upstream: TritonUpstream, passage: Passage, arrays: Any) -> dict[str, Any]:
        try:
            async with asyncio.timeout(passage.timeout_s):
                response = await upstream.infer(passage.replica.model, arrays, passage.id)
        except TimeoutError:
            raise late(passage.timeout_s) from None
        except Refusal as refusal:
            if refusal.code == "refused_by_model":  # it may have been loaded anew with other inputs
                upstream.forget(passage.replica.model)
            raise
        return predicting.outputs(response)


def _answering(passage: Passage, asking: Asking, kind: str) -> Answering:
    passage.asking = asking
    return Answering(passage, asking(passage), kind=kind)


def _triton(upstream: Upstream, passage: Passage) -> TritonUpstream:
    if not isinstance(upstream, TritonUpstream):
        raise wrong(f"{passage.route.model} is no model of a Triton; allowed: OpenAI's paths", "model")
    return upstream


async def _together(asked: list[Any]) -> list[Any]:
    """All answers; when one fails, the others are given up."""
    tasks = [asyncio.ensure_future(one) for one in asked]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
