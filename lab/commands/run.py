"""`lab run`: an experiment of experiments/, as it is declared or with fields set otherwise."""

from __future__ import annotations

import argparse

from lab.commands.execution import add_run_options, execute
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("experiment")
    parser.add_argument("--quick", action="store_true", help="a minute or two, rough figures")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--bet", metavar="DIRECTION:SIZE", help="what you expect: more:2x, same; scored after")
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run.catalogue import experiment
    from lab.run.plan import settle
    from lab.spec import parse_setting, set_path

    chosen = settle(experiment(options.experiment), [parse_setting(s) for s in options.settings], quick=options.quick)
    if options.repeats is not None:
        chosen = set_path(chosen, "repeats", options.repeats)
    if options.bet is None:
        return execute(chosen, options, quick=options.quick)
    from lab.show import bets

    if chosen.judge is None:
        raise InputError(f"--bet {options.bet!r}: {chosen.id} compares nothing, so there is nothing to bet on")
    options.bet = bets.Bet.read(options.bet)
    return execute(chosen, options, quick=options.quick)
