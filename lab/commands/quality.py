"""`lab quality`: what a format costs in quality, judged while no run measures."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from lab.commands.model_options import add_model, model
from lab.commands.terminal import add_json, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_json(parser)
    parser.add_argument("--all", action="store_true", help="every format of the model on this machine")
    parser.add_argument("--blocks", action="store_true", help="also what each block costs when it alone is quantized")


def run(options: argparse.Namespace) -> int:
    from lab.run import quality, quality_text
    from lab.run.lock import MeasureLock
    from lab.run.turn import once

    chosen = model(options)
    quality.check(chosen)  # before it waits for its turn
    models = quality.formats(chosen) if options.all else [chosen]
    for each in models:
        quality.check(each)
    if options.blocks:
        quality.check_blocks(chosen)
    with MeasureLock("quality") as lock:  # it takes all processors, and a run would measure that
        lock.acquire(once(say))
        found = [quality.evaluate(each) for each in models]
        blocks = quality.evaluate_blocks(chosen) if options.blocks else ()
    if options.json:
        print_json({"formats": [each.to_dict() for each in found], "blocks": [asdict(block) for block in blocks]})
    else:
        of_blocks = quality_text.blocks(found[-1].format, blocks) if blocks else ()
        print("\n".join([*quality_text.table(found), *of_blocks]))
    return 0
