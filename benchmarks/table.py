"""Rows of a benchmark: printed as a table, or as one JSON document with --json; exit status 1 when a goal is missed.

A row whose peer or browser is not there says "not measured" and why: it neither passes nor fails.
"""

from __future__ import annotations

import argparse
import json
import operator
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lab.run.environment import environment, lab_version


@dataclass(frozen=True)
class Row:
    """`value` None: not measured, and `note` says why. `goal` is "<= 2" or ">= 0.85"; None: reported, not judged."""

    name: str
    value: float | None
    unit: str
    goal: str | None
    n: int
    note: str = ""

    @property
    def met(self) -> bool | None:
        if self.value is None or self.goal is None:
            return None
        sign, bound = self.goal.split()
        return bool({"<=": operator.le, ">=": operator.ge}[sign](self.value, float(bound)))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(description: str, measure: Callable[[], list[Row]]) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure()
    if options.json:
        place = {**environment(), "lab": lab_version()}
        print(json.dumps({"rows": [asdict(r) | {"met": r.met} for r in rows], "environment": place}, indent=1))
    else:
        for row in rows:
            value = "not measured" if row.value is None else f"{row.value:.4g} {row.unit}"
            judged = {True: "met", False: "MISSED", None: "-"}[row.met]
            goal = f"goal {row.goal}" if row.goal else ""
            print(f"{row.name:<62} {value:<20} {goal:<14} {judged:<7} n={row.n} {row.note}".rstrip())
    return 1 if any(row.met is False for row in rows) else 0
