"""Cells of runs, read from disk to be compared: "RUN", or "RUN.CELL" for one of many cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.errors import FolderError, InputError
from lab.measure.formats import format_label, is_baseline
from lab.measure.quality import Quality
from lab.measure.records import Requests, Window
from lab.measure.segments import Block
from lab.measure.sides import Side
from lab.run import passport
from lab.run.folder import RunFolder
from lab.spec import Experiment, ModelSpec, Slo, parse


@dataclass(frozen=True)
class Name:
    """Which cell of which run."""

    run_id: str
    cell: int | None = None

    @classmethod
    def read(cls, text: str) -> Name:
        """From "RUN" or "RUN.CELL"; InputError when CELL is no number."""
        run_id, dot, cell = text.partition(".")
        if dot and not (cell.isdecimal() and len(cell) <= 4):
            raise InputError(f"run {text!r}: allowed: RUN, or RUN.CELL with the number of a cell")
        return cls(run_id, int(cell) if dot else None)

    def __str__(self) -> str:
        return self.run_id if self.cell is None else f"{self.run_id}.{self.cell}"


def cells(folder: RunFolder) -> list[dict[str, Any]]:
    """The levels of each cell of a run, in the order of their numbers."""
    return [dict(cell.get("factors") or {}) for cell in folder.document["cells"]]


def side(name: Name, document: Mapping[str, Any], *, like: Mapping[str, Any] | None = None) -> Side:
    """One side. `document` is the run's (results.document). Without a cell in its name it is the one with the levels
    `like` (those of the baseline's cell), else the first. FolderError when the run cannot be read, InputError when it
    has no such cell."""
    folder = RunFolder.open(name.run_id)
    recorded = folder.document.get("recorded")
    if recorded and recorded["requests_one_in"] > 1:
        raise InputError(
            f"run {name}: only 1 in {recorded['requests_one_in']} requests of this recording is kept, too few to "
            "compare; allowed: runs of this machine, and recordings of all requests"
        )
    levels = cells(folder)
    if name.cell is not None and name.cell >= len(levels):
        raise InputError(f"run {name}: it has the cells 0 to {len(levels) - 1}")
    number = name.cell
    if number is None:
        number = levels.index(dict(like)) if like is not None and dict(like) in levels else 0
    try:
        return _side(folder, number, len(levels) == 1, document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FolderError(f"run {name.run_id!r} is damaged: {type(error).__name__} {error}") from error


def _side(folder: RunFolder, number: int, alone: bool, document: Mapping[str, Any]) -> Side:
    declared = folder.document["cells"][number]
    experiment = parse(Experiment, folder.document["experiment"])
    blocks, workload = _blocks(folder, number)
    levels = experiment.cells()[number].factors
    own = [cell for cell in document["cells"] if cell["role"] == "cell" and cell["factors"] == levels]
    told = (document.get("formats") or {}).get(own[0].get("format") if own else None) or {}
    evaluated = Quality.from_dict(told["quality"]) if told.get("quality") else None
    return Side(
        name=folder.run_id if alone else f"{folder.run_id}.{number}",
        run_id=folder.run_id,
        cell=number,
        state=str(document["state"]),
        quick=bool(folder.document.get("quick")),
        created_utc=str(folder.document.get("created_utc", "")),
        model=dict(declared["model"]),
        workload=workload or dict(declared["workload"]),
        slo=parse(Slo, folder.document["experiment"]["slo"]),
        environment={**folder.document.get("environment", {}), "triton": document.get("environment", {}).get("triton")},
        blocks=blocks,
        summaries=[cell["summary"] for cell in own],
        changed=any(problem["code"] == "changed" for problem in document["problems"]),
        quality=_quality(told, evaluated),
        evaluated=evaluated,
        not_evaluated=_not_evaluated(told, parse(ModelSpec, declared["model"])),
        noise=passport.read(folder.document.get("environment") or {}),
    )


def _quality(told: Mapping[str, Any], evaluated: Quality | None) -> str:
    """What the run found of this format's quality, or why it found nothing; "" of one that is its own baseline."""
    if not told or is_baseline(parse(ModelSpec, told["model"])):
        return ""
    return f"its quality is {told['reason']}." if evaluated is None else evaluated.verdict


def _not_evaluated(told: Mapping[str, Any], model: ModelSpec) -> str:
    """Why there are no figures of quality."""
    if not told and model.family == "llm":
        return "it is somebody else's, whose answers the lab does not score"
    if not told:
        return f"nothing that {model.family} answers can be right or wrong"
    if is_baseline(model):
        return f"{format_label(model)} is what others are compared with, so it has nothing to lose"
    return str(told["reason"] or "")


def _blocks(folder: RunFolder, number: int) -> tuple[list[Block], dict[str, Any]]:
    """The records of a cell's repeats, and the workload as it was run: with its rate in requests a second."""
    events = folder.events()
    starts = [e for e in events if e["kind"] == "block_start" and e["role"] == "cell" and e["cell"] == number]
    ends = {e["block"]: e["end_ns"] for e in events if e["kind"] == "block_end"}
    if not starts:
        return [], {}
    table = folder.read("requests")
    blocks: list[Block] = []
    for start in starts:
        requests = Requests.from_table(table, block=start["block"])
        if not len(requests):
            continue
        end_ns = ends.get(start["block"], min(int(requests.done_ns.max()), start["end_ns"]))
        window = Window(start["start_ns"], start["measured_from_ns"], max(end_ns, start["measured_from_ns"] + 1))
        kept = Requests(requests.due_ns, requests.sent_ns, requests.done_ns, requests.outcome, None, requests.streams)
        blocks.append((kept, window))
    return blocks, dict(starts[0]["workload"])
