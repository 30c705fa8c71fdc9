"""A run folder, interpreted: the document that `run --json`, the pages and the report all show.

Every figure is recomputed from the raw records by lab.measure.summary.summarize; `summary.json` is that document kept,
so that opening an old run need not read its records again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from lab.errors import FolderError, InputError, RunError
from lab.measure import autoscale_words, fleet_words, lora, patterns, rehearsal
from lab.measure.doubts import when_quick
from lab.measure.ending import ending
from lab.measure.fleet import fleet
from lab.measure.levels import same
from lab.measure.records import OK, OUTCOMES
from lab.measure.summary import Summary
from lab.measure.words import plural
from lab.run import beside, designs, floors, formats, ledgers, passport, promises, recording, scaled, swept, traced
from lab.run.blocks import BlockResult as BlockResult
from lab.run.blocks import between as between
from lab.run.blocks import block_results as block_results
from lab.run.blocks import delta as delta
from lab.run.folder import RunFolder
from lab.run.judged import course, judged, unequal_answers
from lab.run.starts import Starts
from lab.run.status import ACTIVE
from lab.run.told import Told
from lab.spec import Experiment, Gamma, Poisson, Workload, parse


def document(folder: RunFolder) -> dict[str, Any]:
    """The run as `run --json` prints it: kept when the run has ended, computed from the records so far otherwise."""
    status = folder.status()
    kept = None if status.active else _kept(folder)
    if kept is not None:
        return {**kept, "state": status.state, "message": status.message}
    try:
        return {**compute(folder, state=status.state, message=status.message), "message": status.message}
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise FolderError(f"run {folder.run_id!r} is damaged: {type(error).__name__} {error}") from error


def _kept(folder: RunFolder) -> dict[str, Any] | None:
    """summary.json when it is whole; the records say the same, only slower, when it is not."""
    try:
        kept = folder.summary
    except FolderError:
        return None
    if kept is None or not {"run", "cells", "verdict", "problems"} <= kept.keys():
        return None
    if recorded := folder.document.get("recorded"):
        return recording.told(kept, recorded)
    # What an older lab kept lacks the figures that were added since.
    known = Summary.__dataclass_fields__.keys()
    if not all(known <= cell["summary"].keys() for cell in kept["cells"]):
        return None
    # An older lab named limits by floors that a measured step shows to be too high.
    steps = [cell.get("step") or {} for cell in kept["cells"]]
    named = any(step.get("limiting") for step in steps)
    return None if named and any(step.get("fraction", 0.0) > 1 for step in steps) else kept


def compute(folder: RunFolder, *, state: str, message: str = "") -> dict[str, Any]:
    """The same document, computed anew from the records. `message`: why the run is in that state."""
    experiment = parse(Experiment, folder.document["experiment"])
    blocks = block_results(folder, experiment)
    events = folder.events()
    told = Told.by(events)
    answers = next((_without_stamp(e) for e in events if e["kind"] == "answers"), None)
    ended = ending(state, message, course(experiment, events, blocks))
    kept = passport.read(folder.document["environment"])
    found = judged(experiment, blocks, told, kept, over=state not in ACTIVE)
    if experiment.judge is None and ended:
        found = replace(found, text="")  # how it ended is all there is to say
    if answers is not None and (differ := unequal_answers(experiment, answers)):
        found = replace(found, holds=None, text=differ, where=())
    many = None if experiment.fleet is None else fleet(events, folder.read("requests"), folder.read("waits"))
    if many is not None and many["cells"]:
        many["throughput"] = fleet_words.intervals(experiment.judge and experiment.judge.baseline, found.effects)
        found = replace(found, holds=fleet_words.holds(many), text=fleet_words.cliff(many), where=(), headline=None)
    rehearsed = rehearsal.rehearsal(events)
    if rehearsed is not None:
        fell_behind = [p for b in blocks if b.role == "cell" for p in b.summary.problems if p.code == "client_limited"]
        limited = next((problem.text for problem in fell_behind if problem.forbids_verdict), None)
        holds, said = rehearsal.verdict(rehearsed, whole=not ended, limited=limited)
        found = replace(found, holds=holds, text=said)
    together = None if experiment.rollout is not None else designs.design(experiment, blocks)
    if together is not None and together["text"]:
        found = replace(found, text=together["text"], where=(), headline=None)
    tried = swept.swept(experiment, events, blocks)
    if tried is not None:
        found = replace(found, text=tried["text"])
    looked_for = next((_without_stamp(e) for e in events if e["kind"] == "search"), None)
    if looked_for is not None:
        found = replace(found, text=looked_for["text"])
    starts = Starts.of(experiment, folder, events)
    found = starts.verdict(found)
    tuned = lora.lora(events)
    if tuned is not None:
        tuned = lora.with_effects(tuned, found.effects)
        text = " ".join(lora.sentences(tuned)) or found.text
        found = replace(found, holds=lora.holds(tuned), text=text, where=(), headline=None)
    promised = promises.promised(experiment, blocks)
    if promised is not None:
        found = replace(found, text=" ".join([found.text, *patterns.sentences(promised)]).strip())
    instances = scaled.scaled(experiment, events, blocks)
    if instances is not None:
        text = " ".join(autoscale_words.sentences(instances)) or found.text
        found = replace(found, holds=autoscale_words.holds(instances), text=text, where=(), headline=None)
    cells = experiment.cells()
    engines = beside.beside(experiment, events, blocks, found.effects)
    if engines is not None and engines["text"]:
        found = replace(found, text=engines["text"], where=(), headline=None)
    if folder.document["quick"]:
        found = replace(found, text=when_quick(found.text))
    ways = traced.told(folder)
    gaps = [] if ways is None or not ways["gaps"] else [ways["gaps"]]
    in_formats = ledgers.of_blocks(experiment, blocks, told)
    elsewhere = folder.document.get("url") is not None
    if elsewhere:  # in which format somebody else's server computes, nobody told
        in_formats = [{**each, "format": None} for each in in_formats]
    return {
        "run": folder.document["run"],
        "experiment": experiment.id,
        "state": state,
        "ending": ended,
        "quick": folder.document["quick"],
        "environment": {
            **folder.document["environment"],
            "triton": next((e["triton"] for e in events if e["kind"] == "serving"), None),
            "niceness": next((e.get("niceness") for e in events if e["kind"] == "block_start"), None),
        },
        "cells": [
            {
                "factors": cells[b.cell].factors,
                "repeat": b.repeat,
                "role": b.role,
                "asked_rps": _asked_rps(b.workload),
                "summary": b.summary.to_dict(),
                **format_of_it,
            }
            for b, format_of_it in zip(blocks, in_formats, strict=True)
        ],
        "formats": {} if elsewhere else formats.of_run(experiment, told),
        "fleet": many,
        "lora": tuned,
        "patterns": promised,
        "autoscaling": instances,
        **starts.document,
        "rehearsal": rehearsed,
        "factorial": together,
        "search": looked_for,
        "sweep": tried,
        "engines": engines,
        "trace": ways,
        "answers": answers,
        "verdict": found.to_dict(),
        "problems": [
            *_problems(folder, experiment, events, blocks, state),
            *starts.problems,
            *(
                {"code": "floor", "text": text, "remedy": remedy, "blocks": None}
                for text, remedy in floors.doubts(in_formats)
            ),
            *({"code": "trace_gaps", "text": t, "remedy": "Trace it again.", "blocks": None} for t in gaps),
        ],
    }


def _asked_rps(workload: Workload) -> float | None:
    """The rate that random arrivals were drawn at; None where arrivals are not random."""
    arrival = workload.arrival
    return arrival.rate_rps if isinstance(arrival, Poisson | Gamma) else None


def single(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a run of one block, flattened as `load --json` prints it."""
    cell = document["cells"][0] if document["cells"] else {}
    return {
        "run": document["run"],
        "state": document["state"],
        "environment": document["environment"],
        "summary": cell.get("summary"),
        "trace": document.get("trace"),
        "ledger": cell.get("ledger"),
        "floor": cell.get("floor"),
        "formats": document.get("formats"),
        "problems": document["problems"],
    }


def baseline_saturation(folder: RunFolder, experiment: Experiment) -> float | None:
    """Requests a second that the judged factor's baseline level answers under the reference load, once it was
    measured. Those of a language model are counted in tokens, as long answers as it was asked for: few whole ones end
    in a short window."""
    if experiment.reference is None:
        return None
    baseline = experiment.judge.baseline if experiment.judge else None
    factor = experiment.judge.factor if experiment.judge else None
    cells = experiment.cells()
    measured = [b for b in block_results(folder, experiment) if b.role == "saturation"]
    chosen = next((b for b in measured if factor is None or same(cells[b.cell].factors[factor], baseline)), None)
    if chosen is None and measured:
        chosen = measured[0]  # the baseline is not among the levels (--set took it out): the first level stands in
    rate = None
    if chosen is not None:
        rate = chosen.summary.throughput_rps
        if (tokens := chosen.summary.output_tokens_per_s) is not None:
            rate = tokens / _mean(cells[chosen.cell].workload.output_tokens)
    if not rate:
        raise RunError("the saturation run answered no request, so no load can be set as a fraction of it")
    return rate


def _mean(lengths: int | tuple[int, int]) -> float:
    return lengths if isinstance(lengths, int) else sum(lengths) / 2


def successes(folder: RunFolder) -> int:
    """Requests of the whole run that ended ok."""
    return int(pc.sum(pc.equal(folder.read("requests")["outcome"], OK)).as_py() or 0)


def most_common_failure(folder: RunFolder) -> str:
    """ "5 × refused: queue is full", the failure that happened most often."""
    table = folder.read("requests")
    failures = Counter(
        (outcome, detail)
        for outcome, detail in zip(table["outcome"].to_pylist(), table["detail"].to_pylist(), strict=True)
        if outcome != OK
    )
    if not failures:
        return "none was sent"
    (outcome, detail), count = failures.most_common(1)[0]
    return f"{count} × {OUTCOMES[outcome]}: {detail}"


def _problems(
    folder: RunFolder, experiment: Experiment, events: list[dict[str, Any]], blocks: list[BlockResult], state: str
) -> list[dict[str, Any]]:
    """Problems of the run as a whole: what the runner noted, and each problem of a block once, with its count."""
    problems = [
        {"code": e["kind"], "text": e["text"], "remedy": "", "blocks": None}
        for e in events
        if e["kind"] in ("problem", "died", "assumed")
    ]
    for note in formats.engine_notes(experiment, blocks, folder.read("server")):
        problems.append({"code": "engine_note", "text": note, "remedy": "", "blocks": None})
    for left_out in folder.document.get("missing", ()):
        remedy = "Run it where there is one."
        problems.append({"code": "not_measured", "text": left_out["text"], "remedy": remedy, "blocks": None})
    if state == "interrupted":
        text = f"The run was interrupted: {folder.status().message}."
        problems.append({"code": "interrupted", "text": text, "remedy": "Run it again.", "blocks": None})
    changes = sum(e["kind"] == "change" for e in events)
    if changes:
        text = f"Settings were changed {plural(changes, 'time')} while the load ran: whole-run figures mix them."
        problems.append(
            {"code": "changed", "text": text, "remedy": "Read the live chart between changes.", "blocks": None}
        )
    if folder.document["quick"]:
        text = "A quick run: one repeat of short blocks, so its figures are rough."
        if experiment.start is not None:
            text = f"A quick run: {plural(experiment.repeats, 'start')} of each way, so its figures are rough."
        problems.append({"code": "quick", "text": text, "remedy": "Run it without --quick.", "blocks": None})
    by_code: dict[str, list[Any]] = {}
    for block in blocks:
        for problem in block.summary.problems:
            by_code.setdefault(problem.code, []).append(problem)
    for code, found in by_code.items():
        remedy = when_quick(found[0].remedy) if folder.document["quick"] else found[0].remedy
        problems.append(
            {"code": code, "text": found[0].text, "remedy": remedy, "blocks": f"{len(found)} of {len(blocks)}"}
        )
    return problems


def _without_stamp(event: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in ("kind", "t_ns")}
