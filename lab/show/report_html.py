"""A report as one HTML file that opens anywhere: no script, no font, no picture from outside, readable on paper.

The page forbids itself to load anything (Content-Security-Policy), and all text of a run is escaped: a model may be
called anything, and a server may answer an error message with anything.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from lab.measure.redteam import Question
from lab.show.charts.figure import Chart
from lab.show.report import Block, Code, Report, Table
from lab.show.svg import svg
from lab.show.theme import ROLES
from lab.show.told import laid_out

STATUS = {"answered": "✓ answered", "open": "○ open", "waived": "– waived"}
STYLE = """
:root { color-scheme: light dark; %(light)s }
@media (prefers-color-scheme: dark) { :root { %(dark)s } }
@media print { :root { %(light)s } details { display: block; } }
body { font: 16px/1.5 "Source Sans 3", "Source Sans Pro", system-ui, sans-serif; color: var(--ink);
  background: var(--surface); max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 0.2rem; }
.verdict { border-left: 4px solid var(--blue); padding-left: 0.9rem; } .verdict strong { font-size: 1.15rem; }
.verdict ul { padding-left: 1.2rem; }
.quiet, caption, summary { color: var(--muted); font-size: 0.9rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; overflow-wrap: anywhere; max-width: 30rem; }
.wide :is(td, th) { white-space: nowrap; overflow-wrap: normal; font-size: 0.75rem; padding-right: 0.5rem;
  vertical-align: bottom; }
.wide :is(th, td:first-child) { white-space: normal; } .wide td:first-child { min-width: 7rem; }
@media (max-width: 58rem) { .wide td { white-space: normal; } }
@media print { .wide td { white-space: normal; } .scroll { overflow: visible; } }
pre { background: var(--shade); padding: 0.7rem; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { width: 100%%; height: auto; font-family: inherit; }
figure { margin: 0.5rem 0; }
@media screen and (max-width: 44rem) { figure { overflow-x: auto; } svg { min-width: 40rem; } }
svg .halo { paint-order: stroke; stroke: var(--surface); stroke-width: 3px; }
dt { font-weight: 600; margin-top: 0.9rem; } dd { margin: 0; } .open { color: var(--vermillion-text); }
"""


def to_html(report: Report) -> str:
    """The whole file."""
    title = html.escape(report.title)
    open_ = report.open_questions
    style = STYLE % {mode: _variables(mode) for mode in ROLES}
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{style}</style></head><body><main>",
        f"<h1>{title}</h1>",
        f"<p><strong>Claim:</strong> {html.escape(report.claim)}</p>",
        *_verdict(report.verdict),
        f'<p class="quiet">Runs: {html.escape(", ".join(report.runs))}. Questions that stay open: {open_}.</p>',
    ]
    for section in report.sections:
        lines.append(f"<section><h2>{html.escape(section.title)}</h2>")
        for block in section.blocks:
            lines += _block(block)
        lines.append("</section>")
    lines.append("</main></body></html>\n")
    return "\n".join(lines)


def _verdict(text: str) -> Iterator[str]:
    first, rest = laid_out(text)
    yield f'<div class="verdict"><p><strong>{html.escape(first)}</strong></p>'
    if len(rest) == 1:
        yield f"<p>{html.escape(rest[0])}</p>"
    elif rest:
        yield f"<ul>{''.join(f'<li>{html.escape(one)}</li>' for one in rest)}</ul>"
    yield "</div>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case str():
            yield f"<p>{html.escape(block)}</p>"
        case Code():
            yield f"<pre>{html.escape(block.text)}</pre>"
        case Table():
            yield from _table(block.columns)
        case Question():
            mark = f'<span class="{block.status}">{STATUS[block.status]}</span>'
            yield f"<dl><dt>{html.escape(block.question)} {mark}</dt>"
            yield f"<dd>{html.escape(block.answer)} <span class='quiet'>({html.escape(block.code)})</span></dd></dl>"
        case Chart():
            yield f"<h3>{html.escape(block.title)}</h3>"
            yield f"<figure>{svg(block)}</figure><p class='quiet'>{html.escape(block.alt)}</p>"
            for note in block.notes:
                yield f'<p class="quiet">{html.escape(note)}</p>'
            if block.table:
                yield "<details><summary>Data</summary>"
                yield from _table(block.table)
                yield "</details>"


def _table(columns: Any) -> Iterator[str]:
    wide = ' class="wide"' if len(columns) > 5 else ""
    yield f'<div class="scroll"><table{wide}><thead><tr>'
    yield "".join(f'<th scope="col">{html.escape(str(name))}</th>' for name in columns)
    yield "</tr></thead><tbody>"
    for row in zip(*columns.values(), strict=False):
        yield f"<tr>{''.join(f'<td>{html.escape(shown(cell))}</td>' for cell in row)}</tr>"
    yield "</tbody></table></div>"


def shown(cell: Any) -> str:
    """A cell as text: four digits of a number, "n/a" for what is not known."""
    if cell is None:
        return "n/a"
    if isinstance(cell, float):
        return f"{cell:,.4g}" if abs(cell) < 1e4 else f"{cell:,.0f}"
    return str(cell)


def _variables(mode: Any) -> str:
    return " ".join(f"--{role[1:]}: {colour};" for role, colour in ROLES[mode].items())
