"""`lab show`: a kept run's figures, as `lab run` printed them when it ended."""

from __future__ import annotations

import argparse

from lab.commands.run_document import add_price, tell
from lab.commands.terminal import add_json, print_json
from lab.errors import FolderError, InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    add_json(parser)
    add_price(parser)
    parser.add_argument(
        "--definitions", action="store_true", help="score a language model's records as vLLM, AIPerf and others would"
    )


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.run import rescore, results, waivers
    from lab.run.folder import RunFolder

    try:
        folder = RunFolder.open(options.run)
        if options.definitions:
            scored = rescore.by_tools(folder)
            if options.json:
                print_json({"run": folder.run_id, "blocks": scored})
            else:
                print("\n".join(rescore.lines_by_tools(scored)))
            return 0
        document = results.document(folder)
    except FolderError as error:
        raise InputError(str(error)) from None
    kept = waivers.kept(folder)
    if kept:
        document = {**document, "waivers": [asdict(waiver) for waiver in kept.values()]}
    tell(document, folder.document["experiment"], options)
    return 0
