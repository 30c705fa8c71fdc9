"""A run's figures against another objective than the one it was measured with: the records are there, so nothing runs.

Only what is good changes: goodput, good tokens and the share within the objective. The verdict stays the run's own,
whose hypothesis was about its own objective.
"""

from __future__ import annotations

from typing import Any

from lab.errors import InputError
from lab.run import results
from lab.run.folder import RunFolder
from lab.spec import Experiment, Slo, parse


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
