"""One run as the terminal tells it, and what it cost where a price is asked for."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any

from lab.commands.terminal import print_json


def add_price(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--price", metavar="ID", help="say what it cost at that price; `prices` lists them")


def tell(document: dict[str, Any], declared: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Prints a run's document (lab/run/results.py), as text or as JSON; `declared` is the run's experiment."""
    from lab.run.text import lines

    document = _priced(document, options.price, declared)
    if options.json:
        print_json(_flat(document))
    else:
        print("\n".join([*lines(document), *_objective_lines(document, declared), *_cost_lines(document, declared)]))


def _priced(document: dict[str, Any], price_id: str | None, declared: Mapping[str, Any]) -> dict[str, Any]:
    """The document with what each cell costs at that price; as it is without one."""
    if price_id is None:
        return document
    from lab.measure import cost
    from lab.run import prices

    price, use = prices.find(price_id), cost.Use()
    fit = cost.fit(price, document["environment"], str(declared["model"].get("device", "cpu")))
    told = {**dataclasses.asdict(price), "id": price.id, "measured_on_it": fit.measured}
    told["read_with"] = list(cost.caveats(price, use, fit, today=prices.today()))
    cells = [{**cell, "cost": dataclasses.asdict(cost.cost(cell["summary"], price, use))} for cell in document["cells"]]
    return {**document, "cells": cells, "price": told}


def _objective_lines(document: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """Of a single load: what its goodput counts, and whether that is enough."""
    if document["experiment"] != "load" or not document["cells"]:
        return []
    from lab.measure.words import format_fraction, objective_label
    from lab.spec import Slo, parse

    slo = parse(Slo, declared["slo"])
    attained = format_fraction(document["cells"][0]["summary"].get("slo_attainment_fraction"))
    asked = format_fraction(slo.percentile)
    said = f"Goodput counts answers within {objective_label(slo)}: {attained} of those that were due"
    return ["", f"{said}; the objective asks for {asked}."]


def _cost_lines(document: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
    """What each cell costs, in words; nothing for a document without a price."""
    if "price" not in document:
        return []
    from lab.measure.cost import Cost
    from lab.measure.cost_words import sentence
    from lab.measure.words import level_label
    from lab.spec import Slo, parse

    slo = parse(Slo, declared["slo"])
    lines = ["", f"Cost at {document['price']['id']} ({document['price']['source']}, {document['price']['as_of']}):"]
    for cell in document["cells"]:
        label = ", ".join(level_label(path, level) for path, level in cell["factors"].items()) or "the model as it is"
        if cell["role"] == "cell":
            attained = cell["summary"].get("slo_attainment_fraction")
            lines.append(f"- {label}, repeat {cell['repeat'] + 1}: {sentence(Cost(**cell['cost']), slo, attained)}")
    return [*lines, *(f"- {text}" for text in document["price"]["read_with"])]


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    """A load is one block: its JSON is flat."""
    from lab.run import results

    if document["experiment"] != "load":
        return document
    flat = results.single(document)
    if "price" in document:
        flat |= {"price": document["price"], "cost": document["cells"][0]["cost"] if document["cells"] else None}
    return flat
