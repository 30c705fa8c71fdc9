"""A bet placed before a run and scored after it by the measured interval: which way, and by how much.

A prediction that was written down turns reading a chart into learning from it. A bet is kept in the run's own document,
so it was there before anything was measured. A size stands for a span: 2× is all that is nearer to 2× than to the sizes
beside it. Scoring is by points and not by a Brier score, since nobody is asked how sure they are.

Pure; reads the document of a run (lab.run.results) and its declaration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from lab.errors import InputError
from lab.measure.start_words import start_label
from lab.measure.words import format_range, format_ratio, plural
from lab.show.grid import ALONE, Grid

SAME = "about the same"
DIRECTIONS = ("more", SAME, "fewer")
SIZES = ("1.2×", "1.5×", "2×", "3×", "5×", "10×")
WIDE = 3.0
"""An interval whose ends are further apart than this factor tells no size."""
TOLD_SAME = 1.5
"""An interval around 1 that is no wider than this factor tells that it is about the same."""

Outcome = Literal["right", "right direction", "wrong", "can't tell"]
POINTS: dict[Outcome, float | None] = {"right": 1.0, "right direction": 0.5, "wrong": 0.0, "can't tell": None}
EXPLAINED = (
    "One point when the measured 95 % interval reaches into the size that you named (a size stands for all that is "
    "nearer to it than to its neighbours), half a point for the direction alone, none for another direction. What the "
    "lab itself can't tell is not counted. Only a bet that was placed before its run began counts."
)

ASKED: dict[str, Any] = {"llm_batching": "continuous", "multi_model": 5}
"""The level that an experiment's bet is about; that of any other is the best of its levels."""


@dataclass(frozen=True)
class Bet:
    """`size` is one of SIZES, None with "about the same"."""

    direction: str
    size: str | None = None
    placed_utc: str = ""

    @classmethod
    def read(cls, text: str) -> Bet:
        """From "more:2x", "fewer:1.5x" or "same", placed now; InputError for anything else."""
        direction, _, size = text.replace("x", "×").partition(":")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        if direction in ("same", SAME) and not size:
            return cls(SAME, None, now)
        if direction in ("more", "fewer") and size in SIZES:
            return cls(direction, size, now)
        sizes = ", ".join(size.replace("×", "x") for size in SIZES)
        raise InputError(f"bet {text!r}: allowed: same, or more:SIZE or fewer:SIZE with SIZE one of {sizes}")

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Bet | None:
        """The bet in a run's run.json; None where nobody placed one, or what stands there is none."""
        kept = document.get("bet")
        if not isinstance(kept, dict) or kept.get("direction") not in DIRECTIONS:
            return None
        if (kept.get("size") in SIZES) == (kept["direction"] == SAME):
            return None
        return cls(kept["direction"], kept.get("size"), str(kept.get("placed_utc", "")))

    def __str__(self) -> str:
        """As `read` takes it."""
        return "same" if self.size is None else f"{self.direction}:{self.size.replace('×', 'x')}"

    @property
    def words(self) -> str:
        return self.direction if self.size is None else f"{self.direction}, {self.size}"

    @property
    def span(self) -> tuple[float, float]:
        """The ratios that the bet stands for."""
        sizes = [float(size[:-1]) for size in SIZES]
        edges = [math.sqrt(a * b) for a, b in zip([1.0, *sizes], [*sizes, math.inf], strict=True)]
        if self.size is None:
            return 1 / edges[0], edges[0]
        place = SIZES.index(self.size)
        low, high = edges[place], edges[place + 1]
        return (low, high) if self.direction == "more" else (1 / high, 1 / low)


@dataclass(frozen=True)
class Scored:
    """`over` is the guessed size ÷ the measured one, both as factors above 1, where the direction was right."""

    outcome: Outcome
    text: str
    over: float | None = None


def judged(document: Mapping[str, Any], declared: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """(the effect that a bet on this run is about, where it is): on the primary metric, at the highest load where
    something could be compared. (None, …) when nothing could."""
    judge = declared.get("judge")
    if not judge:
        return None, ""
    if document.get("cold"):
        return _furthest(document, judge)
    grid = Grid.of(dict(document), judge["factor"], judge["baseline"])
    if not grid.others():
        return None, ""
    comparable = grid.comparable(dict(document), judge["primary"])
    load = grid.highest(comparable or grid.loads)
    effects = {name: grid.effect(dict(document), name, load, judge["primary"]) for name in grid.others()}
    level = next((name for name in effects if grid.raw(name) == ASKED.get(declared["id"], grid)), None)
    if level is None:
        level = max(comparable.get(load, grid.others()), key=lambda name: _size(effects[name]))
    return effects[level], level if load == ALONE else f"{level} at {load}"


def _furthest(document: Mapping[str, Any], judge: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Of a run of starts, which has no blocks: of the verdict's effects the one furthest from the plain start."""
    every = [e for e in document["verdict"]["effects"] if e["metric"] == judge["primary"] and e["ratio"]]
    best = max(every, key=lambda effect: abs(math.log(effect["ratio"])), default=None)
    return best, "" if best is None else start_label(best["level"])


def _size(effect: Mapping[str, Any] | None) -> float:
    if effect is None or effect["verdict"] == "not comparable":
        return 0.0
    ratio = effect["ratio"]
    return float(ratio) if ratio is not None else math.inf if effect["verdict"] == "higher" else 0.0


def score(bet: Bet, effect: Mapping[str, Any] | None, where: str = "") -> Scored:
    """The bet against what was measured."""
    found = None if effect is None else _DIRECTION.get(effect["verdict"])
    if effect is None or found is None:
        reason = (effect or {}).get("reason") or "the run has no comparison at this load"
        return Scored("can't tell", f"You bet on {bet.words}; that stays open: {reason.rstrip('.')}.")
    outcome = _outcome(bet, found, effect)
    ratio, over = effect["ratio"], None
    if outcome in ("right", "right direction") and ratio and bet.size is not None:
        over = float(bet.size[:-1]) / max(ratio, 1 / ratio)
    at = f" with {where}" if where else ""
    said = f"You bet on {bet.words}; measured{at}: {_measured(found, effect)}. {_VERDICT[outcome]}"
    if outcome == "right direction" and over is not None and not _wide(effect):
        said += f", {'over' if over > 1 else 'under'}estimated by a factor of {max(over, 1 / over):.1f}"
    elif outcome == "right direction":
        said += ", and its size cannot be told"
    return Scored(outcome, f"{said}.", over)


_DIRECTION = {"higher": "more", "lower": "fewer", "no detectable difference": SAME}
_VERDICT: dict[Outcome, str] = {
    "right": "Right",
    "right direction": "Right direction",
    "wrong": "Wrong",
    "can't tell": "The lab can't tell: the interval allows for it, and for no difference",
}


def _outcome(bet: Bet, found: str, effect: Mapping[str, Any]) -> Outcome:
    low, high = effect.get("ci_low"), effect.get("ci_high")
    if low is None or high is None:  # from nothing to something: a direction, and no ratio
        if found != SAME:
            return "right direction" if bet.direction == found else "wrong"
        return "right" if bet.direction == SAME else "wrong"
    first, last = bet.span
    reached = low <= last and high >= first
    if found == SAME:
        if not reached:
            return "wrong"
        return "right" if bet.direction == SAME and high <= TOLD_SAME * low else "can't tell"
    if bet.direction != found:
        return "wrong"
    return "right" if reached and not _wide(effect) else "right direction"


def _wide(effect: Mapping[str, Any]) -> bool:
    low, high = effect.get("ci_low"), effect.get("ci_high")
    return low is None or high is None or high > WIDE * low


def _measured(found: str, effect: Mapping[str, Any]) -> str:
    ratio, low, high = effect["ratio"], effect.get("ci_low"), effect.get("ci_high")
    if ratio is None:
        return found
    between = f" ({format_range(low, high, format_ratio)})" if low is not None and high is not None else ""
    return f"{found}, {format_ratio(ratio)}{between}"


def tally(scored: Sequence[Scored]) -> str:
    """The running score in words: "2.5 of 4 points: 2 right, 1 right direction, 1 wrong; 1 more could not be told.";
    "" of no bets."""
    if not scored:
        return ""
    points = [POINTS[one.outcome] for one in scored]
    counted = [p for p in points if p is not None]
    untold = len(points) - len(counted)
    if not counted:
        return f"{plural(untold, 'bet')} that the lab could not tell."
    each = [
        f"{sum(one.outcome == outcome for one in scored)} {outcome}"
        for outcome in ("right", "right direction", "wrong")
        if any(one.outcome == outcome for one in scored)
    ]
    text = f"{sum(counted):g} of {plural(len(counted), 'point')}: {', '.join(each)}"
    text += f"; {untold} more could not be told." if untold else "."
    over = [one.over for one in scored if one.over]
    if len(over) > 1:
        mean = math.exp(sum(map(math.log, over)) / len(over))
        way = "too much" if mean > 1 else "too little"
        text += f" Where the direction was right, the size was {max(mean, 1 / mean):.1f}× {way} on average."
    return text
