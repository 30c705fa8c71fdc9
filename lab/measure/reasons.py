"""Why a level of a factor does better or not, where the records of a run tell it: one sentence a factor.

model.batching    what an item costs the model alone and in a batch (sharing.py)
model.kv_cache    how the time per token changes along the answer (position.py)
model.scheduler   how many requests shared a step
model.precision   what an item costs in each
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lab.measure.judgement import CellResult, Comparison, Saturation, saturation_ratio
from lab.measure.position import along
from lab.measure.sharing import sharing
from lab.measure.telling import BATCHING
from lab.measure.words import format_fraction, format_range, format_seconds, join, level_label
from lab.spec import Judge, plain

CHANGES = 1.2
"""A last token that takes this many times as long as an early one has become slower."""


def why(judge: Judge, top: Sequence[Comparison], saturation: Saturation, *, gained: bool) -> str:
    """`top`: the comparisons at the load that is told. "" where the factor or the records give no reason."""
    if not top:
        return ""
    if judge.factor == BATCHING:
        ratios = [saturation_ratio(saturation, judge.baseline, c.level) for c in top]
        capacity = max((ratio for ratio in ratios if ratio is not None), default=None)
        return sharing(top[0].base, [c.cell for c in top], [s for _, s in saturation]).sentence(
            gained=gained, capacity=capacity
        )
    reason = REASONS.get(judge.factor)
    levels = [(plain(judge.baseline), top[0].base), *((c.level, c.cell) for c in top)]
    return "" if reason is None else reason([(level_label(judge.factor, level), cell) for level, cell in levels])


def _along_the_answer(levels: Sequence[tuple[str, CellResult]]) -> str:
    """ "With KV cache off the time per token grows from 12.0 to 88.0 ms along the answer, …"."""
    told = [(label, course) for label, cell in levels if (course := _course(cell))]
    if len(told) < len(levels):
        return ""
    (label, course), *others = told
    rest = "".join(f", with {label} it {course}" for label, course in others)
    return f"With {label} the time per token {course} along the answer{rest}."


def _course(cell: CellResult) -> str:
    found = along(cell.blocks)
    if len(found) < 2:
        return ""
    first, last = found[0].median_s, found[-1].median_s
    if first > 0 and 1 / CHANGES < last / first < CHANGES:
        return f"stays at about {format_seconds((first + last) / 2)}"
    return f"{'grows' if last > first else 'falls'} from {format_range(first, last, format_seconds)}"


def _shared_steps(levels: Sequence[tuple[str, CellResult]]) -> str:
    """ "On average 1.0 answers shared a step with one at a time, 3.4 with static batching and 6.2 with …"."""
    means = []
    for label, cell in levels:
        shared = [s.engine_batch_mean for s in cell.summaries if s.engine_batch_mean is not None]
        if not shared:
            return ""
        means.append((f"{sum(shared) / len(shared):.1f}", label))
    (number, label), *rest = means
    first = f"{number} answers shared a step with {label}"
    return f"On average {join([first, *(f'{mean} with {other}' for mean, other in rest)])}."


def _by_precision(levels: Sequence[tuple[str, CellResult]]) -> str:
    """ "An item computes for 0.12 ms with fp32 and 0.31 ms with int8: int8 takes longer, …"; for models whose items
    Triton counts. What reading fewer bytes could save is a part of what a batch costs however many items it has, and
    that is told where batches of different sizes were measured. Of a language model's step lab/measure/steps.py tells
    more."""
    told = [(label, _item_s(cell)) for label, cell in levels]
    known = [(label, item_s) for label, item_s in told if item_s is not None]
    if len(known) < len(told):
        return ""
    (_, base_s), *others = known
    slower = [label for label, item_s in others if item_s > base_s * CHANGES]
    words = join([f"{format_seconds(item_s)} with {label}" for label, item_s in known])
    if not slower:
        return f"An item computes for {words}."
    why = f"{join(slower)} {'take' if len(slower) > 1 else 'takes'} longer: the work on every item that comes on top"
    share = _once_a_batch(levels[0][1])
    bound = (
        ""
        if share is None
        else f"; of an item alone at most {format_fraction(share)} of {levels[0][0]}'s time goes into reading weights, "
        "which is done once a batch"
    )
    return f"An item computes for {words}; {why} is more than fewer bits save here{bound}."


def _once_a_batch(cell: CellResult) -> float | None:
    """The share of an item alone that does not grow with the batch: of the costs f + c × n of a batch of n, which the
    smallest and the largest batch give, f ÷ (f + c). None unless items ran alone and in a batch."""
    costs: dict[int, list[float]] = {}
    for s in cell.summaries:
        for size, item_s in s.item_compute_s.items():
            costs.setdefault(size, []).append(item_s)
    largest = max(costs, default=1)
    if 1 not in costs or largest == 1:
        return None
    alone, shared = (sum(costs[size]) / len(costs[size]) for size in (1, largest))
    share = (1 - shared / alone) / (1 - 1 / largest) if alone else -1.0
    return share if 0 <= share <= 1 else None


def _item_s(cell: CellResult) -> float | None:
    """Seconds of computing an item, over all batches."""
    sizes = [(size * n, s.item_compute_s.get(size)) for s in cell.summaries for size, n in s.batch_sizes.items()]
    counted = [(items, item_s) for items, item_s in sizes if item_s is not None]
    items = sum(n for n, _ in counted)
    return sum(n * item_s for n, item_s in counted) / items if items else None


REASONS: dict[str, Callable[[Sequence[tuple[str, CellResult]]], str]] = {
    "model.kv_cache": _along_the_answer,
    "model.scheduler": _shared_steps,
    "model.precision": _by_precision,
}
