"""`lab call`: one request to one model, and what it answers."""

from __future__ import annotations

import argparse

from lab.commands.given_options import add_given_options, wishes
from lab.commands.terminal import add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--url", help="grpc:// or http://HOST:PORT of a Triton; the lab's own where it runs")
    parser.add_argument("--seed", type=int, default=0, help="of the values that are drawn")
    add_given_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.run import call, given
    from lab.serve.described import describe

    with given.triton(options.url) as server:
        described = describe(server, options.model)
        wished = wishes(options)
        asked = given.given_of(described, wished)
        request = given.first_request(asked, options.seed)
        over_http = (options.url or "").lower().startswith("http")
        found = call.call(server, options.model, request, over_http=over_http, decoupled=described.decoupled)
        notes = [*given.notes(described, wished, asked), *call.unread(server, options.model, request)]
    if options.json:
        print_json({"model": asdict(described), **found.to_dict(), "notes": notes})
    else:
        print("\n".join([f"{described.name}: {described.lines()[0]}", *found.lines(), *(f"- {n}" for n in notes)]))
    return 0
