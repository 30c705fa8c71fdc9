"""`lab fit`: what models take together, before they are loaded, and whether that is within a budget."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lab.commands.terminal import add_json, print_json, say
from lab.errors import InputError

MOST = 64


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--copies", type=int, default=1, help=f"of each kind; default 1, {MOST} models in all")
    parser.add_argument("--budget", metavar="SIZE", help="memory for all of them, such as 900MiB")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.measure.words import format_bytes
    from lab.run import fit, preflight
    from lab.run.columns import aligned
    from lab.run.gate import parse_size
    from lab.spec import ModelSpec, parse

    kinds = [parse(ModelSpec, {"name": name, "device": options.device}) for name in dict.fromkeys(options.models)]
    if not 1 <= options.copies <= MOST // len(kinds):
        raise InputError(f"--copies {options.copies}; allowed: 1 to {MOST // len(kinds)} of {len(kinds)} models")
    budget = None if options.budget is None else parse_size(options.budget)
    for kind in kinds:
        preflight.check_model(kind)
    fit.look(kinds, say)
    found = fit.lines(fit.copies_of(kinds, options.copies), budget)
    if options.json:
        print_json({"budget_bytes": budget, "models": [asdict(line) for line in found]})
        return 0
    rows = [["model", "adds", "together"]]
    rows += [[line.model, format_bytes(line.adds_bytes), format_bytes(line.together_bytes)] for line in found]
    print("\n".join([*aligned(rows), "", *fit.told(kinds, options.copies, found)]))
    if budget is not None:
        fitting = sum(line.fits is True for line in found)
        print(f"\n{fitting} of {len(found)} fit into {format_bytes(budget)}.")
    return 0
