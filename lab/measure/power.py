"""What a comparison could have found, and how much longer it must be to find less.

An interval that holds "no difference" also says how large a difference would have shown. The minimum detectable effect
is the true relative difference that a comparison like this one calls different four times in five: the interval's
half-width, in logs, times 1 + z(power) / z(confidence) (Bloom 1995, "Minimum detectable effects"). Half-widths fall
with the square root of what was measured, whether more repeats or longer ones, so the time for a smaller effect
follows. Assumes that the time to come is as noisy as the time that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

from lab.measure.compare import CONFIDENCE, Effect
from lab.measure.segments import Block
from lab.measure.words import format_fraction

WANTED = 0.05
POWER = 0.8
DAY_S = 86_400.0
_FACTOR = 1 + NormalDist().inv_cdf(POWER) / NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


def detectable_fraction(effect: Effect) -> float | None:
    """The smallest true relative difference that this comparison would have found with POWER; None without a ratio."""
    half = _half_width(effect)
    return None if half is None else math.exp(_FACTOR * half) - 1


def more_s(effect: Effect, measured_s: float, wanted: float = WANTED) -> float | None:
    """Seconds to measure beyond `measured_s` (both sides together) until `wanted` is detectable; 0 when it is already,
    None when the comparison has no interval to go by."""
    half = _half_width(effect)
    if half is None or measured_s <= 0:
        return None
    needed_s = measured_s * (_FACTOR * half / math.log1p(wanted)) ** 2
    return max(needed_s - measured_s, 0.0)


def measured_s(*sides: Sequence[Block]) -> float:
    """Seconds that the blocks of these sides took, warm-up included."""
    return sum((window.end_ns - window.start_ns) / 1e9 for side in sides for _, window in side)


def told(effect: Effect, seconds: float, wanted: float = WANTED) -> str:
    """ "7 % would have been found; about 6 more minutes would find 5 %": what follows "no detectable difference". ""
    where nothing is known. `seconds`: what was measured, both sides together."""
    found, more = detectable_fraction(effect), more_s(effect, seconds, wanted)
    if found is None or more is None:
        return ""
    could = f"{format_fraction(found)} would have been found"
    return could if more == 0 else f"{could}; {about(more)} would find {format_fraction(wanted)}"


def about(seconds: float) -> str:
    """ "about 40 more seconds", "about 6 more minutes", "more than another day"."""
    if seconds > DAY_S:
        return "more than another day of measuring"
    if seconds < 90:
        return f"about {max(10 * math.ceil(seconds / 10), 10)} more seconds"
    if seconds < 5_400:
        return f"about {math.ceil(seconds / 60)} more minutes"
    return f"about {math.ceil(seconds / 3600)} more hours"


def _half_width(effect: Effect) -> float | None:
    """Of the interval of the log ratio."""
    if effect.ci_low is None or effect.ci_high is None or effect.ci_low <= 0:
        return None
    return (math.log(effect.ci_high) - math.log(effect.ci_low)) / 2
