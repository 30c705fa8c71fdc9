"""`lab engines`: the same prompts to the lab's engine and to others', one table with quality."""

from __future__ import annotations

import argparse
from typing import Any

from lab.commands.terminal import INTERRUPTED, add_json, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="URL=MODEL",
        help="openai+http://, torchserve+http:// or grpc://",
    )
    parser.add_argument("--own", action=argparse.BooleanOptionalAction, default=True, help="the lab's own engine too")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--duration", type=float, default=20.0, metavar="SECONDS", help="for each; default 20")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", dest="settings")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.errors import InputError
    from lab.run import engines
    from lab.run.runner import Stop

    chosen = [*([engines.OWN] if options.own else []), *(engines.Engine.read(text) for text in options.engine)]
    if len(chosen) < 2:
        raise InputError("one engine is no comparison; allowed: one --engine URL=MODEL or more beside the lab's own")
    load: dict[str, Any] = {
        "arrival": {"kind": "closed", "concurrency": options.concurrency},
        "duration_s": options.duration,
        "warmup_s": options.duration / 5,
        "prompt_tokens": options.prompt_tokens,
        "output_tokens": options.output_tokens,
        "timeout_s": 120.0,
    }
    stop = Stop().on_signals()
    found = engines.measure(chosen, load, options.settings, stop, say)
    if options.json:
        print_json(found)
    else:
        print("\n".join(lines(found)))
    if stop():
        return INTERRUPTED
    return 1 if any(row["error"] for row in found["engines"]) else 0


def lines(found: dict[str, Any]) -> list[str]:
    from lab.measure.words import format_metric
    from lab.run.columns import aligned

    names = {
        "output_tokens_per_s": "tokens/s",
        "ttft_p50_s": "TTFT p50",
        "itl_mean_s": "ITL mean",
        "latency_p50_s": "p50",
        "error_fraction": "failed",
    }
    rows = [["engine", *names.values(), "same words as the first"]]
    for row in found["engines"]:
        figures = [format_metric(name, row["figures"][name]) for name in names]
        rows.append([row["name"], *figures, _agreement(row)])
    return [*aligned(rows), *(f"{row['name']}: {row['error']}" for row in found["engines"] if row["error"])]


def _agreement(row: dict[str, Any]) -> str:
    found = row["agreement"]
    if found is None or not found["of"]:
        return "n/a"
    apart = "" if found["tokens"] is None else f", the others part after {found['tokens']} tokens"
    return f"{found['equal']} of {found['of']}{apart}"
