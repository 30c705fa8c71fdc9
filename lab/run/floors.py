"""The mean decode step of a block, of the figures so far or of one answer, beside what this machine can do at best.

lab/measure/floors.py has the arithmetic and lab/measure/steps.py the words; here the run's own events and figures meet
them. None wherever a step has no floor: without a cache, on a GPU, of somebody else's server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.measure import ledger, steps
from lab.measure.floors import Machine, decode_floor
from lab.measure.formats import change_answers
from lab.measure.ledger import Ledger
from lab.measure.levels import same
from lab.measure.summary import Summary
from lab.measure.words import level_label
from lab.run.told import Block, Told, model_changed
from lab.spec import Experiment, ModelSpec, Workload


def has_floor(model: ModelSpec) -> bool:
    """Whether a step can be held against what this machine can do: without a cache each reads whole texts, and of GPUs
    nothing was probed."""
    return model.kv_cache and model.device == "cpu"


def of_block(model: ModelSpec, block: Block, predicted: Ledger, told: Told) -> steps.Step | None:
    """The mean decode step of a block. Of two models, where it was changed by hand meanwhile, there is none."""
    mixed = model_changed(told.events, block.window.measured_from_ns, block.window.end_ns)
    if told.machine is None or not has_floor(model) or mixed:
        return None
    return steps.step(block.summary, predicted, model.precision, told.machine)


def now(model: ModelSpec, workload: Workload, summary: Summary, told: Told) -> str | None:
    """The sentence on the mean decode step that `summary` is of, beside its floor; None where it has none, as without a
    cache, or where what it needs was not noted."""
    config = told.configs.get(model.weights) if model.family == "llm" else None
    if config is None or told.machine is None or model.merge_adapters or workload.url is not None:
        return None
    if not has_floor(model):
        return None
    found = steps.step(summary, ledger.predict(config, model, workload), model.precision, told.machine)
    return None if found is None else steps.sentence(found)


def of_answer(
    model: ModelSpec, config: Mapping[str, Any], machine: Machine, prompt_tokens: int, tokens: int, itl_s: float
) -> str | None:
    """The sentence on one answer that had the engine for itself, `itl_s` between its tokens being taken for a step; its
    weights are those of the ledger. None where there is no such step or no figure to hold it against."""
    bandwidth, operations_s = machine.read_bandwidth_bytes_s, machine.arithmetic(model.precision)
    if not (has_floor(model) and itl_s and bandwidth and operations_s):
        return None
    known = ledger.predict(config, model)
    size = known["weights"].size_bytes + sum(row.size_bytes for row in known.rows if row.name == "scales")
    size /= known.instances  # one of them answers
    kept = (prompt_tokens + tokens / 2) * known.kv_bytes_per_token
    floor = decode_floor(size, kept, bandwidth, 1, operations_s, elements=known.elements)
    return steps.sentence(steps.Step(model.precision, size, kept, 1.0, itl_s, floor, machine))


def beside(
    experiment: Experiment,
    block: Block,
    step: steps.Step | None,
    all_: Sequence[tuple[Block, steps.Step | None]],
    *,
    doubted: bool,
) -> str | None:
    """Why its step takes more or less than the baseline's in the same repeat at the same load, where formats are
    compared."""
    judge, cells = experiment.judge, experiment.cells()
    if step is None or judge is None or not change_answers(experiment):
        return None
    own = cells[block.cell].factors

    def is_base(other: Block) -> bool:
        levels = cells[other.cell].factors
        return (other.role, other.repeat) == (block.role, block.repeat) and all(
            same(level, judge.baseline if path == judge.factor else own[path]) for path, level in levels.items()
        )

    base = next((found for other, found in all_ if found is not None and is_base(other)), None)
    if base is None or same(own[judge.factor], judge.baseline):
        return None
    labels = [level_label(judge.factor, level) for level in (own[judge.factor], judge.baseline)]
    return steps.beside(labels[0], step, labels[1], base, doubted=doubted)


def doubts(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(that the floors of a document's cells are too high, what to do), where one of their steps was below its own."""
    below = any(cell["step"] and cell["step"]["fraction"] > 1 for cell in cells)
    return [(steps.TOO_QUICK, steps.PROBE_AGAIN)] if below else []


def step_dict(found: steps.Step, *, doubted: bool = False) -> dict[str, Any]:
    """A step and its floor; `limiting` is None where a step was below its floor."""
    return {
        "read_bytes": found.weight_bytes + found.kept_bytes,
        "batch": found.batch,
        "step_s": found.step_s,
        "memory_floor_s": found.floor.memory_s,
        "compute_floor_s": found.floor.compute_s,
        "limiting": None if doubted or found.impossible else found.floor.limiting,
        "fraction": found.fraction,
    }
