"""What each format of a run takes in memory and costs in quality, beside its speed: never one without the others.

The runner prepares every format's weights and notes what this machine can do (`prepare`), and has the quality of each
evaluated before anything is measured (`evaluate`, once a format, kept for later runs). `of_run` and `of_block` join
both to the measured blocks, from the run's own events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lab import stopping
from lab.errors import LabError
from lab.measure import ledger, steps
from lab.measure.floors import Machine, decode_floor
from lab.measure.formats import QualityOf, change_answers, distinct, format_label, is_baseline, without_kernel
from lab.measure.levels import same
from lab.measure.quality import Quality
from lab.measure.reconcile import Measured, reconcile
from lab.measure.records import Window
from lab.measure.summary import Summary
from lab.measure.words import level_label, plural
from lab.run import quality
from lab.run.control import MODEL_FIELDS
from lab.run.folder import RunFolder
from lab.serve import adapters, weights
from lab.spec import Cell, Experiment, ModelSpec, Workload, parse, plain
from lab.watch.probe import Probe, multiplies_bytes, probe

Report = Callable[[str], None]
PROBED_ANEW_S = 120.0
"""A run that measures for longer probes the machine anew: on a shared one, memory may give half of what it gave in
another hour. A shorter one does with what is kept."""
ADAPTER_BYTES = 2
"""Of an element of an adapter's A and B as the compiled engine keeps them."""


def prepare(folder: RunFolder, experiment: Experiment, report: Report) -> None:
    """Weights of every format, made where they are missing; for language models what floors and ledgers need."""
    cells = experiment.cells()
    for model in distinct(cell.model for cell in cells):
        stopping.check()
        weights.prepare(model)
        if note := without_kernel(model, multiplies_bytes()):
            folder.event("problem", text=note)
    models = {cell.model.weights: cell.model for cell in cells if cell.model.family == "llm"}
    if models:
        seconds = experiment.repeats * sum(cell.workload.duration_s for cell in cells)
        here = any(cell.model.family == "llm" and cell.model.device == "cpu" for cell in cells)
        machine = asdict(probe(again=seconds >= PROBED_ANEW_S)) if here else None  # it probes no GPU
    for name, model in models.items():
        folder.event("limits", weights=name, config=weights.model_config(model), machine=machine)
    for model in {cell.model.adapters: cell.model for cell in cells if cell.model.adapters}.values():
        stopping.check()
        own = sum(place is None for place in adapters.named(model).values())
        if own:
            report(f"{plural(own, 'adapter')} of the lab's own: taught where not yet done, which takes seconds each")
        weights.prepare(model)
        for text in adapters.doubts(model):
            folder.event("problem", text=text)
        sizes = adapters.elements(model)
        folder.event("adapters", adapters=list(model.adapters), bytes=ADAPTER_BYTES * sum(sizes.values()))


def evaluate(folder: RunFolder, experiment: Experiment, report: Report) -> None:
    """The quality of every format as an event. An experiment that compares evaluates what is not known yet; a single
    load only tells what is."""
    models = distinct(cell.model for cell in experiment.cells() if cell.model.family in quality.FAMILIES)
    if all(is_baseline(model) for model in models):
        return
    for model in models:
        stopping.check()
        label = format_label(model)
        try:
            found = quality.known(model)
            if found is None and experiment.judge is not None:
                report(f"evaluating the quality of {label}, once")
                found = quality.evaluate(model)
        except LabError as error:
            folder.event("quality", format=label, quality=None, reason=str(error))
            continue
        reason = None if found else f"not evaluated yet; `python -m lab run quantization` does, on {model.name}"
        folder.event("quality", format=label, quality=found and found.to_dict(), reason=reason)


# --- what the events tell ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """The events of a run that this module reads."""

    machine: Machine | None
    configs: Mapping[str | None, Mapping[str, Any]]
    qualities: Mapping[str, Quality]
    reasons: Mapping[str, str]
    events: Sequence[Mapping[str, Any]]

    @classmethod
    def by(cls, events: Sequence[Mapping[str, Any]]) -> Told:
        limits = [e for e in events if e["kind"] == "limits" and "config" in e]
        told = [e for e in events if e["kind"] == "quality"]
        return cls(
            machine_of(limits[0]["machine"]) if limits and limits[0]["machine"] else None,
            {e["weights"]: e["config"] for e in limits},
            {e["format"]: Quality.from_dict(e["quality"]) for e in told if e["quality"]},
            {e["format"]: e["reason"] for e in told if not e["quality"]},
            events,
        )


def machine_of(found: Probe | Mapping[str, Any]) -> Machine:
    values = asdict(found) if isinstance(found, Probe) else found
    return Machine(
        values.get("read_bandwidth_bytes_s"),
        {
            "fp32": values.get("matmul_fp32_flop_s"),
            "bf16": values.get("matmul_bf16_flop_s"),
            "int8": values.get("matmul_int8_op_s"),
        },
    )


def of_run(experiment: Experiment, told: Told) -> dict[str, dict[str, Any]]:
    """{format in words: {"model", "quality", "reason"}}, one a format; `quality` None has a reason."""
    return {
        (label := format_label(model)): {
            "model": model.model_dump(mode="json"),
            "quality": told.qualities[label].to_dict() if label in told.qualities else None,
            "reason": None if label in told.qualities else told.reasons.get(label, "not evaluated"),
        }
        for model in distinct(cell.model for cell in experiment.cells())
        if model.family in quality.FAMILIES
    }


class Block(Protocol):
    """What is asked of a measured block (lab.run.results.BlockResult)."""

    @property
    def number(self) -> int: ...
    @property
    def role(self) -> str: ...
    @property
    def cell(self) -> int: ...
    @property
    def repeat(self) -> int: ...
    @property
    def window(self) -> Window: ...
    @property
    def summary(self) -> Summary: ...


def of_blocks(experiment: Experiment, blocks: Sequence[Block], told: Told) -> list[dict[str, Any]]:
    """{"format", "ledger", "floor", "beside", "step"} of each block: its format in words, what it took in memory, its
    mean decode step beside its floor and beside the baseline's. None where it is no language model's or was not
    measured."""
    cells = experiment.cells()
    measured = [_steps_of(cells[b.cell], b, told) for b in blocks]
    doubted = any(step is not None and step.impossible for _, step in measured)  # all floors are of one probe
    of_all = list(zip(blocks, (step for _, step in measured), strict=True))
    return [
        {
            "format": None if cells[b.cell].workload.url is not None else format_label(cells[b.cell].model),
            "ledger": rows,
            "floor": None if step is None else steps.sentence(step, doubted=doubted),
            "beside": _beside(experiment, b, step, of_all, doubted=doubted),
            "step": None if step is None else step_dict(step, doubted=doubted),
        }
        for b, (rows, step) in zip(blocks, measured, strict=True)
    ]


def _steps_of(cell: Cell, block: Block, told: Told) -> tuple[list[dict[str, Any]] | None, steps.Step | None]:
    """(rows of the ledger, mean decode step). Without a cache there is no such step: each reads whole texts."""
    model, summary = cell.model, block.summary
    config = told.configs.get(model.weights) if model.family == "llm" else None
    if config is None or model.merge_adapters or cell.workload.url is not None:  # several processes, or not the lab's
        return None, None
    idle, held, loads = _since_load(told.events, model.name, block.number)
    if model.device == "gpu":  # where the ledger's rows are, and host memory tells nothing of them
        idle = held = None
    of_adapters = next((e["bytes"] for e in told.events if e["kind"] == "adapters" and same_adapters(e, model)), None)
    predicted = max((ledger.predict(config, model, load, of_adapters) for load in loads), key=lambda p: p.held_tokens)
    whole, scales = summary.engine_weight_bytes, summary.engine_scale_bytes
    measured = Measured(
        idle=None if idle is None else idle["own_bytes"],
        held=None if held is None else held["own_bytes"],
        libraries=None if held is None else held["file_bytes"],
        weights=None if whole is None else whole - (scales or 0.0),
        scales=scales,
        cache=summary.engine_cache_bytes,
        adapters=summary.engine_adapter_bytes,
        cache_in_use=_cache_in_use(model, summary, predicted),
    )
    rows = [asdict(row) | {"error_fraction": row.error_fraction} for row in reconcile(predicted, measured)]
    mixed = model_changed(told.events, block.window.measured_from_ns, block.window.end_ns)  # a mean step of two models
    if told.machine is None or not has_floor(model) or mixed:
        return rows, None
    return rows, steps.step(summary, predicted, model.precision, told.machine)


def has_floor(model: ModelSpec) -> bool:
    """Whether a step can be held against what this machine can do: without a cache each reads whole texts, and of GPUs
    nothing was probed."""
    return model.kv_cache and model.device == "cpu"


def model_changed(events: Sequence[Mapping[str, Any]], from_ns: int, end_ns: int | None) -> bool:
    """Whether the model was changed by hand between two moments; until now with `end_ns` None."""
    moments = [event["t_ns"] for event in events if event["kind"] == "change" and event["field"] in MODEL_FIELDS]
    return any(from_ns <= t_ns and (end_ns is None or t_ns <= end_ns) for t_ns in moments)


def floor_now(model: ModelSpec, workload: Workload, summary: Summary, told: Told) -> str | None:
    """The sentence on the mean decode step that `summary` is of, beside its floor; None where it has none, as without a
    cache, or where what it needs was not noted."""
    config = told.configs.get(model.weights) if model.family == "llm" else None
    if config is None or told.machine is None or model.merge_adapters or workload.url is not None:
        return None
    if not has_floor(model):
        return None
    found = steps.step(summary, ledger.predict(config, model, workload), model.precision, told.machine)
    return None if found is None else steps.sentence(found)


def floor_of_answer(
    model: ModelSpec, config: Mapping[str, Any], machine: Machine, prompt_tokens: int, tokens: int, itl_s: float
) -> str | None:
    """The sentence on one answer that had the engine for itself, `itl_s` between its tokens being taken for a step; its
    weights are those of the ledger. None where there is no such step or no figure to hold it against."""
    bandwidth, operations_s = machine.read_bandwidth_bytes_s, machine.arithmetic(model.precision)
    if not (has_floor(model) and itl_s and bandwidth and operations_s):
        return None
    known = ledger.predict(config, model)
    size = known["weights"].size_bytes + sum(row.size_bytes for row in known.rows if row.name == "scales")
    kept = (prompt_tokens + tokens / 2) * known.kv_bytes_per_token
    floor = decode_floor(size, kept, bandwidth, 1, operations_s, elements=known.elements)
    return steps.sentence(steps.Step(model.precision, size, kept, 1.0, itl_s, floor, machine))


def _cache_in_use(model: ModelSpec, summary: Summary, predicted: ledger.Ledger) -> float | None:
    """Bytes by the engine's own counters: the most tokens seen in it at a time in the window, each its share of what is
    allocated for all; the whole of that where it is taken at once. None where no look met one."""
    room, tokens = summary.engine_cache_bytes, summary.cache_tokens_used_peak
    if room is None or not ledger.is_compiled(model):
        return room
    places = predicted["KV cache, room"].size_bytes / predicted.kv_bytes_per_token
    return None if not tokens or not places else tokens * room / places


def same_adapters(event: Mapping[str, Any], model: ModelSpec) -> bool:
    return bool(model.adapters) and list(event["adapters"]) == list(model.adapters)


def _beside(
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


def floor_doubts(cells: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(that the floors of a document's cells are too high, what to do), where one of their steps was below its own."""
    below = any(cell["step"] and cell["step"]["fraction"] > 1 for cell in cells)
    return [(steps.TOO_QUICK, steps.PROBE_AGAIN)] if below else []


def engine_notes(experiment: Experiment, blocks: Sequence[Block], server: pa.Table) -> list[str]:
    """What engines said of themselves, each once with its format: that it runs without a fast kernel, for one."""
    cells = experiment.cells()
    said = server.filter(pc.and_(pc.equal(server["field"], "engine_note"), pc.is_valid(server["reason"])))
    found: dict[str, None] = {}
    for b in blocks:
        model = cells[b.cell].model
        own = said.filter(
            pc.and_(
                pc.equal(said["model"], model.name),
                pc.and_(
                    pc.greater_equal(said["t_ns"], b.window.start_ns), pc.less_equal(said["t_ns"], b.window.end_ns)
                ),
            )
        )
        found |= {f"{format_label(model)}: {reason}.": None for reason in own["reason"].to_pylist()}
    return list(found)


def quality_of(experiment: Experiment, told: Told) -> QualityOf | None:
    """The quality of a level of the judged factor, where its levels differ in format; None where they answer alike."""
    if experiment.judge is None or not change_answers(experiment):
        return None
    factor = experiment.judge.factor
    labels = [(plain(cell.factors[factor]), format_label(cell.model)) for cell in experiment.cells()]

    def of(level: Any) -> Quality | None:
        label = next((label for found, label in labels if same(found, level)), "")
        return told.qualities.get(label)

    return of


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


def _since_load(
    events: Sequence[Mapping[str, Any]], name: str, block: int
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None, list[Workload]]:
    """(what the process held when it was idle, what after the block, every load that it has had since it was loaded,
    this block's the last): a page of the cache once written stays with the process."""
    idle: Mapping[str, Any] | None = None
    loads: list[Workload] = []
    current = -1
    for event in events:
        kind, model = event["kind"], event.get("model")
        if kind == "loaded" and event["model"]["name"] == name:
            if current == block:
                break  # by hand, while the block went on: what it holds now is another model
            idle, loads = None, []
        elif kind == "idle" and model == name:
            idle = event
        elif kind == "asked" and model == name:
            loads.append(parse(Workload, event["workload"]))
        elif kind == "block_start" and event["model"]["name"] == name:
            if current == block:
                break
            current = event["block"]
            loads.append(parse(Workload, event["workload"]))
        elif kind == "held" and model == name and current == block:
            return idle, event, loads
    return idle, None, loads
