"""`lab doctor`: what the lab needs, looked for on this machine; exit status 1 where something is missing."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json


def add_options(parser: argparse.ArgumentParser) -> None:
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.serve.doctor import checks

    found = checks()
    if options.json:
        print_json({"checks": [{"name": c.name, "ok": c.ok, "found": c.found, "remedy": c.remedy} for c in found]})
    else:
        for check in found:
            print(f"{'ok     ' if check.ok else 'MISSING'} {check.name}: {check.found}")
            if not check.ok:
                print(f"        {check.remedy}")
    return 0 if all(check.ok for check in found) else 1
