"""`lab engines`: the same prompts to the lab's engine and to others', in one run with one table and their words."""

from __future__ import annotations

import argparse
from typing import Any

from lab.commands.execution import add_run_options, execute


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="URL=MODEL",
        help="openai+http://, torchserve+http:// or grpc://; may be given several times",
    )
    parser.add_argument("--own", action=argparse.BooleanOptionalAction, default=True, help="the lab's own engine too")
    parser.add_argument("--concurrency", type=int, metavar="N", help="requests in flight; default 4")
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="of each turn of each engine; default 20")
    parser.add_argument("--repeats", type=int, metavar="N", help="turns of each engine; default 2")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="default 32")
    parser.add_argument("--output-tokens", type=int, metavar="N", help="default 64")
    parser.add_argument("--quick", action="store_true", help="one short turn of each, rough figures")
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    from lab.errors import InputError
    from lab.run import engines
    from lab.run.catalogue import experiment
    from lab.run.plan import settle
    from lab.spec import parse_setting

    chosen = [*([engines.OWN] if options.own else []), *(engines.Engine.read(text) for text in options.engine)]
    if len(chosen) < 2:
        raise InputError("one engine is no comparison; allowed: one --engine URL=MODEL or more beside the lab's own")
    for engine in chosen:
        engine.check()
    levels = [engine.level() for engine in chosen]
    settings: list[tuple[str, Any]] = [("workload", levels), ("judge.baseline", levels[0])]
    if options.concurrency is not None:
        settings.append(("workload.arrival", {"kind": "closed", "concurrency": options.concurrency}))
    if options.duration is not None:
        settings += [("workload.duration_s", options.duration), ("workload.warmup_s", options.duration / 5)]
    for field, value in (
        ("repeats", options.repeats),
        ("workload.prompt_tokens", options.prompt_tokens),
        ("workload.output_tokens", options.output_tokens),
    ):
        settings += [] if value is None else [(field, value)]
    settings += [parse_setting(text) for text in options.settings]
    return execute(settle(experiment("engines"), settings, quick=options.quick), options, quick=options.quick)
