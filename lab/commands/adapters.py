"""`lab adapters`: the LoRA adapters of a loaded language model, listed, loaded and unloaded while it serves."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="llm", metavar="MODEL", help="as the managed Triton has it; llm")
    parser.add_argument(
        "--load", action="append", default=[], metavar="NAME[=FOLDER]", help="one of the lab's own, or in PEFT's layout"
    )
    parser.add_argument("--unload", action="append", default=[], metavar="NAME")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.errors import ServerError
    from lab.measure.words import format_bytes, format_seconds
    from lab.serve import loaded_adapters
    from lab.serve.triton import Server

    server = Server.attach()
    if server is None:
        raise ServerError("no managed Triton lives; allowed: python -m lab serve --model llm, and ask again")
    try:
        done = {}
        if options.load or options.unload:
            done = loaded_adapters.change(server, options.model, options.load, options.unload)
        there = loaded_adapters.of(server, options.model)
    finally:
        server.client.close()
    if options.json:
        print_json({"model": options.model, "adapters": {n: str(p) for n, p in there.items()}, **done})
        return 0
    for name, size in done.get("loaded", {}).items():
        print(f"{name}: loaded, {format_bytes(size)} in {format_seconds(done['load_s'][name])}")
    for name in done.get("unloaded", ()):
        print(f"{name}: unloaded")
    print(f"{options.model} has {', '.join(there) or 'no adapter'}")
    return 0
