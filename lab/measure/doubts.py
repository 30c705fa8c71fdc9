"""What keeps a verdict from being certain, and how much more measuring would settle it, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lab.measure import power
from lab.measure.compare import Effect
from lab.measure.judgement import Comparison
from lab.measure.percentile import needed
from lab.measure.reach import kept_up, share, unreached
from lab.measure.samples import is_compared_by_sample, measure_of
from lab.measure.telling import Telling
from lab.measure.words import format_fraction, plural
from lab.spec import Judge, Slo

IN_QUICK = {
    "Warm up longer, measure longer": "Run it without --quick",
    "Measure longer": "Run it without --quick",
    "measure longer": "run it without --quick",
}
"""How long a quick run warms up and measures is what --quick says."""


def when_quick(text: str) -> str:
    """A remedy as it reads of a quick run."""
    for longer, whole in IN_QUICK.items():
        text = text.replace(longer, whole)
    return text


def doubts(say: Telling, found: Sequence[Comparison], *, unmeasured: int, of: int, over: bool) -> str:
    """Cells that are missing, repeats that were left out, a saturation that was none, a single repeat."""
    parts = []
    if unmeasured:
        measured = of - unmeasured
        verb = "is" if measured == 1 else "are"
        parts.append(f"{'Only' if over else 'So far'} {measured} of {plural(of, 'cell')} {verb} measured.")
    partly = [c for c in found if c.left_out]
    told = all(c.effects[say.judge.primary].verdict == "not comparable" for c in found)
    if partly and not told:
        first = partly[0]
        what = "one or more repeats" if first.repeats else "this load"
        more = f" The same goes for {plural(len(partly) - 1, 'other comparison')}." if len(partly) > 1 else ""
        parts.append(f"{say.where(first)} {what} had to be left out: {first.left_out[0].text}{more}")
    parts.append(_could_have_told(say, found))
    parts.append(_kept_up(say, found))
    if found and max(c.repeats for c in found) == 1:
        parts.append("One repeat only: take the figures as rough.")
    return " ".join(part for part in parts if part)


def _could_have_told(say: Telling, found: Sequence[Comparison]) -> str:
    """Where no level can be told from the baseline anywhere: what would have shown, and how long 5 % would take."""
    effects = [c.effects[say.judge.primary] for c in found]
    if not found or any(effect.verdict != "no detectable difference" for effect in effects):
        return ""
    seconds = power.measured_s(*(side.blocks for c in found for side in (c.base, c.cell))) / len(found)
    said = [(power.detectable_fraction(effect) or 0.0, power.told(effect, seconds)) for effect in effects]
    best = min((one for one in said if one[1]), default=None)
    return "" if best is None else f"{best[1][0].upper()}{best[1][1:]}."


def more_repeats(c: Comparison, effect: Effect, judge: Judge) -> str:
    """How many repeats would narrow the interval to where it decides: its width falls with their square root."""
    if not effect.ratio or effect.ci_low is None or effect.ci_high is None or not effect.a:
        return " More repeats would tell."
    half = (effect.ci_high - effect.ci_low) / 2
    least = judge.min_effect_fraction
    gain = effect.ratio - 1 if judge.expect == "higher" else 1 - effect.ratio
    wanted = max(abs(gain - least), least / 2)
    repeats = -(-c.repeats * (half / wanted) ** 2 // 1)
    if repeats > 10 * c.repeats:
        return " More than ten times the repeats would be needed to tell."
    in_all = max(int(repeats), c.repeats + 1)
    each_s = power.measured_s(c.base.blocks, c.cell.blocks) / max(c.repeats, 1)
    return f" About {plural(in_all, 'repeat')} would tell, {power.about((in_all - c.repeats) * each_s)}."


def more_samples(c: Comparison, metric: str, slo: Slo) -> str:
    """How much longer to measure when a percentile lacks successes; "" when that is not what is missing."""
    if not is_compared_by_sample(metric):
        return ""
    measure = measure_of(metric, slo)
    has = min(sum(s.latency_n for s in side) for side in (c.base.summaries, c.cell.summaries))
    if measure.kind != "percentile" or not 0 < has < needed(measure.p):
        return ""
    return f" Measure about {math.ceil(needed(measure.p) / has)} times as long."


def _kept_up(say: Telling, found: Sequence[Comparison]) -> str:
    """A server that serves all of 120 % of its saturation was not at saturation when that was measured. Where no load
    reached it, the verdict begins with that."""
    low = next((c for c in found if kept_up(say.experiment, c)), None)
    if low is None or unreached(say.experiment, found):
        return ""
    return (
        f"But {say.baseline} kept up with {format_fraction(share(low))} of its measured saturation, "
        "so that was measured too low: run it again on a quiet machine."
    )
