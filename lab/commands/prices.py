"""`lab prices`: the catalogue of prices, with the age and the source of each; and which seconds are billed where."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lab.commands.terminal import add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.json:
        print_json(_document())
    else:
        print("\n".join(_lines()))
    return 0


def _lines() -> list[str]:
    """The catalogue as lines, its file first."""
    from lab.measure.cost import stale_words
    from lab.measure.cost_words import format_usd
    from lab.run import billing, prices

    found, today = prices.catalogue(), prices.today()
    width = max(len(price.id) for price in found)
    lines = [f"{prices.own() if prices.own().is_file() else prices.SHIPPED}"]
    for price in found:
        stale = f", {stale_words(price, today)}" if price.is_stale(today) else ""
        rate = f"{format_usd(price.usd_per_hour)}/h"
        lines.append(f"{price.id.ljust(width)}  {rate.rjust(9)}  {price.as_of}, {price.certainty}{stale}")
    lines += ["", "Where workers are paid by the second, which seconds:"]
    return lines + [f"{rule.id}: {rule.rule} ({rule.source}, {rule.as_of})" for rule in billing.rules()]


def _document() -> dict[str, Any]:
    from lab.run import billing, prices

    today = prices.today()
    return {
        "prices": [
            {"id": price.id, **dataclasses.asdict(price), "age_days": price.age_days(today)}
            for price in prices.catalogue()
        ],
        "billing": [{"id": rule.id, **dataclasses.asdict(rule)} for rule in billing.rules()],
    }
