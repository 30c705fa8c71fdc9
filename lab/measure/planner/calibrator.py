"""Calibrates a server that Triton batches for, out of measured blocks, from all of them or from all but a few.

Counters tell what batches took by size, at the pace that the machine had just then, which is taken out. What no counter
tells is found by replaying blocks, arrival by arrival, at the speed that their own counters tell: how often an instance
had to wake; of what scatters, how much is the server's own work, which makes others wait, and how much is outside; what
Triton's batcher takes to notice a request; and what all of this leaves unexplained (discrepancy.py). A block is
replayed in its own machine's time (machine_time.py), so that what it leaves is the model's; a prediction goes through
all of the blocks' stretches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lab.measure.pace import Floats
from lab.measure.percentile import needed, percentile
from lab.measure.planner import discrepancy
from lab.measure.planner.calibration import Measured, rules
from lab.measure.planner.discrepancy import FULL, QUANTILES, UNKNOWN, Place, Rest
from lab.measure.planner.machine_time import Stretch, alike
from lab.measure.planner.planner import capacity_rps
from lab.measure.planner.seen import BACKLOG, REPLAYED, awake, batches, beside, pauses, scatter, seen, stretch
from lab.measure.planner.service import Seen, Service, divided, fit, misfit
from lab.measure.planner.simulator import simulate

SHOWN = 6
"""Blocks that are replayed at the most, to tune."""
PAUSES_S = tuple(float(pause_s) for pause_s in np.geomspace(0.0001, 0.02, 12))
"""Tried for `asleep_s`."""
NOTICES_S = (0.0, 0.0001, 0.0002, 0.0004)
INSIDES = (0.4, 0.6, 0.8, 1.0)
"""Tried for the other two."""
FEWEST = 30
"""Requests that met nobody, below which nothing is said of scatter."""
DRAWS = 8
"""Replays of a block with draws of their own, for what it leaves."""
MOST_LEFT = 0.7
"""A quantile that is twice or half as long says something of one moment, not of the server."""
ROUNDS = 3
"""Times that the curve and the machine's pace are fitted anew, each with the other taken out."""
WEIGHTS = {0.5: 1.0, 0.95: 1.0, 0.99: 0.5}
"""How much a replay's percentile counts."""


@dataclass(frozen=True)
class Tuned:
    """What replays told; `inside`: of what scatters, the server's own share; `latency`: by block, what a replay of it
    left of its latency's quantiles (discrepancy.Rest)."""

    asleep_s: float = 0.001
    notice_s: float = 0.0
    inside: float = 1.0
    latency: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


def service(blocks: Sequence[Measured]) -> Service:
    """Of a model that Triton batches. InputError when the blocks say nothing of it."""
    return Calibrator(blocks).service()


class Calibrator:
    """Blocks of one model, each looked at once. They are named by their numbers, which differ."""

    def __init__(self, blocks: Sequence[Measured]) -> None:
        self._blocks = {block.number: block for block in blocks}
        around = beside(blocks)
        self._seen = {block.number: seen(block, around) for block in blocks}
        told = [one for one in self._seen.values() if one.counted]
        outside_s = float(fit(told).outside_s.mean()) if told else 0.0
        self._batches = {number: batches(block, outside_s) for number, block in self._blocks.items()}
        self._stretches: dict[tuple[object, ...], Stretch | None] = {}
        self._pauses = {number: pauses(block, self._seen[number]) for number, block in self._blocks.items()}

    def service(self, among: Sequence[int] = (), tuned: Tuned | None = None) -> Service:
        """From the blocks `among` (all when empty), at the machine's usual pace. That of the blocks which ran around
        another says little of it: with it, predicted tails of held-out blocks were no nearer, and some far off."""
        numbers = sorted(among or self._blocks)
        how = tuned or self.tune(numbers)
        found, off, pace, places = self._shape(numbers, how.asleep_s)
        known = [number for number, one in zip(numbers, off, strict=True) if not np.isnan(one)]
        rests = [
            Rest(place, work, how.latency.get(number, UNKNOWN))
            for number, place, work in zip(numbers, places, off - pace, strict=True)
        ]
        found = self._scattered(found, numbers, how)
        own = [one for number in known if (one := self._stretch(number, found)) is not None]
        return replace(found, rests=tuple(rests), stretches=alike(own))

    def tune(self, among: Sequence[int]) -> Tuned:
        """What fits these blocks best."""
        numbers = sorted(among)
        tried = []
        for asleep_s in PAUSES_S:
            told, (found, _, pace, _) = self._every(numbers, asleep_s), self._shape(numbers, asleep_s)
            tried.append((misfit(found, _at_one_pace(told, pace)), asleep_s))
        asleep_s = min(tried)[1]
        shape, shown = self._shape(numbers, asleep_s)[0], self._telling(numbers)
        if not shown:
            return Tuned(asleep_s)
        replayed = []
        for notice_s in NOTICES_S:
            for inside in INSIDES:
                how = Tuned(asleep_s, notice_s, inside)
                found = self._scattered(shape, numbers, how)
                replayed.append((sum(self._differs(number, found, how) for number in shown), notice_s, inside))
        _, notice_s, inside = min(replayed)
        how = Tuned(asleep_s, notice_s, inside)
        found = self._scattered(shape, numbers, how)
        kept_up = [number for number in numbers if self._kept_up(number)]
        return replace(how, latency={number: self._left(number, found, how) for number in kept_up})

    def _shape(self, numbers: Sequence[int], asleep_s: float) -> tuple[Service, Floats, Floats, list[Place]]:
        """(the curve at the machine's usual pace; of each block, in the order they ran: how long its batches took
        against it, the pace just then, both logarithms, and its place)."""
        told = self._every(numbers, asleep_s)
        found, pace = fit(told, None, asleep_s), np.zeros(len(numbers))
        for _ in range(ROUNDS):
            off, places = _off(found, told), self._places(numbers, found, pace)
            pace = discrepancy.paces(off, places)
            found = fit(_at_one_pace(told, pace), None, asleep_s)
        return found, _off(found, told), pace, places

    def _scattered(self, found: Service, numbers: Sequence[int], how: Tuned) -> Service:
        """With the spread that requests which met nobody had, and what is tuned."""
        every = [scatter(self._blocks[number], found, self._stretch(number, found)) for number in numbers]
        spread = np.concatenate(every) if every else np.empty(0)
        if len(spread) >= FEWEST:
            found = replace(found, spread=spread / spread.mean())
        return replace(divided(found, how.inside), notice_s=how.notice_s)

    def in_own_time(self, server: Service, number: int) -> Service:
        """The server as fast as in that block from moment to moment, by the block's own counters and answers."""
        one = self._stretch(number, server)
        own = server.scaled(server.ratio(self._told(number, server.asleep_s)) or 1.0)
        return replace(own, stretches=() if one is None else (one,))

    def _stretch(self, number: int, found: Service) -> Stretch | None:
        of = number, found.curve, found.fixed_s, found.item_s, found.handover, found.wake_s, found.asleep_s
        if of not in self._stretches:
            block = self._blocks[number]
            one = stretch(self._batches[number], found, block.window_s[1])
            self._stretches[of] = one and replace(one, batched=rules(block.model).max_batch_size > 1)
        return self._stretches[of]

    def _places(self, numbers: Sequence[int], found: Service, pace: Floats) -> list[Place]:
        blocks = [self._blocks[number] for number in numbers]
        each = [rules(block.model) for block in blocks]
        full = {of: capacity_rps(found, of) for of in set(each)}
        asked = [(block.summary.offered_rps or 0.0) / full[of] for block, of in zip(blocks, each, strict=True)]
        return [
            Place(of.max_batch_size, of.delay_s, FULL if block.users is not None else float(load))
            for block, of, load in zip(blocks, each, np.array(asked) * np.exp(pace), strict=True)
        ]

    def _every(self, numbers: Sequence[int], asleep_s: float) -> list[Seen]:
        return [self._told(number, asleep_s) for number in numbers]

    def _told(self, number: int, asleep_s: float) -> Seen:
        return awake(self._seen[number], self._pauses[number], asleep_s)

    def _differs(self, number: int, found: Service, how: Tuned) -> float:
        """How far a replay of the block is from what was measured, at the block's own speed."""
        latency_s, true_s = self._replayed(number, found, how, seed=0)
        off = 0.0
        for p, weight in WEIGHTS.items():
            modelled, true = percentile(latency_s, p), percentile(true_s, p)
            if modelled and true:
                off += weight * abs(float(np.log(modelled / true)))
        return off

    def _left(self, number: int, found: Service, how: Tuned) -> tuple[float, ...]:
        """What a replay of the block leaves of each of QUANTILES; one that has too few answers is taken to leave what
        the quantile below it does."""
        replays = [self._replayed(number, found, how, seed) for seed in range(DRAWS)]
        latency_s, true_s = np.concatenate([modelled_s for modelled_s, _ in replays]), replays[0][1]
        left: list[float] = []
        for p in QUANTILES:
            modelled, true = percentile(latency_s, p), percentile(true_s, p)
            if modelled and true and len(true_s) >= needed(p):
                left.append(float(np.clip(np.log(true / modelled), -MOST_LEFT, MOST_LEFT)))
            else:
                left.append(left[-1] if left else float("nan"))
        return tuple(left)

    def _replayed(self, number: int, found: Service, how: Tuned, seed: int) -> tuple[Floats, Floats]:
        """Latencies of the block's window (in a replay at its own speed and in its own machine's time, as measured), as
        far as it is replayed."""
        block = self._blocks[number]
        own = self.in_own_time(found, number)
        due_s, took_s = block.due_s[:REPLAYED], block.took_s[:REPLAYED]
        replayed = simulate(due_s, replace(rules(block.model), max_queue_size=None), own, seed=seed)
        inside = (due_s >= block.window_s[0]) & (due_s <= block.window_s[1])
        return np.asarray(replayed.latency_s[inside], float), took_s[inside & ~np.isnan(took_s)]

    def _kept_up(self, number: int) -> bool:
        """An open loop that was answered as fast as it asked."""
        block = self._blocks[number]
        offered, served = block.summary.offered_rps or 0.0, block.summary.throughput_rps or 0.0
        return bool(block.users is None and len(block.due_s) and len(block.latency_s) and served >= BACKLOG * offered)

    def _telling(self, among: Sequence[int]) -> list[int]:
        """Up to SHOWN blocks of an open loop that kept up, from the least asked to the most."""
        rows = [(self._blocks[number].summary.offered_rps or 0.0, number) for number in among if self._kept_up(number)]
        rows.sort()
        places = np.linspace(0, len(rows) - 1, min(len(rows), SHOWN)).round().astype(int)
        return [rows[place][1] for place in sorted(set(places.tolist()))]


def _off(found: Service, told: Sequence[Seen]) -> Floats:
    """Of each block, the logarithm of how many times as long as modelled its batches took; NaN: it counted none."""
    return np.array([np.log(found.ratio(seen) or np.nan) for seen in told], float)


def _at_one_pace(told: Sequence[Seen], pace: Floats) -> list[Seen]:
    return [seen.times(float(np.exp(-p))) for seen, p in zip(told, pace, strict=True)]
