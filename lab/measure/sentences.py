"""A verdict in two to four sentences: what was gained, why, what it costs at low load, and what is doubtful.

Every figure comes from the comparisons (judgement.py), the saturation runs and the summaries; nothing is computed here
but which of them to tell. Numbers are written by words.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lab.measure.compare import Effect
from lab.measure.judgement import TRIVIAL_FRACTION, CellResult, Comparison, Saturation, same, saturation_rps
from lab.measure.percentile import needed
from lab.measure.phrases import a_delay, delay_us, interval_phrase, latency_phrase
from lab.measure.samples import measure_of
from lab.measure.sharing import sharing
from lab.measure.words import (
    format_fraction,
    format_metric,
    format_rate,
    format_ratio,
    format_seconds,
    join,
    level_label,
    metric_label,
    objective_label,
    plural,
)
from lab.spec import ClosedLoop, Experiment, Judge, Slo, plain

BATCHING = "model.batching"
AS_GOOD = 0.95
"""A simpler level that reaches this share of the best is the one to name."""
BEYOND, KEPT_UP = 1.1, 0.97
LATENCIES = ("latency_p50_s", "latency_p99_s")


def text(
    experiment: Experiment,
    judge: Judge,
    cells: Sequence[CellResult],
    found: Sequence[Comparison],
    holds: bool | None,
    saturation: Saturation,
) -> str:
    """The whole verdict."""
    story = _Story(experiment, judge, found, saturation)
    unmeasured = sum(not cell.blocks for cell in cells)
    if not found:
        parts = ["Not decided: no level was measured at the same load as the baseline."]
    elif holds:
        best = story.headline()
        parts = [story.gain(best), story.why(gained=True), story.cost(besides=best)]
    elif holds is False:
        parts = [story.no_gain(), story.why(gained=False), story.cost(besides=None)]
    else:
        parts = [story.undecided(complete=not unmeasured), story.cost(besides=found[0] if unmeasured else None)]
    parts.append(story.doubts(unmeasured=unmeasured, of=len(cells)))
    return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class _Story:
    experiment: Experiment
    judge: Judge
    found: Sequence[Comparison]
    saturation: Saturation

    # --- the parts ---------------------------------------------------------------------------------------------

    def headline(self) -> Comparison:
        """At the highest load where a level passes: the first level (they are declared simplest first) that is as
        good as the best."""
        passing = [c for c in self.found if c.answer == "yes"]
        return self._best(self._at_highest_load(passing))

    def gain(self, best: Comparison) -> str:
        effect = best.effects[self.judge.primary]
        load = f"; mind the {effect.reason}" if effect.reason else ""
        return f"{self._where(best)} {self._subject(best.level)} {self._does(effect)}{load}{self._saturation(best)}."

    def no_gain(self) -> str:
        name = "Batching" if self.judge.factor == BATCHING else f"No level of {self.judge.factor}"
        verb = "does not pay here" if self.judge.factor == BATCHING else "pays"
        top = self._at_highest_load(self.found)
        best = self._best(top)
        if self._nothing_anywhere():
            return f"{self._nothing_anywhere()}{self._saturation(best)}."
        return f"{name} {verb}: {self._little_to_tell(best) or self._best_of(top, best)}{self._saturation(best)}."

    def _best_of(self, top: Sequence[Comparison], best: Comparison) -> str:
        where, does = self._where(best), self._does(best.effects[self.judge.primary])
        where = where[0].lower() + where[1:]
        if len(top) == 1:
            return f"{where} {self._subject(best.level)} {does}"
        return f"{where} the best of {len(top)} settings, {self._subject(best.level)}, {does}"

    def _nothing_anywhere(self) -> str:
        """An objective that nothing met says nothing about the levels."""
        effects = [c.effects[self.judge.primary] for c in self.found]
        if self.judge.primary != "goodput_rps" or any(effect.a or effect.b for effect in effects):
            return ""
        low = self._at_lowest_load()[0]
        median = next((s.latency_p50_s for s in low.base.summaries if s.latency_p50_s), None)
        already = f": at {self._load(low)} the median is {format_seconds(median)} already" if median else ""
        return f"The objective is out of reach, nothing is served within {self._slo()} at any load{already}"

    def _little_to_tell(self, best: Comparison) -> str:
        """Where goodput is close to all or to nothing on both sides, its ratio is not what to tell."""
        if self.judge.primary != "goodput_rps":
            return ""
        effect, offered = best.effects["goodput_rps"], best.offered_rps or 0.0
        if effect.a is not None and effect.a >= AS_GOOD * offered > 0:
            share = format_fraction(min(effect.a / offered, 1.0))
            return (
                f"even at the highest load, {self._load(best)}, {self._baseline()} serves {share} of what is asked "
                f"within {self._slo()}, so there is little to gain"
            )
        if max(effect.a or 0.0, effect.b or 0.0) < TRIVIAL_FRACTION * offered:
            return f"at {self._load(best)} hardly anything is served within {self._slo()}, with it or without"
        return ""

    def why(self, *, gained: bool) -> str:
        """What a request costs alone and in company, from Triton's own count of compute by batch size."""
        if self.judge.factor != BATCHING:
            return ""
        top = self._at_highest_load(self.found)
        return sharing(top[0].base, [c.cell for c in top]).sentence(gained=gained) if top else ""

    def cost(self, *, besides: Comparison | None) -> str:
        """What the level, or the longest delay, does to latency at the lowest load."""
        low = self._at_lowest_load()
        if not low or (besides is not None and same(low[0].at, besides.at)):
            return ""
        if self.judge.factor == BATCHING:
            chosen = max(low, key=lambda c: delay_us(c.level))
        else:
            chosen = next((c for c in low if besides and same(c.level, besides.level)), low[-1])
        effects = [chosen.effects[name] for name in LATENCIES if name in chosen.effects]
        if not effects or all(effect.verdict == "not comparable" for effect in effects):
            return ""
        primary = chosen.effects[self.judge.primary]
        worse = any(effect.verdict == "higher" for effect in effects)
        nothing = ", and gains nothing" if worse and chosen.answer != "yes" and primary.verdict != "lower" else ""
        untold = "".join(f"; {effect.reason}" for effect in effects if effect.verdict == "not comparable")
        delay = delay_us(chosen.level)
        subject = a_delay(delay) if delay else self._subject(chosen.level)
        return f"{self._where(chosen)} {subject} {latency_phrase(effects)}{nothing}{untold}."

    def undecided(self, *, complete: bool) -> str:
        primary = self.judge.primary
        opening = "Not decided." if complete else "Not decided yet."
        blocked = [c for c in self.found if c.effects[primary].verdict == "not comparable"]
        open_ = [c for c in self.found if c.answer == "open" and c not in blocked]
        if open_:
            best = self._best(self._at_highest_load(open_))
            effect = best.effects[primary]
            return (
                f"{opening} {self._where(best)} {self._subject(best.level)} {self._does(effect)}: the interval holds "
                f"both a gain and none{self._saturation(best)}.{self._more_repeats(best, effect)}"
            )
        if blocked:
            first = self._at_highest_load(blocked)[0]
            if first.left_out and not first.repeats:
                problem = first.left_out[0]
                return f"{opening} {self._where(first)}: {problem.text} {problem.remedy}"
            more = _more_samples(first, primary, self.experiment.slo)
            return f"{opening} {self._where(first)}: {first.effects[primary].reason}.{more}"
        best = self._best(self._at_highest_load(self.found))
        return f"{opening} {self._where(best)} {self._subject(best.level)} {self._does(best.effects[primary])}."

    def doubts(self, *, unmeasured: int, of: int) -> str:
        parts = []
        if unmeasured:
            parts.append(f"So far {of - unmeasured} of {plural(of, 'cell')} are measured.")
        partly = [c for c in self.found if c.left_out]
        told = all(c.effects[self.judge.primary].verdict == "not comparable" for c in self.found)
        if partly and not told:
            first = partly[0]
            what = "one or more repeats" if first.repeats else "this load"
            more = f" The same goes for {plural(len(partly) - 1, 'other comparison')}." if len(partly) > 1 else ""
            parts.append(f"{self._where(first)} {what} had to be left out: {first.left_out[0].text}{more}")
        parts.append(self._kept_up())
        if self.found and max(c.repeats for c in self.found) == 1:
            parts.append("One repeat only: take the figures as rough.")
        return " ".join(part for part in parts if part)

    def _kept_up(self) -> str:
        """A server that serves all of 120 % of its saturation was not at saturation when that was measured."""
        for c in self.found:
            beyond = [x for path, x in c.at.items() if path.endswith("saturation_fraction") and x >= BEYOND]
            served = [s.throughput_rps / s.offered_rps for s in c.base.summaries if s.offered_rps and s.throughput_rps]
            if beyond and served and min(served) >= KEPT_UP:
                return (
                    f"But {self._baseline()} kept up with {format_fraction(beyond[0])} of its measured saturation, "
                    "so that was measured too low: run it again on a quiet machine."
                )
        return ""

    # --- the words for them ------------------------------------------------------------------------------------

    def _does(self, effect: Effect) -> str:
        """ "serves 2.6× as many requests within 20 ms (2.4 to 2.8×)"."""
        metric = effect.metric
        ratio, interval = format_ratio(effect.ratio), interval_phrase(effect)
        if metric in ("goodput_rps", "throughput_rps"):
            slo = f" within {self._slo()}" if metric == "goodput_rps" else ""
            if effect.ratio is None or effect.ratio > 20:
                of_base = format_rate(effect.a) if effect.a else "none"
                return f"serves {format_rate(effect.b)}{slo} where {self._baseline()} serves {of_base}"
            return f"serves {ratio} as many requests{slo}{interval}"
        verb = {"higher": "raises", "lower": "lowers"}.get(effect.verdict, "moves")
        a, b = (format_metric(metric, value) for value in (effect.a, effect.b))
        return f"{verb} {metric_label(metric)} from {a} to {b}, {ratio}{interval}"

    def _saturation(self, c: Comparison) -> str:
        """ ", and saturates at 4,100 req/s instead of 1,600 req/s (2.6×)"; "" when it was not measured."""
        base, other = (saturation_rps(self.saturation, level) for level in (self.judge.baseline, c.level))
        if not base or not other:
            return ""
        ratio = format_ratio(other / base)
        return f"; it saturates at {format_rate(other)}, {self._baseline()} at {format_rate(base)} ({ratio})"

    def _more_repeats(self, c: Comparison, effect: Effect) -> str:
        """How many repeats would narrow the interval to where it decides: its width falls with their square root."""
        if not effect.ratio or effect.ci_low is None or effect.ci_high is None or not effect.a:
            return " More repeats would tell."
        half = (effect.ci_high - effect.ci_low) / 2
        least = self.judge.min_effect_fraction
        gain = effect.ratio - 1 if self.judge.expect == "higher" else 1 - effect.ratio
        wanted = max(abs(gain - least), least / 2)
        repeats = -(-c.repeats * (half / wanted) ** 2 // 1)
        if repeats > 10 * c.repeats:
            return " More than ten times the repeats would be needed to tell."
        return f" About {plural(max(int(repeats), c.repeats + 1), 'repeat')} would tell."

    def _where(self, c: Comparison) -> str:
        return f"{'With' if self._closed() else 'At'} {self._load(c)}"

    def _load(self, c: Comparison) -> str:
        """ "1,900 req/s (120 % of saturation)", "8 in flight", "150 req/s (bf16)"."""
        labels = [level_label(path, level) for path, level in c.at.items()]
        if self._closed():
            users = getattr(self.experiment.workload.arrival, "concurrency", 1)
            return (
                ", ".join(labels)
                if any("in flight" in label for label in labels)
                else ", ".join([f"{users} in flight", *labels])
            )
        rest = [label for path, label in zip(c.at, labels, strict=True) if not path.endswith("rate_rps")]
        return f"{format_rate(c.offered_rps)}{f' ({join(rest)})' if rest else ''}"

    def _slo(self) -> str:
        return objective_label(self.experiment.slo)

    def _closed(self) -> bool:
        return isinstance(self.experiment.workload.arrival, ClosedLoop)

    def _subject(self, level: Any) -> str:
        if self.judge.factor == BATCHING and isinstance(level, dict):
            delay = delay_us(level)
            return f"batching with {a_delay(delay)}" if delay else "batching without a delay"
        levels = self.experiment.factors.get(self.judge.factor, ())
        return f"the server with {level_label(self.judge.factor, level, among=levels)}"

    def _baseline(self) -> str:
        if self.judge.factor == BATCHING and self.judge.baseline is None:
            return "the unbatched model"
        return level_label(self.judge.factor, plain(self.judge.baseline))

    # --- which of them -------------------------------------------------------------------------------------------

    def _best(self, among: Sequence[Comparison]) -> Comparison:
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
    extreme = pick(among, key=lambda c: c.offered_rps or 0.0)
    return [c for c in among if same(c.at, extreme.at)]


def _more_samples(c: Comparison, metric: str, slo: Slo) -> str:
    """How much longer to measure when a percentile lacks successes; "" when that is not what is missing."""
    measure = measure_of(metric, slo)
    has = min(sum(s.latency_n for s in side) for side in (c.base.summaries, c.cell.summaries))
    if measure.kind != "percentile" or not 0 < has < needed(measure.p):
        return ""
    return f" Measure about {math.ceil(needed(measure.p) / has)} times as long."
