"""`lab compare`: two to six runs, or cells of runs, against the first: what differs, ratio, interval, noise floor."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lab.commands.terminal import add_json, print_json
from lab.errors import FolderError, InputError

if TYPE_CHECKING:
    from lab.measure.sides import Difference, Side
    from lab.measure.versus import Versus


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN[.CELL]")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.measure.sides import differences, labels
    from lab.measure.versus import versus

    try:
        found = _sides(options.runs)
    except FolderError as error:
        raise InputError(str(error)) from None
    called = labels(found)
    every = [versus(found[0], side, called[0], label) for side, label in zip(found[1:], called[1:], strict=True)]
    differing = [difference for difference in differences(found) if difference.differs]
    if options.json:
        print_json(_document(found, called, every, differing))
    else:
        print("\n".join(_lines(found, called, every, differing)))
    return 0


def _sides(names: Sequence[str]) -> list[Side]:
    from lab.measure.sides import MOST
    from lab.run import results
    from lab.run import sides as stored
    from lab.run.folder import RunFolder

    if not 2 <= len(names) <= MOST:
        raise InputError(f"compare: {len(names)} runs; allowed: 2 to {MOST}")
    found: list[Side] = []
    like: dict[str, Any] | None = None
    for text in names:
        name = stored.Name.read(text)
        folder = RunFolder.open(name.run_id)
        document = results.document(folder)
        if document.get("cold"):
            raise InputError(
                f"run {name.run_id}: it measured starts, and no load that could be compared; allowed: runs with a load "
                f"(`python -m lab show {name.run_id}` has its ways to start beside each other)"
            )
        found.append(stored.side(name, document, like=like))
        if not found[-1].blocks:
            raise InputError(
                f"run {found[-1].name}: nothing was measured in it; allowed: runs with measurements "
                f"(`python -m lab show {name.run_id}` says why)"
            )
        like = like or stored.cells(folder)[found[0].cell]
    return found


def _lines(
    found: Sequence[Side], called: Sequence[str], every: Sequence[Versus], differing: Sequence[Difference]
) -> list[str]:
    from lab.measure.phrases import interval_phrase
    from lab.measure.sides import value_label
    from lab.measure.words import format_metric, metric_label

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
    return lines


def _document(
    found: Sequence[Side], called: Sequence[str], every: Sequence[Versus], differing: Sequence[Difference]
) -> dict[str, Any]:
    from lab.measure.power import detectable_fraction
    from lab.measure.versus import floor_fraction

    return {
        "sides": [{"name": side.name, "label": label} for side, label in zip(found, called, strict=True)],
        "differences": [{"field": d.path, "values": list(d.values)} for d in differing],
        "against_the_first": [
            {
                "side": v.b,
                "text": v.text,
                "identical": v.identical,
                "forbids": list(v.forbids),
                "read_with": list(v.read_with),
                "effects": [
                    {
                        **dataclasses.asdict(effect),
                        "floor_fraction": floor_fraction(effect),
                        "noise_floor_fraction": v.noise_floors.get(effect.metric),
                        "detectable_fraction": detectable_fraction(effect),
                    }
                    for effect in v.effects.values()
                ],
            }
            for v in every
        ],
    }
