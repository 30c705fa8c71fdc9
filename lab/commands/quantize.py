"""`lab quantize`: the integer weights of a language model, found now rather than when it is first served."""

from __future__ import annotations

import argparse

from lab.commands.model_options import add_model, model
from lab.commands.terminal import add_json, print_json
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.serve import quantized, weights

    chosen = model(options)
    if not quantized.is_quantized(chosen):
        allowed = f"family llm with precision {', '.join(quantized.PRECISIONS)}"
        raise InputError(
            f"quantize: {chosen.family} in {chosen.precision} has no weights of its own; allowed: {allowed}"
        )
    weights.prepare(chosen)
    document, place = quantized.document(chosen) or {}, quantized.folder(chosen)
    if options.json:
        print_json({**document, "folder": str(place)})
    else:
        print(place)
    return 0
