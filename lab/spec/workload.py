"""What is asked: when requests arrive, what is in them, and which answers are good."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lab.spec.given import Given
from lab.spec.value import Lengths, Name, NonNegativeFloat, PositiveFloat, Value

Protocol = Literal["grpc", "http", "openai", "torchserve", "replicate"]


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


class Steps(Value):
    """Independent users whose number changes: Poisson arrivals at each of `rates_rps` for `step_s`, then from the first
    again; 0 is a pause. A day in small, or a burst."""

    kind: Literal["steps"] = "steps"
    rates_rps: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1, max_length=1000)]
    step_s: PositiveFloat

    @model_validator(mode="after")
    def _somebody_comes(self) -> Steps:
        if not any(self.rates_rps):
            raise ValueError("rates_rps are all 0, so nobody ever comes; allowed: one or more above 0")
        return self


Arrival = Annotated[Poisson | Constant | Gamma | ClosedLoop | Trace | Steps, Field(discriminator="kind")]


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


class Workload(Value):
    """What the load generator sends. `duration_s` includes `warmup_s`, which no figure uses.

    `sleep_s`: service times that the sleeper is asked for, drawn uniformly from this list with the workload's seed.
    `max_in_flight`: cap on unanswered requests; an arrival above it waits in the client, and that wait counts.
    `prompt_tokens`, `output_tokens`: lengths that a language model is asked for; it goes on past an end token, so that
    the lengths hold. `stream`: answers come in chunks as they are made, else whole.
    `prompts`: a file of prompts of one's own in place of prose, sent over and over (lab/load/prompt_file.py).
    `models`: how many of a fleet's are asked (Experiment.fleet), the k-th of them k^`zipf_exponent` times less than
    the first; exponent 0 asks all alike.
    `protocol`: "grpc" and "http" are Triton's, "openai" is an OpenAI-compatible server's /v1/completions, which may
    know the model by another name, `served_model`; "torchserve" is TorchServe's /predictions,
    "replicate" is Replicate's predictions API.
    `url`: whose server is asked, where several engines are compared (lab/run/engines.py); None is the run's own.
    `trace`: Triton writes down when each request came to which stage, which costs it some microseconds a request.
    `given`: what a model of family "given" is asked, one that the lab does not know.
    `pattern`: what this way of serving is called; `slo`: the objective that it has in place of the experiment's.
    `seed` fixes arrivals and payloads, so two cells with equal workloads see equal requests (0 is a seed).
    """

    arrival: Arrival
    duration_s: Annotated[float, Field(gt=0, le=86_400)]
    warmup_s: NonNegativeFloat = 0.0
    sleep_s: tuple[Annotated[float, Field(ge=0, le=600)], ...] = (0.010,)
    prompt_tokens: Lengths = 64
    output_tokens: Lengths = 64
    stream: bool = True
    prompts: str | None = None
    models: Annotated[int, Field(ge=1, le=64)] = 1
    zipf_exponent: Annotated[float, Field(ge=0, le=5)] = 1.0
    protocol: Protocol = "grpc"
    served_model: str | None = None
    url: str | None = None
    given: Given | None = None
    pattern: Name | None = None
    slo: Slo | None = None
    trace: bool = False
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
