"""What a request's body may say: OpenAI's fields, checked, with what this gateway does not do refused by name.

Fields that change nothing here (`user`, `metadata`, `store` …) are taken and left alone. A field that would change the
answer and can't be honoured (`logprobs`, `tools`, two penalties) is refused unless it has its neutral value: an answer
that ignores half of the question is worse than none. vLLM's `top_k`, `ignore_eos` and `min_tokens` are known, as load
generators send them.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lab.gateway.refusals import Refusal, wrong

CHAT_TOKENS = 256
"""Of a chat that does not say; a completion's default is OpenAI's 16."""

Count = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    include_usage: bool = False
    continuous_usage_stats: bool = False


class _Generating(Body):
    stream: Annotated[bool, Field(strict=True)] = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1, le=16, strict=True)] | None = None
    ignore_eos: bool = False
    min_tokens: int | None = None
    user: str | None = None
    # Taken and left alone.
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None
    # Refused unless neutral.
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    repetition_penalty: Number | None = None
    logit_bias: dict[str, Any] | None = None

    def refuse_the_rest(self, **neutral: tuple[Any, ...]) -> None:
        """Refusal naming the first field that has another value than those which change nothing."""
        neutral = {
            "presence_penalty": (None, 0),
            "frequency_penalty": (None, 0),
            "repetition_penalty": (None, 1),
            "logit_bias": (None, {}),
            **neutral,
        }
        for name, values in neutral.items():
            if (value := getattr(self, name)) not in values:
                raise wrong(f"{name} {json.dumps(value)[:60]}: not served here; allowed: leave it out", name)

    def sampling(self, max_tokens: int) -> dict[str, Any]:
        """As lab/serve/models/sampling.py has it."""
        found: dict[str, Any] = {
            "max_tokens": max_tokens,
            "temperature": 1.0 if self.temperature is None else self.temperature,
        }
        if self.top_p is not None:
            found["top_p"] = self.top_p
        if self.top_k is not None and self.top_k > 0:
            found["top_k"] = self.top_k
        if self.seed is not None:
            found["seed"] = self.seed
        if self.stop:
            found["stop"] = [self.stop] if isinstance(self.stop, str) else self.stop
        # The engine has no least length; a client that sets it to the most wants exactly that many.
        if self.ignore_eos or (self.min_tokens is not None and self.min_tokens >= max_tokens):
            found["ignore_eos"] = True
        elif self.min_tokens:
            raise wrong(f"min_tokens {self.min_tokens}: allowed here: 0, or as many as max_tokens", "min_tokens")
        return found


class Completion(_Generating):
    prompt: str | list[Any]
    max_tokens: Count | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: int | None = None
    best_of: int | None = None

    def prompts(self) -> list[str]:
        """One or more texts."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not given or not all(isinstance(text, str) for text in given):
            raise wrong("prompt: allowed here are a text or a list of texts; token numbers are not served", "prompt")
        if self.echo and self.stream:
            raise wrong("echo true with stream true: not served here; allowed: one of them", "echo")
        self.refuse_the_rest(suffix=(None, ""), logprobs=(None, 0), best_of=(None, 1))
        return given


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None

    def text(self) -> str:
        """The content as one text. Refusal for parts that are none."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        parts = []
        for part in self.content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise wrong(f"messages: a part of type {part.get('type')!r}; allowed here: text", "messages")
            parts.append(part["text"])
        return "".join(parts)


class Chat(_Generating):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: Any = None
    modalities: list[str] | None = None

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or CHAT_TOKENS

    def check(self) -> None:
        self.refuse_the_rest(
            logprobs=(None, False),
            top_logprobs=(None, 0),
            tools=(None, []),
            tool_choice=(None, "none", "auto"),
            response_format=(None, {"type": "text"}),
            modalities=(None, ["text"]),
        )


class Embeddings(Body):
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    def texts(self) -> list[str]:
        given = [self.input] if isinstance(self.input, str) else self.input
        if not given or not all(isinstance(text, str) for text in given):
            raise wrong("input: allowed here are a text or a list of texts; token numbers are not served", "input")
        if self.dimensions is not None:
            raise wrong(f"dimensions {self.dimensions}: not served here; allowed: leave it out", "dimensions")
        return given


class Prediction(BaseModel):
    """`inputs`: the model's inputs by name, as nested lists; a batch dimension may be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    inputs: Annotated[dict[str, Any], Field(min_length=1)]


class Score(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    score: Annotated[Number, Field(ge=0, le=1)]


B = TypeVar("B", bound=BaseModel)


def json_object(raw: bytes) -> dict[str, Any]:
    """Refusal for a body that is no JSON object."""
    try:
        found = json.loads(raw)
        if b"\\u" in raw:  # half of a surrogate pair is JSON, and no text
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise wrong(f"the body is not JSON: {str(error).splitlines()[0]}", code="bad_json") from None
    if not isinstance(found, dict):
        raise wrong("the body is no JSON object", code="bad_json")
    return found


def read(kind: type[B], body: dict[str, Any]) -> B:
    """The body as that kind. Refusal naming the first field that does not fit."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _refused(error) from None


def _refused(error: ValidationError) -> Refusal:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"] if not _is_branch(str(part)))
    if first["type"] == "missing":
        return wrong(f"{place}: required, and not there", place, code="missing")
    if first["type"] == "extra_forbidden":
        return wrong(f"{place}: no such field here; allowed: leave it out", place, code="unknown_field")
    shown = json.dumps(first["input"], default=str)[:60]
    return wrong(f"{place} {shown}: {first['msg'].lower()}", place, code="wrong_type")


def _is_branch(part: str) -> bool:
    """pydantic also names the branch of a union, which no client ever wrote."""
    return part == "str" or part.startswith(("list[", "function-", "constrained-", "lax-or-strict"))
