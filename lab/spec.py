"""The vocabulary: what is served, what is asked of it, and what question an experiment puts.

Every class is a frozen value that refuses unknown fields: a misspelt field that is silently dropped makes a run that
measured something else than its author believes. Units are in the names. `parse` and `set_path` turn pydantic's
report into one line that names the field, the value and what is allowed (lab/refusal.py).

Knows nothing of processes, files or clocks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from lab.errors import InputError
from lab.refusal import nearest as nearest  # for all who look a name up
from lab.refusal import one_line

Family = Literal["digits", "embedder", "llm", "trees", "network", "sleeper", "null"]
Precision = Literal["fp32", "bf16", "fp16", "int8", "int8_weight", "int4"]
Quantizer = Literal["rtn", "gptq", "awq", "smoothquant"]
Scheduler = Literal["one", "static", "continuous"]
Protocol = Literal["grpc", "http", "openai"]

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z][a-z0-9_]{0,39}$", description="a letter and up to 39 more letters, digits and _, in lower case"
    ),
]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
Lengths = Annotated[
    Tokens | tuple[Tokens, Tokens],
    Field(description="a whole number from 1 to 1,000,000, or two such numbers as [least, most]"),
]
"""Lengths in tokens: all equal, or drawn uniformly from the first to the last of a pair."""


class Value(BaseModel):
    """A frozen value; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- what is served ---------------------------------------------------------------------------------------------


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
    `threads`               that compute; None is the engine's own choice
    """

    name: Name
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
    threads: Annotated[int, Field(ge=1, le=256)] | None = None

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
            self.__dict__["precision"] = "bf16" if self.family == "llm" else "fp32"
        return self

    @model_validator(mode="after")
    def _precision_fits(self) -> ModelSpec:
        """A precision names weights and activations: int8 is both in 8 bits (activations by token, while serving),
        int8_weight and int4 are weights only."""
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
    "threads",
)


# --- what is asked ----------------------------------------------------------------------------------------------


class _OpenLoop(Value):
    """Requests arrive when the schedule says, whether or not earlier ones are done.

    Exactly one of `rate_rps` and `saturation_fraction` is given. A fraction is turned into a rate by the runner once
    it has measured the saturation throughput that the experiment's `reference` describes.
    """

    rate_rps: PositiveFloat | None = None
    saturation_fraction: Annotated[float, Field(gt=0, le=5)] | None = None

    @model_validator(mode="after")
    def _one_rate(self) -> _OpenLoop:
        if (self.rate_rps is None) == (self.saturation_fraction is None):
            raise ValueError("exactly one of rate_rps and saturation_fraction must be given")
        return self


class Poisson(_OpenLoop):
    """Independent users: gaps are exponential, their coefficient of variation is 1."""

    kind: Literal["poisson"] = "poisson"


class Constant(_OpenLoop):
    """A metronome: every gap is 1/rate."""

    kind: Literal["constant"] = "constant"


class Gamma(_OpenLoop):
    """Burstier (cv > 1) or smoother (cv < 1) than Poisson at the same mean rate; cv = 1 is Poisson."""

    kind: Literal["gamma"] = "gamma"
    cv: Annotated[float, Field(gt=0, le=20)]


class ClosedLoop(Value):
    """`concurrency` users, each sending its next request `think_s` after its last answer. A slow server is asked
    less, so latency under a closed loop says little about users who do not wait for each other."""

    kind: Literal["closed"] = "closed"
    concurrency: Annotated[int, Field(ge=1, le=4096)]
    think_s: NonNegativeFloat = 0.0


class Trace(Value):
    """Arrivals replayed from a text file: one arrival time in seconds a line, ascending from 0."""

    kind: Literal["trace"] = "trace"
    path: str


Arrival = Annotated[Poisson | Constant | Gamma | ClosedLoop | Trace, Field(discriminator="kind")]


class Workload(Value):
    """What the load generator sends. `duration_s` includes `warmup_s`, which no figure uses.

    `sleep_s`: service times that the sleeper is asked for, drawn uniformly from this list with the workload's seed.
    `max_in_flight`: cap on unanswered requests; an arrival above it waits in the client, and that wait counts.
    `prompt_tokens`, `output_tokens`: lengths that a language model is asked for; it goes on past an end token, so that
    the lengths hold. `stream`: answers come in chunks as they are made, else whole.
    `models`: how many of a fleet's are asked (Experiment.fleet), the k-th of them k^`zipf_exponent` times less than
    the first; exponent 0 asks all alike.
    `protocol`: "grpc" and "http" are Triton's, "openai" is an OpenAI-compatible server's /v1/completions, which may
    know the model by another name, `served_model`.
    `seed` fixes arrivals and payloads, so two cells with equal workloads see equal requests (0 is a seed).
    """

    arrival: Arrival
    duration_s: Annotated[float, Field(gt=0, le=86_400)]
    warmup_s: NonNegativeFloat = 0.0
    sleep_s: tuple[Annotated[float, Field(ge=0, le=600)], ...] = (0.010,)
    prompt_tokens: Lengths = 64
    output_tokens: Lengths = 64
    stream: bool = True
    models: Annotated[int, Field(ge=1, le=64)] = 1
    zipf_exponent: Annotated[float, Field(ge=0, le=5)] = 1.0
    protocol: Protocol = "grpc"
    served_model: str | None = None
    timeout_s: PositiveFloat = 10.0
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    workers: Annotated[int, Field(ge=1, le=32)] = 1
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _something_is_left(self) -> Workload:
        if self.warmup_s >= self.duration_s:
            raise ValueError(
                f"warmup_s {self.warmup_s:g} leaves nothing of duration_s {self.duration_s:g}; "
                f"allowed: 0 to below {self.duration_s:g}"
            )
        if not self.sleep_s:
            raise ValueError("sleep_s is empty; allowed: one or more seconds")
        for name in ("prompt_tokens", "output_tokens"):
            lengths = getattr(self, name)
            if isinstance(lengths, tuple) and lengths[0] > lengths[1]:
                raise ValueError(f"{name} {list(lengths)} ends before it begins; allowed: [least, most]")
        return self


class Slo(Value):
    """A service-level objective: a request is good when it is within every limit that is given. `latency_s` and
    `ttft_s` (to the first token) count *from the scheduled arrival*; `itl_s` is the mean time between tokens after the
    first. The objective is met when at least `percentile` of all offered requests are good."""

    latency_s: PositiveFloat | None = None
    ttft_s: PositiveFloat | None = None
    itl_s: PositiveFloat | None = None
    percentile: Annotated[float, Field(gt=0, lt=1)] = 0.99

    @model_validator(mode="after")
    def _some_limit(self) -> Slo:
        if self.latency_s is None and self.ttft_s is None and self.itl_s is None:
            raise ValueError("no limit is given; allowed: one or more of latency_s, ttft_s and itl_s")
        return self


# --- what question is put ---------------------------------------------------------------------------------------


class Reference(Value):
    """How the saturation throughput is found: closed loop with `concurrency` users for `duration_s` on each level
    of the judged factor. `saturation_fraction` in an arrival is a fraction of the *baseline* level's figure."""

    concurrency: Annotated[int, Field(ge=1, le=1024)] = 32
    duration_s: PositiveFloat = 4.0
    warmup_s: NonNegativeFloat = 1.0


class Judge(Value):
    """How the verdict is found: levels of `factor` are compared with its `baseline` level, cell by cell, on
    `metrics` (names of Summary fields). The hypothesis holds when some level moves `primary` in the direction
    `expect` by at least `min_effect_fraction`, with its whole confidence interval beyond that."""

    factor: str
    baseline: Any = None
    primary: str = "goodput_rps"
    metrics: tuple[str, ...] = ("goodput_rps", "throughput_rps", "latency_p50_s", "latency_p99_s")
    expect: Literal["higher", "lower"] = "higher"
    min_effect_fraction: Annotated[float, Field(ge=0, le=1)] = 0.05


class Fleet(Value):
    """Many models behind one budget of memory: who is asked is loaded, and whoever was not asked for longest makes room
    (lab/serve/residency.py). `workload.models` of them are asked: copies of the experiment's model and of `others`, in
    turn, under names of their own.

    `budget_bytes`: of host memory, or of GPU memory for models on a GPU; None is what the first `fit` models take, as
    measured.
    `wait_s`, `queue_limit`: the longest that a request waits for its model, and how many may wait in all
    `pair_s`: seconds for each pair of models of the interference matrix; 0 leaves it out
    """

    others: tuple[ModelSpec, ...] = ()
    budget_bytes: Annotated[int, Field(ge=1)] | None = None
    fit: Annotated[int, Field(ge=1, le=64)] = 4
    wait_s: PositiveFloat = 30.0
    queue_limit: Annotated[int, Field(ge=1)] = 1024
    pair_s: NonNegativeFloat = 0.0


class Cell(Value):
    """One combination of factor levels, applied to the experiment's model and workload."""

    factors: dict[str, Any]
    model: ModelSpec
    workload: Workload


class Experiment(Value):
    """A question, declared. `factors` maps field paths ("model.batching", "workload.arrival.saturation_fraction")
    to the levels to try; every path and level is checked when the value is built, so a bad file fails on import.
    A level of the factor "model" or "workload" sets several fields at a time and leaves the others as they are:
    {"precision": "int4", "quantizer": "gptq"}.
    `title` is what pages and lists call it; the words of its id unless given.
    `quick` maps paths of this experiment to the values that `--quick` sets, one after the other; they are checked
    then too."""

    id: Name
    title: str = ""
    question: str
    hypothesis: str
    model: ModelSpec
    neighbours: tuple[ModelSpec, ...] = ()
    fleet: Fleet | None = None
    workload: Workload
    slo: Slo
    factors: dict[str, tuple[Any, ...]] = Field(default_factory=dict)
    repeats: Annotated[int, Field(ge=1, le=100)] = 3
    reference: Reference | None = None
    judge: Judge | None = None
    quick: dict[str, Any] = Field(default_factory=dict)

    @field_validator("factors", mode="before")
    @classmethod
    def _levels_are_plain(cls, factors: Any) -> Any:
        if not isinstance(factors, Mapping):
            return factors
        for path, levels in factors.items():
            if not isinstance(levels, list | tuple):
                raise ValueError(f"factor {path} is {levels!r}; allowed: a list of levels")
        return {path: tuple(plain(level) for level in levels) for path, levels in factors.items()}

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        for path, levels in self.factors.items():
            if not levels:
                raise ValueError(f"factor {path} has no levels; allowed: one or more")
            twice = next((level for n, level in enumerate(levels) if level in levels[:n]), None)
            if twice is not None or list(levels).count(None) > 1:
                raise ValueError(f"factor {path} has the level {twice!r} twice; allowed: each once")
        if self.judge is not None and self.judge.factor not in self.factors:
            raise ValueError(
                f"judge.factor {self.judge.factor!r} is none of the factors{nearest(self.judge.factor, self.factors)}"
            )
        cells = self.cells()
        for cell in cells:
            if self.fleet is not None and cell.workload.protocol != "http":
                raise ValueError(
                    f"workload.protocol {cell.workload.protocol!r} with a fleet, whose proxy speaks HTTP; allowed: http"
                )
            if self.fleet is None and cell.workload.models > 1:
                raise ValueError(
                    f"workload.models {cell.workload.models} without a fleet to take them from; allowed: 1"
                )
        if self.reference is None:
            for cell in cells:
                if getattr(cell.workload.arrival, "saturation_fraction", None) is not None:
                    raise ValueError("an arrival gives saturation_fraction, so reference must be given")
        if self.quick:
            self.when_quick()
        return self

    def when_quick(self) -> Experiment:
        """The experiment as `--quick` runs it; its own `quick` is empty, as there is nothing more to set."""
        experiment = self.as_it_stands()
        for path, value in self.quick.items():
            try:
                experiment = set_path(experiment, path, value)
            except InputError as error:
                raise InputError(f"quick: {error}") from None
        return experiment

    def as_it_stands(self) -> Experiment:
        """The experiment without `quick`, which need not fit it any more once other fields have been set."""
        return self.model_copy(update={"quick": {}})

    def cells(self) -> list[Cell]:
        """Every combination of levels, the last factor varying fastest. An experiment without factors has one."""
        start = {"model": _written(self.model), "workload": _written(self.workload)}
        cells = []
        for levels in itertools.product(*self.factors.values()):
            chosen = dict(zip(self.factors, levels, strict=True))
            data = start
            for path, level in chosen.items():
                for field, value in fields_set(path, level).items():
                    data = _replace(data, field.split("."), value, path)
            cells.append(parse(Cell, {"factors": chosen, **data}))
        return cells


def fields_set(path: str, level: Any) -> dict[str, Any]:
    """{field path: value} of what a level of the factor at `path` sets: {"model.precision": "int4",
    "model.quantizer": "gptq"} for a level of "model", else the path and the level themselves."""
    if path in ("model", "workload") and isinstance(level, dict):
        return {f"{path}.{name}": value for name, value in level.items()}
    return {path: level}


# --- reading and changing values --------------------------------------------------------------------------------

V = TypeVar("V", bound=BaseModel)


def parse(kind: type[V], data: Any) -> V:
    """`kind` built from plain data; InputError with one line when it does not fit."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise InputError(one_line(error, kind)) from None


def set_path(value: V, path: str, new: Any) -> V:
    """A copy of `value` with the field at a dotted path replaced; fields that were left to their default stay so
    (model.family follows a new model.name). InputError when the path or the value does not fit."""
    return set_paths(value, [(path, new)])


def set_paths(value: V, changes: Sequence[tuple[str, Any]]) -> V:
    """The same for several paths, checked once all are set: they need to fit together, not one by one."""
    data = _written(value)
    for path, new in changes:
        data = _replace(data, path.split("."), plain(new), path, type(value))
    return parse(type(value), data)


def parse_setting(text: str) -> tuple[str, Any]:
    """("model.name", "embedder") from "model.name=embedder". The right side is JSON where it parses as JSON."""
    path, equals, raw = text.partition("=")
    if not equals or not path:
        raise InputError(f"--set {text!r}: allowed is PATH=VALUE, such as workload.duration_s=5")
    try:
        return path, json.loads(raw)
    except (ValueError, RecursionError):  # not JSON, or JSON that no setting of the lab looks like
        return path, raw


def plain(value: Any) -> Any:
    """Values as the dicts, lists, numbers and strings that JSON knows."""
    return _written(value) if isinstance(value, BaseModel) else value


def _written(value: BaseModel) -> dict[str, Any]:
    # exclude_unset keeps "left to the default" apart from "set to the default's value"; the discriminator of an
    # arrival is a default that must survive the trip.
    data = value.model_dump(exclude_unset=True)
    for name in type(value).model_fields:
        inner = getattr(value, name)
        if isinstance(inner, BaseModel) and name in data:
            data[name] = _written(inner)
    if "kind" in type(value).model_fields:
        data["kind"] = value.kind  # type: ignore[attr-defined]
    return data


def _replace(
    data: dict[str, Any], parts: list[str], new: Any, path: str, kind: type[BaseModel] | None = None
) -> dict[str, Any]:
    head, *rest = parts
    if kind is not None and head not in kind.model_fields:
        raise InputError(f"{path}: there is no field {head!r}{nearest(head, kind.model_fields)}")
    if not rest:
        if head in ("rate_rps", "saturation_fraction"):
            # One rate replaces the other: whoever sets a rate means "instead".
            data = {k: v for k, v in data.items() if k not in ("rate_rps", "saturation_fraction")}
        return {**data, head: new}
    inner = data.get(head)
    if inner is None:
        inner = {}
    if not isinstance(inner, dict):
        raise InputError(f"{path}: {head!r} holds {inner!r}, which has no fields")
    return {**data, head: _replace(inner, rest, new, path)}
