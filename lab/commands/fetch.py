"""`lab fetch`: Triton and the weights of the models, brought before they are needed."""

from __future__ import annotations

import argparse

from lab.commands.terminal import say
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", nargs="*", metavar="triton|MODEL")


def run(options: argparse.Namespace) -> int:
    from lab.serve import installation, weights
    from lab.spec import FAMILIES, ModelSpec, nearest, parse

    allowed = ("triton", *FAMILIES)
    for what in options.what:
        if what not in allowed:
            raise InputError(f"fetch {what!r}: there is no such thing{nearest(what, allowed)}")
    for what in dict.fromkeys(options.what) or allowed:
        if what == "triton":
            installation.fetch()
        else:
            weights.prepare(parse(ModelSpec, {"name": what}))
        say(f"{what} is here")
    return 0
