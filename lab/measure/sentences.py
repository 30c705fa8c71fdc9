"""A verdict in two to four sentences: what was gained, why, what it costs at low load, and what is doubtful.

Every figure comes from the comparisons (judgement.py), the saturation runs and the summaries; nothing is computed here
but which of them to tell. telling.py has the words, reasons.py and doubts.py the sentences about why
and how surely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure.doubts import doubts, more_repeats, more_samples
from lab.measure.formats import QualityOf
from lab.measure.judgement import TRIVIAL_FRACTION, CellResult, Comparison, Saturation, by_load
from lab.measure.levels import same, unique
from lab.measure.phrases import a_delay, delay_us, latency_phrase
from lab.measure.reach import served_and_most, share, trusted, unreached
from lab.measure.reasons import why
from lab.measure.samples import is_time
from lab.measure.telling import BATCHING, NAMED_BY_THEMSELVES, Telling
from lab.measure.words import format_fraction, format_metric, format_seconds, join, plural
from lab.spec import Experiment, Judge

MOST_NAMED = 3
"""Loads that a sentence lists; more are counted."""
AS_GOOD = 0.95
"""A simpler level that reaches this share of the best is the one to name."""
TOLD_AT_LOW_LOAD = ("throughput_rps", "output_tokens_per_s")
"""Rates that say something there too; what is served in time is then mostly all."""


def text(
    experiment: Experiment,
    judge: Judge,
    cells: Sequence[CellResult],
    found: Sequence[Comparison],
    holds: bool | None,
    saturation: Saturation,
    *,
    over: bool = False,
    quality: QualityOf | None = None,
) -> tuple[str, Comparison | None]:
    """The whole verdict, and the comparison that it begins with; `over`: what is not measured now never will be.
    `quality`: of a level, where levels answer differently; then no speed is told without it and the memory."""
    say = Telling(experiment, judge, trusted(experiment, judge, found, saturation), quality)
    story = _Story(say, found)
    unmeasured = sum(not cell.blocks for cell in cells)
    short = unreached(experiment, found) if over or not unmeasured else []
    first = story.headline(holds) if found else None
    if first is None:
        parts = ["Not decided: no level was measured at the same load as the baseline."]
    elif short:
        first = story.best(short)
        parts = [story.fell_short(first, saturation), story.cost(besides=first)]
    elif holds:
        parts = [story.gain(first), story.why(gained=True), story.cost(besides=first), story.elsewhere(first)]
        parts.append(story.scope())
    elif holds is False:
        parts = [story.no_gain(first), story.why(gained=False), story.cost(besides=None)]
    else:
        parts = [
            story.undecided(first, complete=over or not unmeasured),
            story.cost(besides=found[0] if unmeasured else None),
        ]
    parts.append(doubts(say, found, unmeasured=unmeasured, of=len(cells), over=over))
    return " ".join(part for part in parts if part), first


@dataclass(frozen=True)
class _Story:
    say: Telling
    found: Sequence[Comparison]

    @property
    def judge(self) -> Judge:
        return self.say.judge

    # --- the parts ---------------------------------------------------------------------------------------------

    def headline(self, holds: bool | None) -> Comparison:
        """The comparison that is told: at the highest load where a level passes, or else where one might, or could not
        be compared, the first level (they are declared simplest first) that is as good as the best."""
        open_, blocked = self._open(), self._blocked()
        if holds:
            among = [c for c in self.found if c.answer == "yes"]
        elif holds is None and not open_ and blocked:
            return self._at_highest_load(blocked)[0]
        else:
            among = list(self.found) if holds is False or not open_ else open_
        return self.best(self._at_highest_load(among))

    def _blocked(self) -> list[Comparison]:
        return [c for c in self.found if c.effects[self.judge.primary].verdict == "not comparable"]

    def _open(self) -> list[Comparison]:
        return [
            c for c in self.found if c.answer == "open" and c.effects[self.judge.primary].verdict != "not comparable"
        ]

    def gain(self, best: Comparison) -> str:
        effect = best.effects[self.judge.primary]
        load = f"; mind the {effect.reason}" if effect.reason else ""
        return f"{self._told(best)}{load}{self.say.price(best)}{self.say.saturates(best)}."

    def scope(self) -> str:
        """At which of several loads some level passes: "It holds at 1 of 2 loads: not at 10 % of saturation."."""
        loads = by_load(self.found)
        if len(loads) < 2:
            return ""
        what = "load" if all(path.startswith("workload.") for at, _ in loads for path in at) else "setting"
        holding = sum(answer == "yes" for _, answer in loads)
        if holding == len(loads):
            return f"It holds at each of the {plural(len(loads), what)}."
        rest = []
        told = [(at, "worse" if there == "no" and self._is_worse(at) else there) for at, there in loads]
        for answer, words in (("no", "not"), ("worse", "worse"), ("open", "undecided")):
            named = [self.say.at(at) for at, there in told if there == answer]
            if named:
                rest.append(f"{words} at {join(named) if len(named) <= MOST_NAMED else f'{len(named)} others'}")
        return f"It holds at {holding} of {plural(len(loads), what)}: {', and '.join(rest)}."

    def _is_worse(self, at: Mapping[str, Any]) -> bool:
        """Whether every level moves the primary metric the wrong way there."""
        wrong = "lower" if self.judge.expect == "higher" else "higher"
        return all(c.effects[self.judge.primary].verdict == wrong for c in self.found if same(c.at, at))

    def no_gain(self, best: Comparison) -> str:
        top = self._at_highest_load(self.found)
        saturates = self.say.saturates(best)
        if nothing := self._nothing_anywhere():
            return f"{nothing}{saturates}."
        if self.judge.factor == BATCHING:
            name = "Batching does not pay here"
        elif len(unique(c.level for c in self.found)) == 1:
            subject = self.say.subject(best.level)
            named = self.judge.factor in NAMED_BY_THEMSELVES  # a format is written as it is
            name = f"{subject if named else subject[0].upper() + subject[1:]} gains nothing here"
        else:
            name = "No other setting pays"
        return f"{name}: {self._little_to_tell(best) or self._best_of(top, best)}{self.say.price(best)}{saturates}."

    def _told(self, c: Comparison) -> str:
        return f"{self.say.where(c)} {self.say.subject(c.level)} {self.say.does(c.effects[self.judge.primary])}"

    def _best_of(self, top: Sequence[Comparison], best: Comparison) -> str:
        where, does = self.say.where(best), self.say.does(best.effects[self.judge.primary])
        where = where[0].lower() + where[1:]
        if len(top) == 1:
            return f"{where} {self.say.subject(best.level)} {does}"
        return f"{where} the best of {len(top)} settings, {self.say.subject(best.level)}, {does}"

    def _nothing_anywhere(self) -> str:
        """An objective that nothing met says nothing about the levels."""
        # By the summaries: a load that could not be compared may well have been served in time.
        served = (s.goodput_rps for c in self.found for side in (c.base, c.cell) for s in side.summaries)
        if self.judge.primary != "goodput_rps" or any(served):
            return ""
        low = self._at_lowest_load()[0]
        return f"The objective is out of reach, nothing is served within {self.say.slo} at any load{self._already(low)}"

    def _already(self, low: Comparison) -> str:
        """Which limit is exceeded even by the median at the lowest load; "" when none is."""
        slo = self.say.experiment.slo
        for limit, name, what in (
            (slo.latency_s, "latency_p50_s", "median"),
            (slo.ttft_s, "ttft_p50_s", "median time to the first token"),
            (slo.itl_s, "itl_p50_s", "median time between tokens"),
        ):
            median = next((getattr(s, name) for s in low.base.summaries if getattr(s, name)), None)
            if limit is not None and median is not None and median > limit:
                return f": at {self.say.load(low)} the {what} is {format_seconds(median)} already"
        return ""

    def _little_to_tell(self, best: Comparison) -> str:
        """Where goodput is close to all or to nothing on both sides, its ratio is not what to tell."""
        if self.judge.primary != "goodput_rps":
            return ""
        effect, offered = best.effects["goodput_rps"], best.offered_rps or 0.0
        if effect.a is not None and effect.a >= AS_GOOD * offered > 0:
            share = format_fraction(min(effect.a / offered, 1.0))
            return (
                f"even at the highest load, {self.say.load(best)}, {self.say.baseline} serves {share} of what is asked "
                f"within {self.say.slo}, so there is little to gain"
            )
        if max(effect.a or 0.0, effect.b or 0.0) < TRIVIAL_FRACTION * offered:
            return f"at {self.say.load(best)} hardly anything is served within {self.say.slo}, with it or without"
        return ""

    def why(self, *, gained: bool) -> str:
        return why(self.judge, self._at_highest_load(self.found), self.say.saturation, gained=gained)

    def cost(self, *, besides: Comparison | None) -> str:
        """What the level, or the longest delay, does at the lowest load: to what is timed, and to its output."""
        low = self._at_lowest_load()
        if not low or (besides is not None and same(low[0].at, besides.at)):
            return ""
        if self.judge.factor == BATCHING:
            chosen = max(low, key=lambda c: delay_us(c.level))
        else:
            chosen = next((c for c in low if besides and same(c.level, besides.level)), low[-1])
        effects = [effect for name, effect in chosen.effects.items() if is_time(name)]
        if not effects or all(effect.verdict == "not comparable" for effect in effects):
            return ""
        primary = chosen.effects[self.judge.primary]
        verdicts = {effect.verdict for effect in effects}
        only_worse = "higher" in verdicts and "lower" not in verdicts
        nothing = ", and gains nothing" if only_worse and chosen.answer == "no" and primary.verdict != "lower" else ""
        untold = "".join(f"; {effect.reason}" for effect in effects if effect.verdict == "not comparable")
        delay = delay_us(chosen.level)
        subject = a_delay(delay) if delay else self.say.subject(chosen.level)
        rate = f"{self.say.does(primary)}, " if primary.metric in TOLD_AT_LOW_LOAD and primary.ratio else ""
        return f"{self.say.where(chosen)} {subject} {rate}{latency_phrase(effects)}{nothing}{untold}."

    def elsewhere(self, told: Comparison) -> str:
        """The best level at the lowest load, where levels answer differently and it is another than the one told."""
        low = [c for c in self._at_lowest_load() if c.effects[self.judge.primary].verdict != "not comparable"]
        if self.say.quality is None or not low or same(low[0].at, told.at):
            return ""
        best = self.best(low)
        return "" if same(best.level, told.level) else f"{self._told(best)}{self.say.price(best)}."

    def fell_short(self, c: Comparison, saturation: Saturation) -> str:
        """No load exceeded saturation, by what the baseline served; and what was found there all the same."""
        most = served_and_most(c, saturation, self.judge.baseline)
        served = f"{self.say.baseline} kept up with {format_fraction(share(c))} of its measured saturation"
        if most is not None:
            field, rate, limit = most
            served = (
                f"{self.say.baseline} served {format_metric(field, rate)}, and {format_metric(field, limit)} was "
                "measured as the most it can"
            )
        effect = c.effects[self.judge.primary]
        there = "" if effect.ratio is None else f" There {self.say.subject(c.level)} {self.say.does(effect)}."
        return (
            f"Not decided: no load reached saturation. {self.say.where(c)} {served}, so saturation was measured too "
            f"low: run it again on a quiet machine.{there}"
        )

    def undecided(self, first: Comparison, *, complete: bool) -> str:
        primary = self.judge.primary
        opening = "Not decided." if complete else "Not decided yet."
        if self._open():
            effect = first.effects[primary]
            return (
                f"{opening} {self._told(first)}{self.say.price(first)}: the interval holds both a gain and none"
                f"{self.say.saturates(first)}.{more_repeats(first, effect, self.judge)}"
            )
        if self._blocked():
            where = self.say.where(first).rstrip(",")
            if first.left_out and not first.repeats:
                problem = first.left_out[0]
                return f"{opening} {where}: {problem.text} {problem.remedy}"
            more = more_samples(first, primary, self.say.experiment.slo)
            return f"{opening} {where}: {first.effects[primary].reason}.{more}"
        return f"{opening} {self._told(first)}{self.say.price(first)}."

    # --- which of them -------------------------------------------------------------------------------------------

    def best(self, among: Sequence[Comparison]) -> Comparison:
        up = self.judge.expect == "higher"
        values = [c.effects[self.judge.primary].b or 0.0 for c in among]
        if up:
            return next(c for c, value in zip(among, values, strict=True) if value >= AS_GOOD * max(values))
        return next(c for c, value in zip(among, values, strict=True) if value * AS_GOOD <= min(values))

    def _at_highest_load(self, among: Sequence[Comparison]) -> list[Comparison]:
        return _at_extreme(among, max)

    def _at_lowest_load(self) -> list[Comparison]:
        return _at_extreme(self.found, min)


def _at_extreme(among: Sequence[Comparison], pick: Callable[..., Comparison]) -> list[Comparison]:
    if not among:
        return []
    extreme = pick(among, key=_load)
    return [c for c in among if same(c.at, extreme.at)]


def _load(c: Comparison) -> tuple[float, ...]:
    """By the levels of the other factors, as far as they are sizes (a rate, users, tokens), in the order in which the
    experiment names them: what arrives in a closed loop is an outcome and says little."""
    return (*(_size(level) for level in c.at.values()), c.offered_rps or 0.0)


def _size(level: Any) -> float:
    if isinstance(level, list | tuple) and level:
        return sum(_size(part) for part in level) / len(level)
    return float(level) if isinstance(level, int | float) else 0.0
