"""`lab gateway`: models behind OpenAI's protocol, with routes between their versions."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help="of the lab's Triton")
    parser.add_argument("--url", action="append", default=[], help="grpc:// or openai+http://HOST:PORT beside it")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--budget", metavar="SIZE", help="memory for all models, such as 500MiB; loaded when asked for")
    parser.add_argument("--max-in-flight", type=int, default=256, metavar="N", help="of one replica; more are refused")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="the longest answer")
    parser.add_argument(
        "--drain", type=int, default=30, metavar="SECONDS", help="for answers under way when it is asked to stop"
    )
    parser.add_argument("--body-limit", default="4MiB", metavar="SIZE", help="of one request")
    parser.add_argument(
        "--routes", metavar="FOLDER", help="of a gateway of its own: routes.json there is served as it stands"
    )
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the one --model")


def run(options: argparse.Namespace) -> int:
    from lab.errors import InputError
    from lab.gateway.core import Settings
    from lab.gateway.serve import Wishes, serve
    from lab.run.gate import parse_size
    from lab.spec import ModelSpec, parse, parse_setting, set_path

    if options.max_in_flight < 1:
        raise InputError(f"--max-in-flight {options.max_in_flight}: allowed: a whole number from 1")
    if not 0 < options.timeout < float("inf"):
        raise InputError(f"--timeout {options.timeout:g}: allowed: seconds above 0")
    if options.drain < 0:
        raise InputError(f"--drain {options.drain}: allowed: whole seconds from 0")
    models = [parse(ModelSpec, {"name": name}) for name in dict.fromkeys(options.model)]
    if options.set and len(models) != 1:
        raise InputError(f"--set with {len(models)} models; allowed: exactly one --model")
    for setting in options.set:
        models = [set_path(models[0], *parse_setting(setting))]
    settings = Settings(
        timeout_s=options.timeout,
        max_in_flight=options.max_in_flight,
        body_limit_bytes=parse_size(options.body_limit),
    )
    budget = None if options.budget is None else parse_size(options.budget)
    folder = None if options.routes is None else Path(options.routes).absolute()
    serve(Wishes(models, options.url, options.host, options.port, budget, folder, options.drain, settings))
    return 0
