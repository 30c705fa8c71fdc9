"""`lab selftest`: the lab measures itself against servers whose truth is known; exit status 1 where it is wrong."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run.selftest import run_selftest

    outcomes = run_selftest(say)
    if options.json:
        print_json({"tests": [outcome.to_dict() for outcome in outcomes]})
    else:
        for outcome in outcomes:
            print(outcome.line())
    return 0 if all(outcome.passed is not False for outcome in outcomes) else 1
