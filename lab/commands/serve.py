"""`lab serve`: Triton with the models that are named; with --budget behind a proxy that loads them when asked for."""

from __future__ import annotations

import argparse

from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", default=[], metavar="NAME")
    parser.add_argument("--budget", metavar="SIZE", help="memory for all models, such as 500MiB; loaded when asked for")
    parser.add_argument("--pin", action="append", default=[], metavar="NAME", help="with --budget: never evicted")


def run(options: argparse.Namespace) -> int:
    from lab.serve.foreground import serve_forever
    from lab.spec import ModelSpec, parse

    models = [parse(ModelSpec, {"name": name}) for name in dict.fromkeys(options.model)]
    if options.budget is None:
        if options.pin:
            raise InputError(f"--pin {options.pin[0]} without --budget: nothing is ever evicted; allowed: both or none")
        serve_forever(models)
        return 0
    from lab.run.gate import behind_budget, parse_size

    budget = parse_size(options.budget)
    names = [model.name for model in models]
    if stranger := next((name for name in options.pin if name not in names), None):
        raise InputError(f"--pin {stranger}: no --model of that name; allowed: {', '.join(names) or 'none is given'}")
    serve_forever([], lambda server: behind_budget(server, models, budget, options.pin))
    return 0
