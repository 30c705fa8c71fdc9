"""The billing rules that come with the lab: which seconds of a serverless worker each provider is paid for."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from lab.errors import InputError
from lab.measure import billing
from lab.measure.billing import Billing
from lab.spec import nearest

SHIPPED = Path(__file__).with_name("billing.csv")


@cache
def rules() -> tuple[Billing, ...]:
    return billing.read(SHIPPED.read_text())


def find(rule_id: str) -> Billing:
    """The rule of that id; InputError with the nearest one when there is none."""
    found = next((rule for rule in rules() if rule.id == rule_id), None)
    if found is None:
        raise InputError(f"billing rule {rule_id!r}: there is none{nearest(rule_id, [rule.id for rule in rules()])}")
    return found


def of_provider(provider: str) -> Billing | None:
    """The first rule of a price's provider; None for one that bills no workers by the second."""
    return next((rule for rule in rules() if rule.provider == provider), None)
