"""What a drill is: a question from a run's own figures, an answer, and the formula with those figures in it.

A drill is one value; a new one needs no page code. Its texts hold names in braces: fields of a summary and whatever its
`take` adds, each written as its unit at the end of the name says ({latency_p99_s} is "12.3 ms"). A figure that the run
has not makes the drill be asked of another run, or not at all: nothing is ever filled in from elsewhere.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Literal

from lab.measure.words import format_count, format_metric
from lab.show.charts.figure import Chart
from lab.show.drills.source import Source

Deck = Literal["measures", "serving", "levers", "models", "change"]
DECKS: dict[str, str] = {
    "measures": "Throughput, tail, first token, cost",
    "serving": "Online, batch, streaming, serverless",
    "levers": "Batching, KV cache, quantization, device",
    "models": "Memory, swapping, adapters",
    "change": "Registry, canary, blue and green",
}

Values = dict[str, Any]
Verdict = Literal["right", "right order", "wrong", "yours to judge"]
NEAR, ORDER = 1.1, 2.0
"""Factors within which an estimate is right, and of the right order."""


@dataclass(frozen=True)
class Number:
    """An estimate of values[key], asked for in `unit`, which is `scale` times the key's own. `near`: the factor within
    which it counts as right."""

    key: str
    unit: str
    scale: float = 1.0
    near: float = NEAR


@dataclass(frozen=True)
class Choice:
    """One of `options`, which are texts; `right` gives the position of the right one."""

    options: tuple[str, ...]
    right: Callable[[Values], int]


@dataclass(frozen=True)
class Points:
    """A short free answer, which its writer compares with these."""

    points: tuple[str, ...]


@dataclass(frozen=True)
class Drill:
    """`runs`: the experiments whose runs can ask it, the best first. `take` gives what the texts name, None when the
    run has it not. `source`: where the formula is from. `then`: what an interviewer would ask next."""

    id: str
    deck: Deck
    concept: str
    runs: tuple[str, ...]
    take: Callable[[Source], Values | None]
    ask: str
    answer: Number | Choice | Points
    formula: str
    why: str
    source: str
    then: str
    chart: Callable[[Source], Chart] | None = None


@dataclass(frozen=True)
class Posed:
    """A drill with the figures of one run."""

    drill: Drill
    source: Source
    values: Values

    @property
    def ask(self) -> str:
        return said(self.drill.ask, self.values)

    @property
    def formula(self) -> str:
        return said(self.drill.formula, self.values)

    @property
    def why(self) -> str:
        return said(self.drill.why, self.values)

    @property
    def options(self) -> tuple[str, ...]:
        answer = self.drill.answer
        return tuple(said(o, self.values) for o in answer.options) if isinstance(answer, Choice) else ()

    @property
    def points(self) -> tuple[str, ...]:
        answer = self.drill.answer
        return tuple(said(p, self.values) for p in answer.points) if isinstance(answer, Points) else ()

    @property
    def truth(self) -> float | int | None:
        """In the unit that is asked for, or the position of the right option; None for points."""
        answer = self.drill.answer
        if isinstance(answer, Number):
            return float(self.values[answer.key]) * answer.scale
        return answer.right(self.values) if isinstance(answer, Choice) else None

    def judge(self, given: float | int | None) -> Verdict:
        """The verdict on a number or the position of an option; points are judged by who wrote them."""
        truth, answer = self.truth, self.drill.answer
        if truth is None or given is None:
            return "yours to judge"
        if isinstance(answer, Choice):
            return "right" if given == truth else "wrong"
        if given <= 0 or truth <= 0:
            return "right" if given == truth else "wrong"
        off = max(given / truth, truth / given)
        near = answer.near if isinstance(answer, Number) else NEAR
        return "right" if off <= near else "right order" if off <= max(ORDER, near) else "wrong"


def pose(drill: Drill, sources: Sequence[Source]) -> Posed | None:
    """The drill with the figures of the first of these runs that has them: of the experiments in the drill's order,
    and within one in the order given. None when none has."""
    fitting = sorted(
        (source for source in sources if source.experiment in drill.runs), key=lambda s: drill.runs.index(s.experiment)
    )
    for source in fitting:
        values = drill.take(source)
        if values is not None and _filled(drill, values):
            return Posed(drill, source, values)
    return None


def _filled(drill: Drill, values: Values) -> bool:
    answer = drill.answer
    texts = [drill.ask, drill.formula, drill.why]
    texts += list(answer.options) if isinstance(answer, Choice) else []
    texts += list(answer.points) if isinstance(answer, Points) else []
    named = {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}
    named |= {answer.key} if isinstance(answer, Number) else set()
    return all(values.get(name) is not None for name in named)


def said(text: str, values: Mapping[str, Any]) -> str:
    """The text with each {name} written by its unit."""
    return "".join(
        before + ("" if name is None else written(name, values[name])) for before, name, _, _ in Formatter().parse(text)
    )


def written(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_usd"):
        return f"${value:,.2f}" if value >= 0.095 else f"${value:.2g}"
    if name.endswith("_n") or (isinstance(value, int) and not name.endswith("_bytes")):
        return format_count(value)
    return format_metric(name, float(value))
