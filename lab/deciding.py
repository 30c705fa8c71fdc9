"""The commands that decide: prices, compare, report. Each is what a page does, for a script."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.errors import InputError


def add_price(document: dict[str, Any], price_id: str | None, declared: Mapping[str, Any]) -> dict[str, Any]:
    """The document with what each cell costs at that price; as it is without one. `declared` is the run's
    experiment."""
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


def cost_lines(document: Mapping[str, Any], declared: Mapping[str, Any]) -> list[str]:
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


def as_json(document: dict[str, Any]) -> dict[str, Any]:
    """What --json prints of a run: a load, which is one block, flat."""
    from lab.run import results

    if document["experiment"] != "load":
        return document
    flat = results.single(document)
    if "price" in document:
        flat |= {"price": document["price"], "cost": document["cells"][0]["cost"] if document["cells"] else None}
    return flat


def show_prices() -> list[str]:
    """The catalogue as lines, its file first."""
    from lab.measure.cost_words import format_usd
    from lab.run import prices

    found, today = prices.catalogue(), prices.today()
    width = max(len(price.id) for price in found)
    lines = [f"{prices.own() if prices.own().is_file() else prices.SHIPPED}"]
    for price in found:
        stale = f", {price.age_days(today)} days old" if price.is_stale(today) else ""
        rate = f"{format_usd(price.usd_per_hour)}/h"
        lines.append(f"{price.id.ljust(width)}  {rate.rjust(9)}  {price.as_of}, {price.certainty}{stale}")
    return lines


def prices_as_json() -> dict[str, Any]:
    from lab.run import prices

    today = prices.today()
    return {
        "prices": [
            {"id": price.id, **dataclasses.asdict(price), "age_days": price.age_days(today)}
            for price in prices.catalogue()
        ]
    }


def compare(names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """(lines, JSON) of a comparison of "RUN" or "RUN.CELL" with the first."""
    from lab.measure.phrases import interval_phrase
    from lab.measure.sides import MOST, differences, labels, value_label
    from lab.measure.versus import floor_fraction, versus
    from lab.measure.words import format_metric, metric_label
    from lab.run import results
    from lab.run import sides as stored
    from lab.run.folder import RunFolder

    if not 2 <= len(names) <= MOST:
        raise InputError(f"compare: {len(names)} runs; allowed: 2 to {MOST}")
    found = []
    like: dict[str, Any] | None = None
    for text in names:
        name = stored.Name.read(text)
        folder = RunFolder.open(name.run_id)
        found.append(stored.side(name, results.document(folder), like=like))
        if not found[-1].blocks:
            raise InputError(
                f"run {found[-1].name}: nothing was measured in it; allowed: runs with measurements "
                f"(`python -m lab show {name.run_id}` says why)"
            )
        like = like or stored.cells(folder)[found[0].cell]
    called = labels(found)
    every = [versus(found[0], side, called[0], label) for side, label in zip(found[1:], called[1:], strict=True)]
    differing = [d for d in differences(found) if d.differs]
    lines = [f"{label}  ({side.name})" for label, side in zip(called, found, strict=True)]
    for against in every:
        lines += ["", against.text]
        for effect in against.effects.values():
            figures = f"{format_metric(effect.metric, effect.b)} against {format_metric(effect.metric, effect.a)}"
            lines.append(f"  {metric_label(effect.metric)}: {figures}{interval_phrase(effect)}, {effect.verdict}")
        lines += [f"- {text}" for text in (*against.forbids, *against.read_with)]
    lines += ["", "What differs:" if differing else "Nothing differs."]
    lines += [
        f"  {d.path}: {' | '.join(value_label(d.path, value, d.values) for value in d.values)}" for d in differing
    ]
    document = {
        "sides": [{"name": side.name, "label": label} for side, label in zip(found, called, strict=True)],
        "differences": [{"field": d.path, "values": list(d.values)} for d in differing],
        "against_the_first": [
            {
                "side": v.b,
                "text": v.text,
                "identical": v.identical,
                "forbids": list(v.forbids),
                "read_with": list(v.read_with),
                "effects": [{**dataclasses.asdict(e), "floor_fraction": floor_fraction(e)} for e in v.effects.values()],
            }
            for v in every
        ],
    }
    return lines, document


def export(run_ids: Sequence[str], say: Callable[[str], None]) -> int:
    """Ended runs into MLflow, one after the other, each with its report; the exit status: 1 when one was not."""
    from lab.errors import FolderError, LabError
    from lab.run.folder import RunFolder
    from lab.run.sides import Name
    from lab.show.report import report
    from lab.show.report_html import to_html
    from lab.track import mlflow_export

    for run_id in run_ids:
        try:
            RunFolder.open(run_id)
        except FolderError as error:
            raise InputError(str(error)) from None
    status = 0
    for run_id in run_ids:
        try:
            found = mlflow_export.export(run_id, to_html(report([Name(run_id)])))
        except LabError as error:
            mlflow_export.note_failure(run_id, str(error))
            raise
        say(f"{run_id}: {found.text}{f' ({found.seconds:g} s)' if found.seconds is not None else ''}")
        status = max(status, int(found.state != "done"))
    return status


def write_report(options: argparse.Namespace) -> str:
    """The report as a file, HTML or by its ending Markdown; a line that says where and what stays open."""
    from lab.run import prices
    from lab.run.sides import Name
    from lab.show.report import report
    from lab.show.report_html import to_html
    from lab.show.report_markdown import to_markdown

    out = Path(options.out)
    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {options.out!r}: allowed: a name that ends in .html or .md")
    waivers = {}
    for text in options.waive:
        code, equals, reason = text.partition("=")
        if not equals:
            raise InputError(f"--waive {text!r}: allowed is QUESTION=WHO AND WHY, such as seed=Ann: one draw will do")
        waivers[code] = reason
    price = None if options.price is None else prices.find(options.price)
    names = [Name.read(text) for text in options.runs]
    made = report(names, claim=options.claim, price=price, waivers=waivers)
    data = (to_html(made) if out.suffix == ".html" else to_markdown(made)).encode()
    hidden = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        hidden.write_bytes(data)
        hidden.replace(out)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise InputError(f"--out {options.out!r}: {error.strerror}; allowed: a file that can be written") from None
    return f"{out}: {len(data) / 1024:,.0f} KiB, {made.open_questions} questions stay open"
