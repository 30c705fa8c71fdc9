"""Which seconds of a serverless worker are paid: each provider's rule, read and checked from rows. Pure.

    paid = start × bills_start + busy + idle × bills_idle, each worker's life rounded up to `step_s`

A rule is a fact with a source and a date, as a price is (prices.py); where the rows are kept is lab/run/billing.py's
business. What comes on top (CPU and memory beside a GPU, storage, requests) is in no rule.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from lab.errors import InputError
from lab.measure.serverless_sim import Simulated

FIELDS = ("provider", "what", "bills_start", "bills_idle", "step_s", "idle_s", "form", "rule", "source", "as_of")
YES_NO = {"yes": True, "no": False}


@dataclass(frozen=True)
class Billing:
    """`what` tells a provider's kinds of service apart. `idle_s`: how long a worker stays up after its last request
    unless told otherwise. `form`: how requests are made to it (lab/load/targets): openai or replicate."""

    provider: str
    what: str
    bills_start: bool
    bills_idle: bool
    step_s: float
    idle_s: float
    form: str
    rule: str
    source: str
    as_of: str

    @property
    def id(self) -> str:
        return f"{self.provider}-{self.what}"

    def paid_s(self, run: Simulated) -> float:
        """Of the workers of a simulated span."""
        paid = run.busy_s + run.start_s * self.bills_start + run.idle_s * self.bills_idle
        lives = max(run.starts, 1)
        return math.ceil(paid / lives / self.step_s - 1e-9) * self.step_s * lives if self.step_s else paid


def read(text: str) -> tuple[Billing, ...]:
    """The rows of a CSV file with the columns of FIELDS. InputError for the first that does not fit."""
    reader = csv.DictReader(io.StringIO("\n".join(line for line in text.splitlines() if not line.startswith("#"))))
    if tuple(reader.fieldnames or ()) != FIELDS:
        raise InputError(f"billing: columns {reader.fieldnames}; allowed: {', '.join(FIELDS)}")
    found = []
    for number, row in enumerate(reader, start=1):
        try:
            numbers = {name: float(row[name]) for name in ("step_s", "idle_s")}
            flags = {name: YES_NO[row[name]] for name in ("bills_start", "bills_idle")}
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"billing row {number}: {error}: allowed: yes or no, and seconds") from None
        if min(numbers.values()) < 0 or not all(row[name] for name in ("provider", "what", "rule", "source", "as_of")):
            raise InputError(f"billing row {number}: seconds below 0, or a text that is missing")
        texts = {name: str(row[name]) for name in ("provider", "what", "form", "rule", "source", "as_of")}
        found.append(
            Billing(
                texts["provider"],
                texts["what"],
                flags["bills_start"],
                flags["bills_idle"],
                numbers["step_s"],
                numbers["idle_s"],
                texts["form"],
                texts["rule"],
                texts["source"],
                texts["as_of"],
            )
        )
    return tuple(found)
