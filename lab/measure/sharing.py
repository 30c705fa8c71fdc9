"""Why batching pays or not: what an item costs the model alone, and what it costs in a batch.

Triton counts the compute of each batch size apart. A model whose pass costs the same for 1 and for 8 items shares
that cost; one that computes item after item has nothing to share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lab.measure.judgement import CellResult
from lab.measure.summary import Summary
from lab.measure.words import format_seconds

SHARED, BARELY_SHARED = 1.3, 1.1
LESS = 0.95
"""Below this share of the saturation throughput without batching, batching loses."""
FEW_EXECUTIONS = 20
"""The mean of fewer is luck."""
WAITED_IN_FLIGHT = 4.0
"""With this many requests in flight on average, some did wait for each other."""


@dataclass(frozen=True)
class Sharing:
    """Seconds of compute an item costs `alone_s` (batches of 1) and `together_s`, in batches of `size`: the size that
    carried the most requests, or the largest that ran often where only that one shows what is shared; None where no
    such batch ran, `at_saturation` where its cost is that of the saturation blocks. `largest` is the largest that ran
    at all. `batch_mean` and `queue_mean_s` are those of the setting with the largest batches; `waited`: whether
    requests were there at the same time at all."""

    alone_s: float | None
    size: int | None
    together_s: float | None
    batch_mean: float | None
    queue_mean_s: float | None
    waited: bool
    largest: int | None = None
    at_saturation: bool = False

    def sentence(self, *, gained: bool | None, capacity: float | None = None) -> str:
        """Why it paid or did not (None: not decided); "" where nothing is known. `capacity`: saturation throughput
        with batching over that without, where it was measured."""
        if self.alone_s is None or self.together_s is None:
            return "" if gained else self._hardly_formed()
        alone, together = format_seconds(self.alone_s), format_seconds(self.together_s)
        costs = f"One item costs {alone} of compute alone and {together} in a batch of {self.size}"
        costs += " at saturation" if self.at_saturation else ""
        ratio = self.alone_s / self.together_s if self.together_s else 0.0
        if ratio < 1 / BARELY_SHARED or (ratio < SHARED and capacity is not None and capacity < LESS):
            return (
                f"{costs}: batching loses throughput, because there is nothing to share and a batch takes as long as "
                "its longest member, to which the others are padded or for which they wait."
            )
        if gained:
            return (
                f"{costs}." if ratio >= SHARED else f"{costs}: the gain is in fewer executions, not in cheaper items."
            )
        if ratio >= SHARED and gained is None:
            return f"{costs}, so there is something to share."
        if ratio >= SHARED:
            small = f", but batches stayed small (mean {self.batch_mean:.1f})" if (self.batch_mean or 9) < 2 else ""
            return f"{costs}, so there is something to share{small or '; what limits is not compute'}."
        seen = f" in batches of up to {self.largest or self.size}"
        return f"{costs}: there is {'nothing' if ratio < BARELY_SHARED else 'little'} to share{seen}."

    def _hardly_formed(self) -> str:
        if self.batch_mean is None or self.batch_mean >= SHARED:
            return ""
        if self.waited:
            return (
                f"Requests waited for {format_seconds(self.queue_mean_s)} and still ran alone (mean batch "
                f"{self.batch_mean:.1f}): inputs of different shapes need padding, or allow_ragged_batch, "
                "to share a batch."
            )
        return f"Batches hardly formed (mean batch {self.batch_mean:.1f}): too little arrives at the same time."


def sharing(alone: CellResult, batched: Sequence[CellResult], saturated: Sequence[Summary] = ()) -> Sharing:
    """From the cell without batching and those with it, at one load; `saturated`: the run's other blocks with batching,
    where batches grow largest. They count where the load's own batches stayed too small to share anything."""
    single = _costs(alone.summaries)
    several = _costs(summary for cell in batched for summary in cell.summaries)
    large = {size: carried for size, (_, carried) in several.items() if size > 1}
    size = max(large, key=lambda candidate: large[candidate]) if large else None
    cost = single.get(1) or several.get(1)
    everywhere = _costs(summary for summary in (*saturated, *(s for cell in batched for s in cell.summaries)))
    together_s = several[size][0] if size else None
    at_saturation = False
    # The load's own batches come first: what saturation shows stands in where they show nothing.
    for costs, there in ((several, False), (_costs(saturated), True)):
        often = _often(costs)
        shown = cost and together_s and cost[0] >= SHARED * together_s
        if cost and often and not shown and cost[0] >= SHARED * costs[often][0]:
            size, together_s, at_saturation = often, costs[often][0], there
    summaries = [s for cell in batched for s in cell.summaries if s.batch_mean is not None]
    largest = max(summaries, key=lambda s: s.batch_mean or 0.0, default=None)
    return Sharing(
        alone_s=cost[0] if cost else None,
        size=size,
        together_s=together_s,
        batch_mean=largest.batch_mean if largest else None,
        queue_mean_s=largest.queue_mean_s if largest else None,
        waited=bool(largest and (largest.in_flight_mean or 0.0) >= WAITED_IN_FLIGHT),
        largest=max((n for n in everywhere if n > 1), default=None),
        at_saturation=at_saturation,
    )


def _often(costs: Mapping[int, tuple[float, int]]) -> int | None:
    """The largest batch that ran often enough for its mean to be more than luck; None where none did."""
    return max((n for n, (_, carried) in costs.items() if n > 1 and carried >= n * FEW_EXECUTIONS), default=None)


def _costs(summaries: Iterable[Summary]) -> dict[int, tuple[float, int]]:
    """{batch size: (seconds an item, items)} over several blocks, each weighed by its executions."""
    seconds: dict[int, float] = {}
    executions: dict[int, int] = {}
    for summary in summaries:
        for size, count in summary.batch_sizes.items():
            if size in summary.item_compute_s:
                seconds[size] = seconds.get(size, 0.0) + summary.item_compute_s[size] * count
                executions[size] = executions.get(size, 0) + count
    return {size: (seconds[size] / count, count * size) for size, count in executions.items() if count}
