"""A design review as a report: the decision and its checklist first, then all that a report of these runs says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.measure.prices import Price
from lab.measure.review import Decision, Row
from lab.run.sides import Name
from lab.show.charts.review import used
from lab.show.report import Report, Section, Table, report


def record(
    title: str,
    setting: str,
    decision: Decision,
    rows: Sequence[Row],
    names: Sequence[Name],
    *,
    claim: str | None = None,
    price: Price | None = None,
    waivers: Mapping[str, str] | None = None,
) -> Report:
    """The decision record on these runs, the first of which is under review."""
    found = report(names, claim=claim, price=price, waivers=waivers)
    table = Table(
        {
            "requirement": [row.name for row in rows],
            "asked": [row.asked for row in rows],
            "measured": [row.evidence for row in rows],
            "status": [row.status for row in rows],
        }
    )
    signed = [f"{code}: waived by {text}" for code, text in (waivers or {}).items()]
    first = Section("Decision", [decision.text, f"Under review: {setting}.", *signed])
    checked = Section("Requirements and evidence", [table, used(rows)] if rows else ["Nothing is asked of it."])
    return replace(found, title=title, verdict=decision.text, sections=[first, checked, *found.sections])
