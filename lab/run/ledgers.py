"""What each block's model took in memory, predicted beside measured, and its mean decode step beside its floor.

A page once written stays with a process, so a block's memory belongs to every load since the model was loaded, and the
run's own events say which these were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lab.measure import ledger, steps
from lab.measure.formats import format_label
from lab.measure.reconcile import Measured, reconcile
from lab.measure.summary import Summary
from lab.run import floors
from lab.run.told import Block, Told
from lab.spec import Cell, Experiment, ModelSpec, Workload, parse


def of_blocks(experiment: Experiment, blocks: Sequence[Block], told: Told) -> list[dict[str, Any]]:
    """{"format", "ledger", "floor", "beside", "step"} of each block: its format in words, what it took in memory, its
    mean decode step beside its floor and beside the baseline's. None where it is no language model's or was not
    measured."""
    cells = experiment.cells()
    measured = [_of_block(cells[b.cell], b, told) for b in blocks]
    doubted = any(step is not None and step.impossible for _, step in measured)  # all floors are of one probe
    of_all = list(zip(blocks, (step for _, step in measured), strict=True))
    return [
        {
            "format": None if cells[b.cell].workload.url is not None else format_label(cells[b.cell].model),
            "ledger": rows,
            "floor": None if step is None else steps.sentence(step, doubted=doubted),
            "beside": floors.beside(experiment, b, step, of_all, doubted=doubted),
            "step": None if step is None else floors.step_dict(step, doubted=doubted),
        }
        for b, (rows, step) in zip(blocks, measured, strict=True)
    ]


def _of_block(cell: Cell, block: Block, told: Told) -> tuple[list[dict[str, Any]] | None, steps.Step | None]:
    """(rows of the ledger, mean decode step). Without a cache there is no such step: each reads whole texts."""
    model, summary = cell.model, block.summary
    config = told.configs.get(model.weights) if model.family == "llm" else None
    if config is None or model.merge_adapters or cell.workload.url is not None:  # several processes, or not the lab's
        return None, None
    if model.scaling is not None:  # its processes come and go meanwhile
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
    return rows, floors.of_block(model, block, predicted, told)


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
