"""A report as JSON, for whoever checks or archives it: the same sections, charts as their sentence and numbers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from lab.measure.redteam import Question
from lab.show.charts.figure import Chart
from lab.show.report import Block, Code, Report, Table


def to_json(report: Report) -> str:
    """The whole file; what is not known is null, and hashes stand in the section that says how to run it again."""
    document = {
        "title": report.title,
        "claim": report.claim,
        "verdict": report.verdict,
        "runs": list(report.runs),
        "open_questions": report.open_questions,
        "sections": [{"title": s.title, "blocks": [_block(block) for block in s.blocks]} for s in report.sections],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"


def _block(block: Block) -> dict[str, Any]:
    match block:
        case Table():
            return {"table": dict(block.columns)}
        case Code():
            return {"code": block.text}
        case Question():
            return {"question": asdict(block)}
        case Chart():
            return {"chart": block.title, "says": block.alt, "data": block.table, "notes": list(block.notes)}
        case _:
            return {"text": block}
