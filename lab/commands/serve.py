"""`lab serve`: Triton with the models that are named; with --budget behind a proxy that loads them when asked for."""

from __future__ import annotations

import argparse

from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", default=[], metavar="NAME")
    parser.add_argument("--budget", metavar="SIZE", help="memory for all models, such as 500MiB; loaded when asked for")
    parser.add_argument("--pin", action="append", default=[], metavar="NAME", help="with --budget: never evicted")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="where all of them are served")
    parser.add_argument(
        "--evict-to",
        choices=("disk", "host"),
        help="with --budget: host keeps what is evicted from a GPU in host memory; default: disk",
    )


def run(options: argparse.Namespace) -> int:
    from lab.serve.foreground import serve_forever
    from lab.spec import ModelSpec, parse

    models = [parse(ModelSpec, {"name": name, "device": options.device}) for name in dict.fromkeys(options.model)]
    if options.budget is None:
        for option, given in (("--pin", options.pin[:1]), ("--evict-to", [options.evict_to] * bool(options.evict_to))):
            if given:
                text = f"{option} {given[0]} without --budget: nothing is ever evicted; allowed: both or none"
                raise InputError(text)
        serve_forever(models)
        return 0
    from lab.run.gate import behind_budget, parse_size
    from lab.spec import Store

    budget = parse_size(options.budget)
    names = [model.name for model in models]
    if stranger := next((name for name in options.pin if name not in names), None):
        raise InputError(f"--pin {stranger}: no --model of that name; allowed: {', '.join(names) or 'none is given'}")
    where: Store = options.evict_to or "disk"
    if where == "host" and options.device == "cpu":
        raise InputError(
            "--evict-to host with --device cpu, whose memory is the host's; allowed: disk, or --device gpu"
        )
    serve_forever([], lambda server: behind_budget(server, models, budget, options.pin, where))
    return 0
