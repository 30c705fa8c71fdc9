"""`lab runs`: the runs that are kept, and how each ended."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.run.folder import runs

    found = runs()
    if options.json:
        print_json({"runs": [{"run": r.run_id, "state": r.state, "created_utc": r.created_utc} for r in found]})
    else:
        for info in found:
            print(f"{info.run_id}  {info.state}")
    return 0
