"""`lab passport`: this machine's noise, by measuring equals against each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lab.commands.terminal import add_json, print_json, say

if TYPE_CHECKING:
    from lab.measure.compare import Effect


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="a minute instead of three, rougher")
    parser.add_argument("--show", action="store_true", help="only the one that is kept")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.errors import InputError
    from lab.measure import noise
    from lab.measure.phrases import interval_phrase
    from lab.measure.words import format_ratio, metric_label
    from lab.run import equals, passport
    from lab.run.columns import aligned
    from lab.run.runner import Stop

    effects: list[Effect] = []
    if options.show:
        found = passport.read()
        if found is None:
            raise InputError("this machine has no passport as it is now; `python -m lab passport` takes one")
    else:
        found, effects = equals.take(say, quick=options.quick, stop=Stop().on_signals())
    if options.json:
        print_json({**found.to_dict(), "a_against_a": [asdict(effect) for effect in effects]})
        return 0
    table = noise.table(found)
    rows = [list(table), *([str(cell) for cell in row] for row in zip(*table.values(), strict=True))]
    print(f"noise passport of {found.fingerprint}, {found.created_utc[:10]}, blocks of {found.block_s:g} s:")
    print("\n".join(aligned(rows)))
    if doubt := noise.doubt(found):
        print(doubt)
    for effect in effects:
        ratio = f"{format_ratio(effect.ratio)}{interval_phrase(effect)}"
        print(f"A/A {metric_label(effect.metric)}: {ratio}, {effect.verdict}")
    return 0
