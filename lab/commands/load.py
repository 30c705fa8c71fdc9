"""`lab load`: one workload on one model, served by the lab or by anybody else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lab.commands.execution import add_run_options, execute
from lab.commands.given_options import add_given_options, wishes
from lab.commands.objective_options import add_objective, objective
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--url", help="grpc://, http://, openai+http:// or torchserve+http://HOST:PORT of a server that runs already"
    )
    rate = parser.add_mutually_exclusive_group(required=True)
    rate.add_argument("--rate", type=float, metavar="RPS", help="open loop: Poisson arrivals a second")
    rate.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    parser.add_argument("--duration", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--warmup", type=float, metavar="SECONDS", help="left out of every figure; default a tenth")
    parser.add_argument("--prompt-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the prompts")
    parser.add_argument("--output-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the answers")
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help='language model: your own, a line each as {"prompt": …} or as ShareGPT, AIPerf and others have them',
    )
    parser.add_argument(
        "--stream", action=argparse.BooleanOptionalAction, help="language model: answers token by token"
    )
    parser.add_argument(
        "--batching",
        type=batching,
        default=argparse.SUPPRESS,
        metavar="off|N[:US]",
        help="dynamic batching for this run: off, or the largest batch and the queue delay in microseconds; on a "
        "server given by --url it is put back afterwards",
    )
    parser.add_argument("--trace", action="store_true", help="where each request's time went, from Triton's own trace")
    add_objective(parser)
    add_given_options(parser)
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    from lab.load import prompt_file
    from lab.run import given
    from lab.run.catalogue import single
    from lab.spec import set_path

    arrival: dict[str, Any] = {"kind": "closed", "concurrency": options.concurrency}
    if options.rate is not None:
        arrival = {"kind": "poisson", "rate_rps": options.rate}
    wished = wishes(options)
    if options.url is None and wished.any:
        raise InputError("inputs are described without --url; allowed: with the --url of a server that runs already")
    plan = given.Plan({"name": options.model}, {"protocol": "grpc"}, None, ())
    if options.url is not None:
        plan = given.of_url(options.url, options.model, wished)
    model = plan.model | ({"batching": options.batching} if "batching" in options else {})
    workload = {
        "arrival": arrival,
        "duration_s": options.duration,
        "warmup_s": options.duration / 10 if options.warmup is None else options.warmup,
        **({"trace": True} if options.trace else {}),
        **plan.workload,
    }
    for field in ("prompt_tokens", "output_tokens", "stream"):
        if getattr(options, field) is not None:
            workload[field] = getattr(options, field)
    notes = plan.notes
    if options.prompts is not None:
        path = Path(options.prompts).resolve()
        workload["prompts"] = str(path)
        notes = (*notes, prompt_file.told(len(prompt_file.read(path))))
    chosen = single(model, workload, options.settings)
    if (slo := objective(options)) is not None:
        chosen = set_path(chosen, "slo", slo)
    return execute(chosen, options, quick=False, url=options.url, assumed=notes)


def _lengths(text: str) -> Any:
    """8 or [8, 128] from "8" or "8-128"."""
    try:
        least, dash, most = text.partition("-")
        return [int(least), int(most)] if dash else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a number of tokens, or two such as 8-128") from None


def batching(text: str) -> dict[str, Any] | None:
    """None from "off", fields of Batching from "8", "8:2000", or from JSON as pages give it."""
    if text == "off":
        return None
    try:
        if text.startswith("{"):
            return dict(json.loads(text))
        most, colon, delay = text.partition(":")
        return {"max_batch_size": int(most), **({"max_queue_delay_us": int(delay)} if colon else {})}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is off, 8, or 8:2000 for a delay of 2 ms") from None
