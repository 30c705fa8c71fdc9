"""S12: what another client of the same server, in the same minute, says of throughput, p50 and p99. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import interval, needed
from lab.run.outcome import Outcome

WITHIN = {"throughput": 0.05, "p50": 0.05, "p99": 0.15}


@dataclass(frozen=True)
class Asked:
    """One client's answers, one after the other: seconds each of them took, and in how many seconds they came."""

    took_s: Floats
    seconds: float

    @property
    def rate_rps(self) -> float:
        return len(self.took_s) / self.seconds

    @classmethod
    def pooled(cls, parts: Sequence[Asked]) -> Asked:
        return cls(np.concatenate([part.took_s for part in parts]), sum(part.seconds for part in parts))


def second_opinion(turns: Mapping[str, Sequence[tuple[Asked, Asked]]]) -> Outcome:
    """S12 from the turns of (the lab's, another client's) by protocol. Throughput is the median of the neighbours'
    ratios, so that one stall of the machine does not decide. A p99 takes 459 answers of both, several of which a stall
    meets: where the intervals of both leave a difference within the tolerance, the meter is not told to be off.
    `passed` is False where a turn has no answer."""
    parts, passed = [], True
    worst = 0.0
    for protocol, pairs in turns.items():
        if any(not len(side.took_s) for pair in pairs for side in pair):
            passed = False
            parts.append(f"{protocol}: a turn without an answer")
            continue
        mine, other = (Asked.pooled([pair[side] for pair in pairs]) for side in (0, 1))
        off = {"throughput": float(np.median([a.rate_rps / b.rate_rps for a, b in pairs])) - 1}
        off["p50"] = float(np.median(mine.took_s) / np.median(other.took_s)) - 1
        if min(len(mine.took_s), len(other.took_s)) >= needed(0.99):
            off["p99"] = _tail_off(mine.took_s, other.took_s)
        passed &= all(abs(value) <= WITHIN[name] for name, value in off.items())
        worst = max(worst, abs(off["p50"]))
        parts.append(f"{protocol}: " + ", ".join(f"{name} {100 * value:+.1f} %" for name, value in off.items()))
    text = f"beside gRPC's own and Python's HTTP client, one user: {'; '.join(parts)}"
    return Outcome("S12", passed, worst, 0.0, "throughput and p50 5 %, p99 15 % or its interval", text)


def _tail_off(mine: Floats, other: Floats) -> float:
    """How far the two p99 are apart for certain: as measured, or as near as both 95 % intervals allow if that is less;
    0 where they overlap."""
    (low, high), (other_low, other_high) = interval(np.sort(mine), 0.99), interval(np.sort(other), 0.99)
    nearest = 0.0
    if low is not None and other_high is not None and low > other_high:
        nearest = low / other_high - 1
    elif other_low is not None and high is not None and high < other_low:
        nearest = high / other_low - 1
    measured = float(np.quantile(mine, 0.99) / np.quantile(other, 0.99)) - 1
    return min(measured, nearest, key=abs)
