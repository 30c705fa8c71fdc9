"""A run as MLflow knows runs: parameters, metrics, one value a second, tags and files, as plain JSON.

One run of the lab is one MLflow run; with several cells it is the parent, and each repeat of each cell a child. Names
are those of the summary's fields. A figure that was not measured is left out, and so is one that is not finite, which
MLflow would store as another number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from lab.errors import LabError
from lab.measure.words import level_label
from lab.run.folder import RunFolder
from lab.run.live import Live
from lab.serve.repository import config_pbtxt
from lab.spec import ModelSpec, parse

EXPERIMENT = "serving-lab"
NAME = re.compile(r"[^A-Za-z0-9_./: -]")
MOST_CHARACTERS = 500
STATUS = {"done": "FINISHED", "cancelled": "KILLED"}
"""MLflow's word for a state; FAILED for any other."""


def bundle(folder: RunFolder, document: Mapping[str, Any], scratch: Path, report: str | None = None) -> dict[str, Any]:
    """The whole of it. Files that are made for it (records, configs, `report`, which is HTML) go to `scratch`."""
    declared = folder.document["experiment"]
    begun_ms = _begun_ms(folder)
    cells = [cell for cell in document["cells"] if cell["role"] == "cell"]
    alone = len(cells) == 1
    ended = _seconds(folder)
    parent = {
        "name": folder.run_id,
        "tags": {**_tags(document), "lab.run": folder.run_id, "lab.schema": str(folder.document["schema_version"])},
        "params": _flat({name: declared[name] for name in ("model", "workload", "slo", "repeats")})
        | {f"varied.{path}": json.dumps(levels) for path, levels in declared["factors"].items()},
        "metrics": metrics(cells[0]["summary"]) if alone else {},
        "series": series(folder),
        "artifacts": _files(folder, scratch, report),
        "status": STATUS.get(document["state"], "FAILED"),
        "begun_ms": begun_ms,
        "ended_ms": begun_ms + 1000 * ended,
    }
    children = [] if alone else [_child(folder, cell, begun_ms, ended) for cell in cells]
    return {"experiment": EXPERIMENT, "parent": parent, "children": children}


def metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a summary that are finite numbers."""
    return {
        metric_name(name): float(value)
        for name, value in summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def metric_name(name: str) -> str:
    """A name that MLflow takes: "p99 _ms_" for "p99 (ms)"."""
    return NAME.sub("_", name)


def series(folder: RunFolder) -> dict[str, list[tuple[int, float]]]:
    """{"per_second/NAME": (second, value)} of everything that the live page draws; gaps stay gaps."""
    view = Live(folder).update()
    columns = {**view.series, **{f"memory_mib {subject}": values for subject, values in view.memory_mib.items()}}
    columns.pop("t_s", None)
    found = {}
    for name, values in columns.items():
        known = np.asarray(values, dtype=float)
        points = [(second, float(known[second])) for second in np.flatnonzero(np.isfinite(known)).tolist()]
        if points:
            found[f"per_second/{metric_name(name)}"] = points
    return found


def _child(folder: RunFolder, cell: Mapping[str, Any], begun_ms: int, ended: int) -> dict[str, Any]:
    words = ", ".join(level_label(path, level) for path, level in cell["factors"].items())
    return {
        "name": f"{words}, repeat {cell['repeat'] + 1}"[:MOST_CHARACTERS],
        "tags": {"lab.run": folder.run_id, "lab.repeat": str(cell["repeat"] + 1)},
        "params": {metric_name(path): _text(level) for path, level in cell["factors"].items()},
        "metrics": metrics(cell["summary"]),
        "series": {},
        "artifacts": [],
        "status": "FINISHED",
        "begun_ms": begun_ms,
        "ended_ms": begun_ms + 1000 * ended,
    }


def _tags(document: Mapping[str, Any]) -> dict[str, str]:
    environment = document["environment"]
    told = environment.get("lab")
    lab = told if isinstance(told, Mapping) else {}
    tags = {
        "lab.experiment": document["experiment"],
        "lab.state": document["state"],
        "lab.quick": document["quick"],
        "lab.verdict": document["verdict"]["text"],
        "lab.problems": ", ".join(problem["code"] for problem in document["problems"]),
        "lab.cpu": environment.get("cpu"),
        "lab.cores": environment.get("cores"),
        "lab.triton": environment.get("triton"),
        "lab.gpus": environment.get("gpus"),
        "lab.version": lab.get("version"),
        "lab.dirty": lab.get("dirty"),
        "lab.changes": lab.get("changes"),
        "mlflow.source.git.commit": lab.get("commit"),
    }
    return {name: _text(value) for name, value in tags.items() if value not in (None, "")}


def _files(folder: RunFolder, scratch: Path, report: str | None) -> list[str]:
    """The run's own files and those made of it: a model whose config cannot be written costs that file alone."""
    kept = [folder.path / name for name in ("run.json", "summary.json", "events.jsonl", "log.txt")]
    records = scratch / "requests.parquet"
    pq.write_table(folder.read("requests"), records)
    made = [records]
    if report is not None:
        made.append(scratch / "report.html")
        made[-1].write_text(report)
    try:
        for cell in folder.document["cells"]:
            spec = parse(ModelSpec, cell["model"])
            config = scratch / f"{spec.name}-{len(made)}.config.pbtxt"
            text = config_pbtxt(spec)
            if not any(path.suffix == ".pbtxt" and path.read_text() == text for path in made):
                config.write_text(text)
                made.append(config)
    except LabError:
        pass
    return [str(path) for path in [*kept, *made] if path.is_file()]


def _flat(value: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, inner in value.items():
        path = f"{above}{name}"
        if isinstance(inner, Mapping):
            found |= _flat(inner, f"{path}.")
        elif inner is not None:
            found[metric_name(path)] = _text(inner)
    return found


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:MOST_CHARACTERS]


def _begun_ms(folder: RunFolder) -> int:
    try:
        return int(datetime.fromisoformat(str(folder.document["created_utc"])).timestamp() * 1000)
    except (KeyError, ValueError):
        return 0


def _seconds(folder: RunFolder) -> int:
    """From the first event of the run to its last."""
    stamps: Sequence[int] = [event["t_ns"] for event in folder.events()]
    return round((max(stamps) - min(stamps)) / 1e9) if stamps else 0
