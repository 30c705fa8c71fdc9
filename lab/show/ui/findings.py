"""Which charts answer each experiment's question, and which show why. A Topic names these functions."""

from __future__ import annotations

from typing import Any

from lab.measure import ledger
from lab.measure.judgement import CellResult
from lab.measure.sharing import sharing
from lab.measure.summary import Summary
from lab.show.charts import batching, levels, memory, slots, tokens
from lab.show.charts.figure import Chart
from lab.show.charts.latency import FIRST_TOKEN, percentiles
from lab.show.grid import short_label
from lab.show.ui import formats, reads
from lab.show.ui.topic import Seen

# --- dynamic batching -------------------------------------------------------------------------------------------


def batching_happened(seen: Seen) -> list[Chart]:
    limit_s = seen.limit_s("latency_s")
    return [
        batching.throughput_latency(seen.grid, seen.pair, limit_s),
        percentiles(seen.records("latencies"), seen.grid.baseline, limit_s, seen.load),
        batching.where_time_goes(seen.grid, seen.load),
        batching.batch_sizes(seen.grid, seen.pair, seen.load),
    ]


def batching_cause(seen: Seen) -> str:
    """Why it paid or not, from the very cells of the verdict's sentence: the page must not give two costs for one."""
    load = _crowded(seen)
    cells = {
        level: CellResult({}, [], [Summary.from_dict(s) for s in summaries])
        for level, summaries in seen.grid.levels_at(load)
    }
    if seen.grid.baseline not in cells:
        return ""
    baseline = cells.pop(seen.grid.baseline)
    saturated = [Summary.from_dict(s) for s in _saturated(seen)]
    shared = sharing(baseline, list(cells.values()), saturated)
    sentence = shared.sentence(gained=seen.document["verdict"]["holds"])
    where = f"At {load}, all settings of batching together"
    if shared.at_saturation:
        where = f"All settings of batching together, with saturation as batches stayed small at {load}"
    return f"{where}: {sentence[0].lower()}{sentence[1:]}" if sentence else ""


def batching_why(seen: Seen) -> list[Chart]:
    """What one request costs, by the blocks that were judged at that load."""
    load = _crowded(seen)
    blocks = [s for level in seen.pair for s in seen.grid.at(level, load)]
    drawn = batching.cost_of_one(blocks, seen.model, load)
    if len(drawn.table.get("batch size", ())) > 1 or not (saturated := _saturated(seen, seen.level)):
        return [drawn]
    # Batches grow largest at saturation: where none grew at the load, what is shared shows there alone.
    return [batching.cost_of_one(blocks + saturated, seen.model, f"{load} and at saturation")]


def _saturated(seen: Seen, *levels: str) -> list[dict[str, Any]]:
    """The summaries of the run's reference blocks of these levels; of all of them when none is named."""
    factor = seen.folder.document["experiment"]["judge"]["factor"]
    return [
        cell["summary"]
        for cell in seen.document["cells"]
        if cell["role"] == "saturation" and (not levels or short_label(factor, cell["factors"].get(factor)) in levels)
    ]


def _crowded(seen: Seen) -> str:
    """The verdict's own choice: the load where requests come closest together."""
    grid = seen.grid
    compared = [load for load in grid.loads if grid.at(grid.baseline, load) and len(list(grid.levels_at(load))) > 1]
    return grid.highest(compared or grid.loads)


# --- the KV cache -----------------------------------------------------------------------------------------------


def kv_cache_happened(seen: Seen) -> list[Chart]:
    return [
        tokens.along_the_answer(seen.records("along"), seen.grid.baseline, seen.load),
        levels.by_load(seen.grid, seen.document, seen.primary, "workload.output_tokens", seen.load, seen.level),
        tokens.answer_time(seen.grid, seen.load),
        memory.held(seen.records("held"), seen.grid.baseline, _bytes_per_token(seen)),
    ]


def kv_cache_cause(seen: Seen) -> str:
    why = (
        "Without the cache each step reads the prompt and all that was written anew, so its work grows with every "
        "token; with it a step computes one token and reads the keys and values that were kept."
    )
    cells = seen.grid.cells_at(seen.level, seen.load)
    floor = cells[0].get("floor") if cells else None
    return f"{why} {floor}" if floor else why


def kv_cache_why(seen: Seen) -> list[Chart]:
    return [formats.ledger(seen)]


def _bytes_per_token(seen: Seen) -> int | None:
    config = reads.model_config(seen.spec)
    return None if config is None else ledger.kv_bytes_per_token(config, ledger.cache_precision(seen.spec))


# --- continuous batching ----------------------------------------------------------------------------------------


def scheduling_happened(seen: Seen) -> list[Chart]:
    grid = seen.grid
    path = next(iter(grid.factors), "")
    beside = grid.others()[-2:] or grid.levels[:1]
    stretches = seen.records("stretches", beside)
    return [
        levels.by_load(grid, seen.document, seen.primary, path, seen.load, seen.level),
        percentiles(seen.records("first_tokens"), grid.baseline, seen.limit_s("ttft_s"), seen.load, FIRST_TOKEN),
        *(slots.slots(stretch, level, seen.load) for level, stretch in stretches.items()),
    ]


def scheduling_cause(seen: Seen) -> str:
    return (
        "A step reads all weights whether it writes one token or eight, so the more answers share it, the less each "
        "costs. A static batch thins out while its longest answer goes on; a continuous one is filled up again."
    )


def scheduling_why(seen: Seen) -> list[Chart]:
    return [tokens.cost_of_one(seen.grid, seen.grid.levels[:4]), tokens.answer_time(seen.grid, seen.load)]
