"""Any server of the OpenAI protocol: /v1/completions, or /v1/chat/completions where the URL says so.

The tensors of a request (payload.py) become its body, with vLLM's `ignore_eos` so that lengths hold, and with usage
asked for after every chunk (`continuous_usage_stats`, which vLLM and SGLang know): only so does a server say how many
tokens a chunk holds. A server that tells a total alone is taken to send a token a chunk, until its total says
otherwise; then the answer's tokens are known, and its chunks' are not. Some say too how many of the prompt's tokens
their prefix cache had (vLLM with --enable-prompt-tokens-details, SGLang with --enable-cache-report).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from lab import credentials
from lab.errors import InputError
from lab.load.targets import Done, Generated, Tensors, token_count
from lab.load.targets.event_stream import Answer, EventStream, Message

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ("text", "content", "tool_calls", "refusal")
"""What a choice may say in, reasoning aside."""
PATHS = {CHAT: CHAT, COMPLETIONS: COMPLETIONS, "/v1": COMPLETIONS}
"""How a URL may end; what stands before it is where a provider has put the protocol (RunPod: /v2/ID/openai/v1)."""


class OpenAI(EventStream):
    """`url` is openai+http://HOST:PORT or http://HOST:PORT, with nothing, /v1 or one of the two paths behind it, or a
    path that ends so."""

    def __init__(self, url: str, done: Done) -> None:
        super().__init__(done, OpenAIAnswer)
        self._url = endpoint(url)

    def _headers(self, number: int) -> dict[str, str]:
        return credentials.headers()

    def prepare(self, model: str, requests: Sequence[Tensors]) -> list[Message]:
        return [(self._url, json.dumps(self._body(model, request)).encode()) for request in requests]

    def _body(self, model: str, request: Tensors) -> dict[str, Any]:
        text = request["text_input"].item().decode()
        body = {"model": model, **json.loads(request["sampling_parameters"].item())}
        if self._url.endswith(CHAT):
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        if request["stream"].item():
            body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        return body


def endpoint(url: str) -> str:
    """Where to post to."""
    parts = urlsplit(url.removeprefix("openai+"))
    path = parts.path.rstrip("/") or "/v1"
    ending = next((ending for ending in PATHS if path.endswith(ending)), None)
    if parts.scheme not in ("http", "https") or not parts.hostname or ending is None:
        raise InputError(
            f"url {url!r}: allowed is openai+http://HOST:PORT, with /v1, {COMPLETIONS} or {CHAT} behind it"
        )
    return f"{parts.scheme}://{parts.netloc}{path.removesuffix(ending)}{PATHS[ending]}"


class OpenAIAnswer(Answer):
    """Chunks of text, of a chat's content, or of its reasoning, which some servers call `reasoning_content`."""

    def __init__(self) -> None:
        super().__init__()
        self._told: int | None = None  # tokens so far, by the server's last word
        self._each = False  # it counts with every chunk

    def read(self, event: dict[str, Any], arrived_ns: int) -> None:
        generated = self.generated
        usage = event.get("usage") or {}
        if usage:
            generated.prompt_tokens = token_count(usage.get("prompt_tokens", generated.prompt_tokens))
            if (details := usage.get("prompt_tokens_details")) is not None:
                cached = token_count(details.get("cached_tokens", generated.cached_tokens))
                more = cached is not None and cached > (generated.prompt_tokens or 0)  # than there are: no such count
                generated.cached_tokens = None if more else cached
        told, before = token_count(usage.get("completion_tokens")), self._told or 0
        if told is not None:
            self._told = told
        for choice in event.get("choices") or ():  # there is one, and none beside the total
            said = choice.get("delta") or choice.get("message") or choice
            content = any(said.get(name) for name in WORDS)
            reasoning = bool(said.get("reasoning_content") or said.get("reasoning")) and not content
            if not generated.chunk_ns:
                self._each = told is not None
            tokens = told - before if told is not None and self._each else int(content or reasoning)
            generated.add(arrived_ns, content or reasoning, tokens, reasoning=reasoning)
            self.complete = self.complete or choice.get("finish_reason") is not None

    def total(self) -> Generated:
        generated = self.generated
        if self._told is not None:
            generated.output_tokens = self._told
            if sum(generated.chunk_tokens or ()) != self._told:
                generated.chunk_tokens = None
        elif self.complete:
            generated.chunk_tokens = None
        else:  # broken off before the total, so nothing speaks against a token a chunk
            generated.output_tokens = len(generated.chunk_ns)
        return generated
