"""What is served: a model, in which precision, how its requests are batched."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lab.refusal import nearest
from lab.spec.scaling import Scaling
from lab.spec.value import PLAIN_NAME, PLAIN_NAME_WORDS, ModelName, Tokens, Value

Family = Literal["digits", "embedder", "llm", "trees", "network", "sleeper", "null", "given"]
Precision = Literal["fp32", "bf16", "fp16", "int8", "int8_weight", "int4", "as_served"]
Quantizer = Literal["rtn", "gptq", "awq", "smoothquant"]
Scheduler = Literal["one", "static", "continuous"]


class Batching(Value):
    """Triton's dynamic batching. `None` in its place (ModelSpec.batching) means every request runs alone.

    Batching(max_batch_size=32)                            join whatever waits when an instance becomes free
    Batching(max_batch_size=32, max_queue_delay_us=2000)   hold a request up to 2 ms for company
    Batching(max_batch_size=8, max_queue_size=16)          refuse a request when 16 wait already
    """

    max_batch_size: Annotated[int, Field(ge=1, le=1024)]
    max_queue_delay_us: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    max_queue_size: Annotated[int, Field(ge=1)] | None = None

    @field_validator("max_batch_size", mode="before")
    @classmethod
    def _zero_means_off_in_triton(cls, value: Any) -> Any:
        if value == 0:
            raise ValueError(
                "Triton then ignores dynamic batching without a word; allowed: 1 to 1024, or batching=null for off"
            )
        return value

    @model_validator(mode="after")
    def _preferred_fit(self) -> Batching:
        for size in self.preferred_batch_sizes:
            if size > self.max_batch_size:
                raise ValueError(
                    f"preferred_batch_sizes holds {size}, above max_batch_size {self.max_batch_size}; "
                    f"allowed: 1 to {self.max_batch_size}"
                )
        return self


class ModelSpec(Value):
    """One served model. Triton's config.pbtxt is a pure function of this value (lab/serve/repository.py).

    `family` says which code serves it and is the name unless given, so two copies of one family can stand side by
    side under two names. `instances` is the number of processes that serve it, each with its own copy of the weights.

    The language model (family "llm") batches by itself, token by token, so `batching` stays None and these decide:
    Family "given" is a model of somebody else's server: it has its name there, "as_served" for a precision, and its
    requests are described by Workload.given.

    `weights`               a Hugging Face folder or hub id of the Llama architecture; None is SmolLM2-135M-Instruct
    `quantizer`             how the weights of an integer precision are found: "rtn" rounds each to the nearest, "gptq"
                            and "awq" (int4) and "smoothquant" (int8) look at calibration texts
    `group_size`            weights of a row that share a scale in int4
    `kv_cache_precision`    of the keys and values that are kept; None is that of the activations
    `scheduler`             "one" request at a time, "static": a batch runs until its last member ends, "continuous":
                            requests join and leave between two tokens
    `kv_cache`              False computes every earlier token anew for each next one
    `max_batch_size`        requests that run together (always 1 with scheduler "one")
    `max_request_tokens`    of prompt and answer together; the length of a slot in the cache
    `max_tokens_in_cache`   of all that run together; None is room for max_batch_size full requests
    `stream_interval`       tokens that each chunk of an answer holds after the first, which holds one
    `adapters`              LoRA adapters that a request may name: of the lab's own (lab/serve/lora/lessons.json), or
                            NAME=FOLDER in PEFT's layout
    `max_adapters`          that may be loaded at a time, those that come while it serves included
    `merge_adapters`        each adapter is folded into a full copy of the base, and served as a model of its own
    `threads`               that compute; None is the engine's own choice

    `scaling`: rules by which instances come and go while a run puts its load on the model, `instances` at first.
    """

    name: ModelName
    family: Family = None  # type: ignore[assignment]  # the name's own unless given; never None once built
    batching: Batching | None = None
    precision: Precision = None  # type: ignore[assignment]  # the family's own unless given; never None once built
    instances: Annotated[int, Field(ge=1, le=16)] = 1
    device: Literal["cpu", "gpu"] = "cpu"
    seed: Annotated[int, Field(ge=0)] = 0
    weights: str | None = None
    scheduler: Scheduler = "continuous"
    kv_cache: bool = True
    kv_cache_precision: Literal["bf16", "int8"] | None = None
    quantizer: Quantizer = "rtn"
    group_size: Annotated[int, Field(ge=8, le=1024)] = 32
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    max_request_tokens: Annotated[int, Field(ge=2, le=1_000_000)] = 1024
    max_tokens_in_cache: Tokens | None = None
    stream_interval: Annotated[int, Field(ge=1, le=1024)] = 1
    adapters: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    max_adapters: Annotated[int, Field(ge=1, le=256)] = 16
    merge_adapters: bool = False
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    scaling: Scaling | None = None

    @model_validator(mode="after")
    def _family_decides_the_rest(self) -> ModelSpec:
        if self.family is None:
            if self.name not in FAMILIES:
                raise ValueError(
                    f"name {self.name!r} is no family of models, and family is not given{nearest(self.name, FAMILIES)}"
                )
            # Written past pydantic so that it stays "unset": a copy with another name gets that name's family.
            self.__dict__["family"] = self.name
        if self.precision is None:
            self.__dict__["precision"] = {"llm": "bf16", "given": "as_served"}.get(self.family, "fp32")
        return self

    @model_validator(mode="after")
    def _own_names_are_plain(self) -> ModelSpec:
        """Models of the lab become folders and processes; a given one has the name that it has on its server."""
        if self.family not in ("given", "llm") and not re.fullmatch(PLAIN_NAME, self.name):
            raise ValueError(f"name {self.name!r} with family {self.family}; allowed: {PLAIN_NAME_WORDS}")
        return self

    @model_validator(mode="after")
    def _precision_fits(self) -> ModelSpec:
        """A precision names weights and activations: int8 is both in 8 bits (activations while serving), int4 weights
        in 4 and activations in 8, int8_weight weights only."""
        if self.precision not in PRECISIONS[self.family]:
            raise ValueError(
                f"precision {self.precision!r} with family {self.family}; allowed: {', '.join(PRECISIONS[self.family])}"
            )
        if self.precision == "fp16" and self.device == "cpu":
            raise ValueError("precision 'fp16' with device 'cpu'; allowed: bf16, or device gpu")
        allowed = QUANTIZERS.get(self.precision, ("rtn",))
        if self.quantizer not in allowed:
            raise ValueError(
                f"quantizer {self.quantizer!r} with precision {self.precision!r}; allowed: {', '.join(allowed)}"
            )
        if self.kv_cache_precision is not None and not self.kv_cache:
            raise ValueError(
                f"kv_cache_precision {self.kv_cache_precision!r} with kv_cache false, which keeps none; "
                "allowed: null, or kv_cache true"
            )
        return self

    @property
    def adapter_names(self) -> tuple[str, ...]:
        return tuple(entry.partition("=")[0] for entry in self.adapters)

    @model_validator(mode="after")
    def _adapters_fit(self) -> ModelSpec:
        names = self.adapter_names
        twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
        if twice is not None:
            raise ValueError(f"adapters hold {twice} twice; allowed: each name once")
        if len(names) > self.max_adapters:
            raise ValueError(
                f"adapters are {len(names)} with max_adapters {self.max_adapters}; allowed: up to {self.max_adapters}"
            )
        if self.merge_adapters and not names:
            raise ValueError("merge_adapters without adapters; allowed: one adapter or more, or merge_adapters false")
        return self

    @model_validator(mode="after")
    def _scaling_fits(self) -> ModelSpec:
        rules = self.scaling
        if rules is not None and self.family in ("llm", "given"):
            raise ValueError(f"scaling is given for family {self.family}; only models that Triton queues for have it")
        if rules is not None and not rules.least <= self.instances <= rules.most:
            raise ValueError(
                f"instances {self.instances} with scaling between {rules.least} and {rules.most}; "
                f"allowed: {rules.least} to {rules.most}"
            )
        return self

    @model_validator(mode="after")
    def _fields_fit_the_family(self) -> ModelSpec:
        if self.family == "llm":
            if self.batching is not None:
                raise ValueError(
                    "batching is given for a language model, which batches token by token; allowed: null, "
                    "with scheduler and max_batch_size instead"
                )
            if not self.kv_cache and self.max_tokens_in_cache is not None:
                raise ValueError(
                    f"max_tokens_in_cache {self.max_tokens_in_cache} with kv_cache false, which keeps none; "
                    "allowed: null, or kv_cache true"
                )
            return self
        for name in LLM_FIELDS:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(
                    f"{name} {getattr(self, name)!r} is given for family {self.family}; only family llm has it"
                )
        return self


FAMILIES: tuple[str, ...] = ("digits", "embedder", "llm", "trees", "network", "sleeper", "null")
PRECISIONS: dict[str, tuple[str, ...]] = {
    "digits": ("fp32", "bf16", "int8"),
    "embedder": ("fp32", "bf16", "int8"),
    "llm": ("fp32", "bf16", "fp16", "int8", "int8_weight", "int4"),
    "trees": ("fp32",),
    "network": ("fp32",),
    "sleeper": ("fp32",),
    "null": ("fp32",),
    "given": ("as_served",),
}
QUANTIZERS: dict[str, tuple[str, ...]] = {
    "int4": ("rtn", "gptq", "awq"),
    "int8": ("rtn", "smoothquant"),
    "int8_weight": ("rtn",),
}
LLM_FIELDS = (
    "weights",
    "quantizer",
    "group_size",
    "kv_cache_precision",
    "scheduler",
    "kv_cache",
    "max_batch_size",
    "max_request_tokens",
    "max_tokens_in_cache",
    "stream_interval",
    "adapters",
    "max_adapters",
    "merge_adapters",
    "threads",
)
