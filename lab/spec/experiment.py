"""What question is put: an experiment, the cells that it consists of, and how it is judged."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from lab.errors import InputError
from lab.refusal import nearest
from lab.spec.model import ModelSpec
from lab.spec.paths import parse, plain, replaced, set_path, written
from lab.spec.rollout import Rollout
from lab.spec.start import Serverless, Start
from lab.spec.value import Name, NonNegativeFloat, PositiveFloat, Value
from lab.spec.workload import Slo, Workload


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


Store = Literal["disk", "host"]
"""Where a model is that is not on its device: in files, or also in host memory."""


class Fleet(Value):
    """Many models behind one budget of memory: who is asked is loaded, and whoever was not asked for longest makes room
    (lab/serve/residency.py). `workload.models` of them are asked: copies of the experiment's model and of `others`, in
    turn, under names of their own.

    `budget_bytes`: of host memory, or of GPU memory for models on a GPU; None is what the first `fit` models take, as
    measured.
    `evict_to`: "disk" unloads; "host" moves what models on a GPU hold to host memory, from where they come back sooner
    `wait_s`, `queue_limit`: the longest that a request waits for its model, and how many may wait in all
    `pair_s`: seconds for each pair of models of the interference matrix; 0 leaves it out
    `pair_answers`: that the model which is watched has at least, for which a pair takes longer where it is slow
    """

    others: tuple[ModelSpec, ...] = ()
    budget_bytes: Annotated[int, Field(ge=1)] | None = None
    fit: Annotated[int, Field(ge=1, le=64)] = 4
    evict_to: Store = "disk"
    wait_s: PositiveFloat = 30.0
    queue_limit: Annotated[int, Field(ge=1)] = 1024
    pair_s: NonNegativeFloat = 0.0
    pair_answers: Annotated[int, Field(ge=0)] = 0


class Cell(Value):
    """One combination of factor levels, applied to the experiment's model, workload and rollout, and to how it
    starts."""

    factors: dict[str, Any]
    model: ModelSpec
    workload: Workload
    start: Start | None = None
    serverless: Serverless | None = None
    rollout: Rollout | None = None


class Experiment(Value):
    """A question, declared. `factors` maps field paths ("model.batching", "workload.arrival.saturation_fraction")
    to the levels to try; every path and level is checked when the value is built, so a bad file fails on import.
    A level of the factor "model", "workload" or "start" sets several fields at a time and leaves the others as they
    are: {"precision": "int4", "quantizer": "gptq"}.
    `start`: the model is started from nothing in each cell, again and again, and asked once (lab/run/cold.py);
    `serverless`: its requests go to a runner that scales to zero (lab/run/serverless.py).
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
    start: Start | None = None
    serverless: Serverless | None = None
    rollout: Rollout | None = None
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
        cells = self.cells()  # first, as a factor that is no field is what is wrong then
        if self.judge is not None and self.judge.factor not in self.factors:
            raise ValueError(
                f"judge.factor {self.judge.factor!r} is none of the factors{nearest(self.judge.factor, self.factors)}"
            )
        for cell in cells:
            if cell.rollout is not None:
                _can_be_rolled_out(cell)
            if self.fleet is not None and cell.workload.protocol != "http":
                raise ValueError(
                    f"workload.protocol {cell.workload.protocol!r} with a fleet, whose proxy speaks HTTP; allowed: http"
                )
            if self.fleet is not None and self.fleet.evict_to == "host":
                _can_go_to_the_host((cell.model, *self.fleet.others))
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
        start = {"model": written(self.model), "workload": written(self.workload)}
        for name in ("start", "serverless", "rollout"):
            if (value := getattr(self, name)) is not None:
                start[name] = written(value)
        cells = []
        for levels in itertools.product(*self.factors.values()):
            chosen = dict(zip(self.factors, levels, strict=True))
            data = start
            for path, level in chosen.items():
                for field, value in fields_set(path, level).items():
                    data = replaced(data, field.split("."), value, path)
            cells.append(parse(Cell, {"factors": chosen, **data}))
        return cells


def _can_be_rolled_out(cell: Cell) -> None:
    """ValueError where nobody could score the answers, or say how many requests there will be."""
    if cell.model.family != "digits":
        raise ValueError(f"rollout of family {cell.model.family}, whose answers have no label; allowed: digits")
    if not hasattr(cell.workload.arrival, "rate_rps"):
        raise ValueError(f"arrival {cell.workload.arrival.kind} with a rollout; allowed: one at a rate, as constant")


def _can_go_to_the_host(models: Sequence[ModelSpec]) -> None:
    """ValueError for a model whose memory is the host's already."""
    for model in models:
        if model.device != "gpu":
            raise ValueError(
                f"fleet.evict_to 'host' with {model.name} on the CPU; allowed: disk, or device gpu for all"
            )


def fields_set(path: str, level: Any) -> dict[str, Any]:
    """{field path: value} of what a level of the factor at `path` sets: {"model.precision": "int4",
    "model.quantizer": "gptq"} for a level of "model", else the path and the level themselves."""
    if path in ("model", "workload", "start") and isinstance(level, dict):
        return {f"{path}.{name}": value for name, value in level.items()}
    return {path: level}
