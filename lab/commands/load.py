"""`lab load`: one workload on one model, served by the lab or by anybody else."""

from __future__ import annotations

import argparse
from typing import Any

from lab.commands.execution import add_run_options, execute
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", help="grpc://, http:// or openai+http://HOST:PORT of a server that runs already")
    rate = parser.add_mutually_exclusive_group(required=True)
    rate.add_argument("--rate", type=float, metavar="RPS", help="open loop: Poisson arrivals a second")
    rate.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    parser.add_argument("--duration", type=float, required=True, metavar="SECONDS")
    parser.add_argument("--warmup", type=float, metavar="SECONDS", help="left out of every figure; default a tenth")
    parser.add_argument("--prompt-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the prompts")
    parser.add_argument("--output-tokens", type=_lengths, metavar="N|N-M", help="language model: length of the answers")
    parser.add_argument(
        "--stream", action=argparse.BooleanOptionalAction, help="language model: answers token by token"
    )
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run.catalogue import single

    url = options.url or ""
    arrival: dict[str, Any] = {"kind": "closed", "concurrency": options.concurrency}
    if options.rate is not None:
        arrival = {"kind": "poisson", "rate_rps": options.rate}
    model: dict[str, Any] = {"name": options.model}
    workload: dict[str, Any] = {
        "arrival": arrival,
        "duration_s": options.duration,
        "warmup_s": options.duration / 10 if options.warmup is None else options.warmup,
        "protocol": "http" if url.lower().startswith("http://") else "grpc",
    }
    if url.lower().startswith("openai+"):
        model = {"name": "llm"}
        workload |= {"protocol": "openai", "served_model": options.model}
    for field in ("prompt_tokens", "output_tokens", "stream"):
        if getattr(options, field) is not None:
            workload[field] = getattr(options, field)
    chosen = single(model, workload, options.settings)
    if options.url is not None:
        _check_server(options.url, options.model)
    return execute(chosen, options, quick=False, url=options.url)


def _lengths(text: str) -> Any:
    """8 or [8, 128] from "8" or "8-128"."""
    try:
        least, dash, most = text.partition("-")
        return [int(least), int(most)] if dash else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: allowed is a number of tokens, or two such as 8-128") from None


def _check_server(url: str, model: str) -> None:
    """Somebody else's server must answer and serve the model before there is a run."""
    from lab.run.bench import at
    from lab.spec import nearest

    with at(url) as server:
        states = {state.name: state for state in server.states()}
        if model not in states:
            raise InputError(f"model {model!r}: the server at {url} has none of that name{nearest(model, states)}")
        if not states[model].ready:
            raise InputError(f"model {model!r} is not ready at {url}: {states[model].reason}")
