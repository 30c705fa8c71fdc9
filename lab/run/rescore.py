"""A run's figures against another objective, or by other tools' definitions: the records are there, so nothing runs.

Against another objective only what is good changes: goodput, good tokens and the share within the objective. The
verdict stays the run's own, whose hypothesis was about its own objective.
"""

from __future__ import annotations

from typing import Any

from lab.errors import InputError
from lab.measure.definitions import FIGURES, WHY, rescore
from lab.measure.words import format_metric, level_label, metric_label
from lab.run import results
from lab.run.columns import aligned
from lab.run.folder import RunFolder
from lab.spec import Experiment, Slo, parse, plain


def against(folder: RunFolder, document: dict[str, Any], slo: Slo) -> dict[str, Any]:
    """`document` (results.document, of a run that is over) with every block's summary taken against `slo`. InputError
    when not all records are there."""
    experiment = parse(Experiment, folder.document["experiment"])
    if slo == experiment.slo:
        return document
    recorded = folder.document.get("recorded")
    if recorded and recorded["requests_one_in"] > 1:
        raise InputError(
            f"run {folder.run_id}: only 1 in {recorded['requests_one_in']} requests of this recording is kept; "
            "allowed: its own objective"
        )
    blocks = results.block_results(folder, experiment, slo)
    if len(blocks) != len(document["cells"]):
        raise InputError(
            f"run {folder.run_id}: its records hold {len(blocks)} blocks, its figures are of another number"
        )
    cells = [
        {**cell, "summary": block.summary.to_dict()} for cell, block in zip(document["cells"], blocks, strict=True)
    ]
    return {**document, "cells": cells}


def by_tools(folder: RunFolder) -> list[dict[str, Any]]:
    """[{"factors", "repeat", "scores": {tool: {figure: value}}}] of every measured block, as each tool of
    lab.measure.definitions would print the same streams. InputError where the records hold no streams, or not all of
    their chunks."""
    recorded = folder.document.get("recorded")
    if recorded and not recorded["whole"]:
        raise InputError(
            f"run {folder.run_id}: this recording does not keep every chunk of every answer; definitions need all"
        )
    experiment = parse(Experiment, folder.document["experiment"])
    cells = experiment.cells()
    blocks = [block for block in results.block_results(folder, experiment) if block.role == "cell"]
    if all(block.requests.streams is None or not len(block.requests.streams.t_ns) for block in blocks):
        raise InputError(f"run {folder.run_id}: its records hold no streamed tokens; allowed: a language model's run")
    return [
        {
            "factors": {path: plain(level) for path, level in cells[block.cell].factors.items()},
            "repeat": block.repeat,
            "scores": {
                tool: rescore(block.requests, block.window, tool, streamed=cells[block.cell].workload.stream)
                for tool in WHY
            },
        }
        for block in blocks
    ]


def lines_by_tools(scored: list[dict[str, Any]]) -> list[str]:
    """The same for a terminal: a table a block, then why the tools differ."""
    out: list[str] = []
    for block in scored:
        label = ", ".join(level_label(path, level) for path, level in block["factors"].items()) or "the model as it is"
        rows = [["as scored by", *(metric_label(figure) for figure in FIGURES)]]
        rows += [[tool, *(format_metric(f, found[f]) for f in FIGURES)] for tool, found in block["scores"].items()]
        out += [f"{label}, repeat {block['repeat'] + 1}:", *aligned(rows), ""]
    return [*out, *(f"- {tool}: {why}" for tool, why in WHY.items())]
