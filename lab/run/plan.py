"""In which order an experiment's blocks run. Pure.

A block is one measured stretch: a cell in one of its repeats, or a saturation run on one level of the judged factor.
Levels that are compared run next to each other, forwards and then backwards (A B B A), so that a machine that slowly
gets warmer or busier treats them alike; that order also needs the fewest reloads of the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from lab.errors import InputError
from lab.measure.words import level_label
from lab.spec import ClosedLoop, Experiment, ModelSpec, Reference, Workload, fields_set, plain, set_path, set_paths

Role = Literal["saturation", "cell"]


@dataclass(frozen=True)
class Block:
    """`cell` is the position in `Experiment.cells()`; for a saturation block the first cell of its level."""

    role: Role
    cell: int
    repeat: int
    model: ModelSpec
    workload: Workload
    level: Any = None


def level_blocks(experiment: Experiment) -> list[Block]:
    """One closed-loop block for each level of the judged factor (the model as it is when nothing is judged), under
    the reference load where the experiment gives one. Their answers are compared; their throughput is saturation."""
    reference = experiment.reference or Reference()
    factor = experiment.judge.factor if experiment.judge else None
    blocks: list[Block] = []
    seen: list[Any] = []
    for index, cell in enumerate(experiment.cells()):
        level = cell.factors.get(factor) if factor else None
        if level in seen:
            continue
        seen.append(level)
        workload = cell.workload.model_copy(
            update={
                "arrival": ClosedLoop(concurrency=reference.concurrency),
                "duration_s": reference.duration_s,
                "warmup_s": reference.warmup_s,
            }
        )
        blocks.append(Block("saturation", index, 0, cell.model, workload, level))
    return blocks


def cell_blocks(experiment: Experiment, *, whole_groups: bool = False) -> list[Block]:
    """Every cell in every repeat; compared levels adjacent, each group in the reverse order of the one before. With
    `whole_groups` all repeats of a group come before the next one: for what must be kept ready for each level."""
    cells, groups = experiment.cells(), _groups(experiment)
    factor = experiment.judge.factor if experiment.judge else None
    turns = [(repeat, group) for repeat in range(experiment.repeats) for group in groups]
    if whole_groups:
        turns = [(repeat, group) for group in groups for repeat in range(experiment.repeats)]
    blocks = []
    for number, (repeat, group) in enumerate(turns):
        for index in group if number % 2 == 0 else reversed(group):
            cell = cells[index]
            level = cell.factors.get(factor) if factor else None
            blocks.append(Block("cell", index, repeat, cell.model, cell.workload, level))
    return blocks


def _groups(experiment: Experiment) -> list[list[int]]:
    """The positions of cells that differ in the judged factor alone."""
    factor = experiment.judge.factor if experiment.judge else None
    groups: list[list[int]] = []
    keys: list[dict[str, Any]] = []
    for index, cell in enumerate(experiment.cells()):
        key = {path: level for path, level in cell.factors.items() if path != factor}
        if key in keys:
            groups[keys.index(key)].append(index)
        else:
            keys.append(key)
            groups.append([index])
    return groups


def any_fraction(blocks: Iterable[Block]) -> bool:
    """Whether some block's load is a fraction of saturation, which then has to be known."""
    return any(getattr(block.workload.arrival, "saturation_fraction", None) is not None for block in blocks)


def with_rate(block: Block, saturation_rps: float | None) -> Block:
    """The block with `saturation_fraction` turned into a rate, and its repeat given requests of its own: repeats
    must not replay one sequence, while the levels of one repeat must."""
    workload = block.workload
    fraction = getattr(workload.arrival, "saturation_fraction", None)
    if fraction is not None and saturation_rps is not None:
        workload = set_path(workload, "arrival.rate_rps", fraction * saturation_rps)
    workload = set_path(workload, "seed", workload.seed + 1000 * block.repeat)
    return Block(block.role, block.cell, block.repeat, block.model, workload, block.level)


def load_label(workload: Workload) -> str:
    """How often is asked, as declared: "0.2 req/s", "4 users"."""
    said = {key: value for key, value in plain(workload.arrival).items() if key != "kind" and value is not None}
    return ", ".join(level_label(f"arrival.{key}", value) for key, value in said.items())


def settle(experiment: Experiment, settings: list[tuple[str, Any]], *, quick: bool) -> Experiment:
    """The experiment with `--quick` and then each `--set PATH=VALUE` applied. A path that is a factor gets the given
    level (or list of levels) instead of its own, so that a setting is never silently overruled by a factor."""
    experiment = experiment.when_quick() if quick else experiment.as_it_stands()
    factors: Any = dict(experiment.factors)
    changes: list[tuple[str, Any]] = []
    for path, value in settings:
        if path == "factors":
            factors = value
        elif isinstance(factors, dict) and path in factors:
            factors = {**factors, path: tuple(value) if isinstance(value, list) else (value,)}
        else:
            if isinstance(factors, dict):
                _refuse_overruled(path, factors)
            changes.append((path, value))
    return set_paths(experiment, [*changes, ("factors", factors)])


def _refuse_overruled(path: str, factors: dict[str, Any]) -> None:
    """InputError when every level of some factor sets the field at `path` among others."""
    for factor, levels in factors.items():
        if isinstance(levels, list | tuple) and all(path in fields_set(factor, level) for level in levels):
            raise InputError(
                f"{path} is set by every level of factor {factor}; allowed: levels of your own, such as "
                f"--set '{factor}=[{json.dumps(levels[0])}]'"
            )
