"""`lab call`: one request to one model, and what it answers."""

from __future__ import annotations

import argparse

from lab.commands.given_options import add_given_options, wishes
from lab.commands.terminal import add_json, print_json

SHOWN_TEXT = 2000
"""Characters of a prompt, and of its answer."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument(
        "--url",
        help="grpc:// or http://HOST:PORT of a Triton, the lab's own where it runs; openai+http:// and "
        "torchserve+http:// are asked a prompt",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the values that are drawn")
    add_given_options(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.run import call, given
    from lab.serve.address import address
    from lab.serve.described import describe

    if options.url is not None and not address(options.url).speaks_triton:
        return _in_words(options)
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


def _in_words(options: argparse.Namespace) -> int:
    """A prompt and what a language model writes to it."""
    from lab.errors import InputError
    from lab.run import engines

    if wishes(options).any:
        raise InputError(f"--shape, --range, --data and the like describe tensors; {options.url} is asked a prompt")
    prompt, answer, seconds = engines.one_answer(options.url, options.model, seed=options.seed)
    if options.json:
        print_json({"prompt": prompt, "answer": answer, "seconds": seconds})
    else:
        for what, text in (("sent", prompt), ("got", answer)):
            more = f"… ({len(text):,} characters)" if len(text) > SHOWN_TEXT else ""
            print(f"{what:<4}  {text[:SHOWN_TEXT]!r}{more}")
        print(f"after {1e3 * seconds:.1f} ms, a first call on a new connection")
    return 0
