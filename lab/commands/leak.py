"""`lab leak`: does a model's memory come back after unloading? Exit status 1 where it does not."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model of the lab, or a model folder with its config.pbtxt")
    parser.add_argument("--cycles", type=int, default=10, help="counted cycles, after two that are not; default 10")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run import leak
    from lab.spec import parse_setting

    model = leak.subject(options.model, [parse_setting(s) for s in options.settings])
    found = leak.leak(model, options.cycles, report=say)
    if options.json:
        print_json({"model": model.name, **found.to_dict()})
    else:
        print(found.text)
    return 1 if found.verdict == "leak" else 0
