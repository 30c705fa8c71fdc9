"""A run folder as something that can be planned from: its blocks, a model of its server, and what else limits a plan.

Refuses, in one line with what to run instead, where nothing can be told: a run of one block has no other that it could
be predicted from, so nobody can say how far off a prediction is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow.compute as pc
from tritonclient.grpc import model_config_pb2 as pb

from lab.errors import FolderError, InputError, LabError
from lab.measure import ledger
from lab.measure.figures import inside
from lab.measure.floors import Machine
from lab.measure.planner import calibration, calibrator, heldout
from lab.measure.planner.calibrated import Calibrated, mean
from lab.measure.planner.calibration import Measured
from lab.measure.planner.engine_calibrator import engine_steps
from lab.measure.planner.heldout import Trust
from lab.measure.planner.limits import CHUNK_BYTES, TOKEN_BYTES, WIRE_BYTES, Surroundings
from lab.measure.planner.scaling import Format
from lab.measure.planner.service import Service
from lab.measure.planner.setting import Point, Ranges
from lab.measure.planner.steps import Steps
from lab.measure.records import OK, Requests, Window
from lab.measure.summary import Summary
from lab.measure.words import format_fraction, level_label
from lab.run import results
from lab.run.folder import RunFolder
from lab.serve.repository import TENSORS
from lab.spec import PRECISIONS, ClosedLoop, Experiment, ModelSpec, Precision, Workload, parse

NEEDED = (
    "allowed: a run with several blocks of one model, such as `python -m lab run batching --quick` or "
    "`python -m lab run llm_batching --quick`"
)
MOST_OFF = 1.0
"""Of the median latency, usually, beyond which a model says nothing of its run."""
SENTENCE_BYTES = 120
"""Of a text that a model is asked about, assumed."""


def measured(folder: RunFolder) -> list[Measured]:
    """Every block of the run in which something was answered, in the order they ran, with what it was asked.
    FolderError for a run that cannot be read."""
    try:
        return _measured(folder)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FolderError(f"run {folder.run_id!r} is damaged: {type(error).__name__} {error}") from error


@dataclass(frozen=True)
class Plannable:
    """A run's server as a model, and what of the run's machine and client limits a plan."""

    model: Calibrated
    around: Surroundings


def plannable(folder: RunFolder) -> Plannable:
    """InputError where no plan can be made from the run, with what to run instead."""
    blocks = _of_one_model(folder, measured(folder))
    trust = heldout.trust(blocks)
    if not trust.known:
        raise InputError(
            f"run {folder.run_id}: no block of it can be left out and predicted from others, so nobody can say how far "
            f"a prediction is off; {NEEDED}"
        )
    off = trust.typical("latency_p50_s", fitted=True)
    if off is not None and off > MOST_OFF:
        raise InputError(
            f"run {folder.run_id}: blocks of it that were left out are predicted {format_fraction(off)} off in their "
            "median latency, so it is not what a plan may be made from: its machine was busy with something else, or "
            f"its server is not modelled; {NEEDED}, measured while nothing else runs"
        )
    model = _calibrated(folder, blocks, trust)
    return Plannable(model, _surroundings(folder, blocks, model))


def _surroundings(folder: RunFolder, blocks: Sequence[Measured], model: Calibrated) -> Surroundings:
    core_s, workers = _client(folder, [b for b in blocks if b.users is None and b.summary.sent_rps])
    peaks = [b.summary.memory_peak_bytes for b in blocks if b.summary.memory_peak_bytes]
    return Surroundings(
        memory_bytes=folder.document.get("environment", {}).get("memory_bytes"),
        replica_bytes=max(peaks, default=None),
        client_core_s=core_s,
        client_cores=workers,
        request_bytes=_request_bytes(model),
    )


def _measured(folder: RunFolder) -> list[Measured]:
    experiment = parse(Experiment, folder.document["experiment"])
    events = folder.events()
    starts = [e for e in events if e["kind"] == "block_start"]
    ends = {e["block"]: e for e in events if e["kind"] == "block_end"}
    factors = [cell.factors for cell in experiment.cells()]
    table = folder.read("requests")
    found = []
    for start, summary in zip(starts, _summaries(folder, experiment), strict=True):
        workload = parse(Workload, start["workload"])
        requests = Requests.from_table(table.filter(pc.equal(table["block"], start["block"])))
        if not len(requests):
            continue
        end_ns = min(ends.get(start["block"], start)["end_ns"], start["end_ns"])
        window = Window(start["start_ns"], start["measured_from_ns"], max(end_ns, start["measured_from_ns"] + 1))
        model = parse(ModelSpec, start["model"])
        label = ", ".join(level_label(path, level) for path, level in factors[start["cell"]].items())
        found.append(block(requests, window, workload, model, summary, start["block"], label or "as it is"))
        if start["role"] != "cell":
            found[-1] = replace(found[-1], reference=True)
    return found


def block(
    requests: Requests, window: Window, workload: Workload, model: ModelSpec, summary: Summary, number: int, label: str
) -> Measured:
    """One block for the planner, out of its records."""
    order = np.argsort(requests.due_ns, kind="stable")
    own = (requests.outcome == OK) & inside(requests.due_ns, window)
    closed = workload.arrival if isinstance(workload.arrival, ClosedLoop) else None
    streams = requests.streams
    none = np.empty(0, np.int64)
    return Measured(
        model,
        summary,
        (requests.done_ns[own] - requests.due_ns[own]) / 1e9,
        due_s=(requests.due_ns[order] - window.start_ns) / 1e9,
        took_s=np.where(requests.outcome == OK, (requests.done_ns - requests.due_ns) / 1e9, np.nan)[order],
        window_s=((window.measured_from_ns - window.start_ns) / 1e9, (window.end_ns - window.start_ns) / 1e9),
        users=None if closed is None else closed.concurrency,
        think_s=0.0 if closed is None else closed.think_s,
        prompt_tokens=none if streams is None else streams.prompt_tokens[order],
        output_tokens=none if streams is None else streams.output_tokens[order],
        number=number,
        label=label,
    )


def _summaries(folder: RunFolder, experiment: Experiment) -> list[Summary]:
    """Of each block that began: the kept ones where the run has ended, which saves reading its counters anew."""
    kept = results.document(folder)["cells"]
    if len(kept) == sum(e["kind"] == "block_start" for e in folder.events()):
        return [Summary.from_dict(cell["summary"]) for cell in kept]
    return [found.summary for found in results.block_results(folder, experiment)]


def _of_one_model(folder: RunFolder, blocks: Sequence[Measured]) -> list[Measured]:
    """The blocks of the model, in whatever precisions, that has most of them."""
    name = f"run {folder.run_id}"
    if folder.status().active:
        raise InputError(f"{name}: it goes on; allowed: a run that has ended")
    recorded = folder.document.get("recorded")
    if recorded and recorded["requests_one_in"] > 1:
        raise InputError(
            f"{name}: only 1 in {recorded['requests_one_in']} requests of this recording is kept, and a plan replays "
            f"all of them; {NEEDED}"
        )
    if folder.document["experiment"].get("start"):
        raise InputError(f"{name}: it measured starts, and no load that a plan could be made from; {NEEDED}")
    if folder.document["experiment"].get("fleet"):
        raise InputError(f"{name}: many models behind one budget are not modelled; {NEEDED}")
    if any(event["kind"] == "change" for event in folder.events()):
        raise InputError(f"{name}: its settings were changed while it ran, so its figures mix them; {NEEDED}")
    if not blocks:
        raise InputError(f"{name}: nothing was answered in it; {NEEDED}")
    groups: dict[tuple[Any, ...], list[Measured]] = {}
    refusals: list[str] = []
    for one in blocks:
        if one.model.family == "llm":
            try:
                calibration.engine_rules(one.model)
            except InputError as error:
                refusals.append(str(error))
                continue
        spec = one.model
        groups.setdefault((spec.family, spec.weights, spec.device, spec.instances), []).append(one)
    if not groups:
        raise InputError(f"{name}: {refusals[0]}; {NEEDED}")
    return max(groups.values(), key=len)


def _calibrated(folder: RunFolder, blocks: Sequence[Measured], trust: Trust) -> Calibrated:
    engine = blocks[0].model.family == "llm"
    services: dict[Precision, Service] = {}
    steps: dict[Precision, Steps] = {}
    for family in heldout.families(blocks):
        precision = family[0].model.precision
        try:
            if engine:
                steps.setdefault(precision, engine_steps(family))
            else:
                services.setdefault(precision, calibrator.service(family))
        except InputError:  # blocks that say nothing of this one
            continue
    usual = _usual([b for b in blocks if b.model.precision in (steps or services)] or blocks)
    known = [b for b in blocks if not b.reference and b.model.precision in (steps or services)] or blocks
    rates = [b.summary.offered_rps or b.summary.throughput_rps or 0.0 for b in known]
    limits = next((e for e in folder.events() if e["kind"] == "limits"), None) if engine else None
    return Calibrated(
        usual.model,
        Ranges(
            (min(rates), max(rates)),
            max(_largest(b.summary) for b in blocks),
            frozenset(heldout.setting(b.model) for b in blocks),
            tuple(dict.fromkeys(b.model.precision for b in blocks)),
        ),
        trust,
        services=services,
        steps=steps,
        formats=_formats(limits, blocks, usual.model) if limits is not None else {},
        machine=_machine(limits, folder),
        prompt_tokens=_lengths(usual, usual.prompt_tokens),
        output_tokens=_lengths(usual, usual.output_tokens),
        points=tuple(Point.of(b) for b in blocks if not b.reference),
    )


def _usual(blocks: Sequence[Measured]) -> Measured:
    """The block that served most in time, whose model is what a plan begins with."""
    return max(blocks, key=lambda b: (not b.reference, b.summary.goodput_rps or b.summary.throughput_rps or 0.0))


def _largest(summary: Summary) -> float:
    if summary.engine_batch_mean is not None:
        return summary.engine_batch_mean
    return float(max((size for size, count in summary.batch_sizes.items() if count > 0), default=1))


def _lengths(one: Measured, counts: Any) -> int | tuple[int, int]:
    """Of prompts or answers, from the shortest to the longest that was counted."""
    known = counts[counts > 0]
    if not len(known):
        return 1
    low, high = int(known.min()), int(known.max())
    return low if low == high else (low, high)


def _formats(limits: Mapping[str, Any], blocks: Sequence[Measured], usual: ModelSpec) -> dict[Precision, Format]:
    """What a step of each precision reads: by the engine's own word where it was measured, else by the ledger."""
    found: dict[Precision, Format] = {}
    for precision in PRECISIONS["llm"]:
        try:
            spec = parse(ModelSpec, {**usual.model_dump(), "precision": precision, "quantizer": "rtn"})
            predicted, elements = ledger.predict(limits["config"], spec), ledger.layer_elements(limits["config"])
        except (InputError, KeyError):
            continue
        told = next((b.summary.engine_weight_bytes for b in blocks if b.model.precision == precision), None)
        of_all = told or predicted["weights"].size_bytes + predicted["scales"].size_bytes
        size = of_all / spec.instances  # a step is one instance's, which reads weights of its own
        precision = cast(Precision, precision)
        found[precision] = Format(precision, size, predicted.kv_bytes_per_token, elements, predicted=told is None)
    return found


def _machine(limits: Mapping[str, Any] | None, folder: RunFolder) -> Machine | None:
    """What the probe found, unless a step of the run went below its own floor, which shows the probe to be wrong."""
    if limits is None or not limits.get("machine"):
        return None
    if any(problem["code"] == "floor" for problem in results.document(folder)["problems"]):
        return None
    told = limits["machine"]
    rates = {
        name: told[f"matmul_{name}_{unit}_s"] for name, unit in (("fp32", "flop"), ("bf16", "flop"), ("int8", "op"))
    }
    return Machine(told["read_bandwidth_bytes_s"], rates)


def _client(folder: RunFolder, blocks: Sequence[Measured]) -> tuple[float | None, int]:
    """(seconds of a core that the load workers spent for a request, in the block that sent most; how many workers)."""
    if not blocks:
        return None, 1
    busiest = max(blocks, key=lambda b: b.summary.sent_rps or 0.0)
    start = next(e for e in folder.events() if e["kind"] == "block_start" and e["block"] == busiest.number)
    telemetry = results.between(folder.read("telemetry"), start["measured_from_ns"], start["end_ns"])
    rows = telemetry.filter(
        pc.and_(pc.equal(telemetry["subject"], "client"), pc.equal(telemetry["field"], "cpu_fraction"))
    )
    values = [value for value in rows["value"].to_pylist() if value is not None]
    workers = int(start["workload"].get("workers") or 1)
    if not values or not busiest.summary.sent_rps:
        return None, workers
    return float(np.mean(values)) / busiest.summary.sent_rps, workers


def _request_bytes(model: Calibrated) -> float | None:
    """What a request and its answer carry, with what carries them; None where tensors are not the lab's."""
    family = model.model.family
    if family == "llm":
        prompt, output = mean(model.prompt_tokens), mean(model.output_tokens)
        return WIRE_BYTES + (prompt + output) * TOKEN_BYTES + output / model.model.stream_interval * CHUNK_BYTES
    if family not in TENSORS:
        return None
    sizes = {pb.TYPE_FP32: 4, pb.TYPE_INT32: 4, pb.TYPE_INT64: 8, pb.TYPE_STRING: SENTENCE_BYTES}
    return WIRE_BYTES + sum(t.length * sizes.get(t.kind, 4) for side in TENSORS[family] for t in side)


def told_needed(error: LabError) -> str:
    """The refusal without its allowed part, for a page that offers the runs by a button."""
    return str(error).partition("; allowed:")[0]
