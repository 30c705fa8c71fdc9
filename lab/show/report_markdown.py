"""A report as Markdown, for a wiki or a pull request: charts as their sentence and their numbers.

Text of a run is escaped, so that none of it becomes a link, an image or HTML where the file is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lab.measure.redteam import Question
from lab.show.charts.figure import Chart
from lab.show.report import Block, Code, Report, Table
from lab.show.report_html import STATUS, shown
from lab.show.told import laid_out

MARKS = re.compile(r"([\\`*_\[\]<>|#!~])")
MOST_ROWS = 40
"""Of a chart's data; the HTML has all of it."""


def to_markdown(report: Report) -> str:
    """The whole file."""
    lines = [
        f"# {_plain(report.title)}",
        "",
        f"**Claim:** {_plain(report.claim)}",
        "",
        *_verdict(report.verdict),
        f"Runs: {', '.join(report.runs)}. Questions that stay open: {report.open_questions}.",
    ]
    for section in report.sections:
        lines += ["", f"## {_plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    return "\n".join(lines) + "\n"


def _verdict(text: str) -> Iterator[str]:
    first, rest = laid_out(text)
    yield from (f"**Verdict:** {_plain(first)}", "")
    if rest:
        yield from (*(f"{'- ' if len(rest) > 1 else ''}{_plain(one)}" for one in rest), "")


def _block(block: Block) -> Iterator[str]:
    match block:
        case str():
            yield _plain(block)
        case Code():
            fence = "`" * (3 + max((len(run) for run in re.findall(r"`+", block.text)), default=0))
            yield from (fence, block.text, fence)
        case Table():
            yield from _table(block.columns)
        case Question():
            yield f"**{_plain(block.question)}** {STATUS[block.status]} ({_plain(block.code)})  "
            yield _plain(block.answer)
        case Chart():
            yield f"**{_plain(block.title)}.** {_plain(block.alt)}"
            for note in block.notes:
                yield from ("", _plain(note))
            if block.table:
                yield ""
                yield from _table(block.table)


def _table(columns: Any) -> Iterator[str]:
    yield f"| {' | '.join(_plain(str(name)) for name in columns)} |"
    yield f"|{'---|' * len(columns)}"
    rows = list(zip(*columns.values(), strict=False))
    for row in rows[:MOST_ROWS]:
        yield f"| {' | '.join(_plain(shown(cell)) for cell in row)} |"
    if len(rows) > MOST_ROWS:
        yield f"\n… and {len(rows) - MOST_ROWS} more rows, in the HTML report."


def _plain(text: str) -> str:
    """One line in which nothing is markup."""
    return MARKS.sub(r"\\\1", " ".join(text.split()))
