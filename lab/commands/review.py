"""`lab review`: what a sceptic would ask of a run, which of it the run answers, and what somebody waived by name."""

from __future__ import annotations

import argparse

from lab.commands.terminal import add_json, print_json
from lab.errors import FolderError, InputError

MARKS = {"answered": "answered", "open": "OPEN", "waived": "waived"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run")
    parser.add_argument("--waive", metavar="QUESTION", help="keep a waiver with the run; reports and pages show it")
    parser.add_argument("--take-back", metavar="QUESTION", help="a waiver that holds no more")
    parser.add_argument("--by", default="", metavar="WHO")
    parser.add_argument("--because", default="", metavar="WHY")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from lab.measure.redteam import questions, waive
    from lab.run import results, waivers
    from lab.run.folder import RunFolder

    if options.waive and options.take_back:
        raise InputError(f"--take-back {options.take_back} with --waive {options.waive}; allowed: one of the two")
    try:
        folder = RunFolder.open(options.run)
        asked = questions(results.document(folder), folder.document["experiment"])
    except FolderError as error:
        raise InputError(str(error)) from None
    done = ""
    if options.waive:
        kept = waivers.waive(options.run, asked, options.waive, options.by, options.because)
        done = f"Waived: {kept.code}, by {kept}"
    if options.take_back:
        kept = waivers.take_back(options.run, options.take_back, options.by)
        done = f"Taken back: the waiver of {kept.code}, by {kept.who}"
    found = waive(asked, waivers.told(folder, asked))
    if options.json:
        print_json({"run": options.run, "questions": [asdict(one) for one in found]})
        return 0
    if done:
        print(f"{done}\n")
    for one in found:
        print(f"{MARKS[one.status]:>8}  {one.code}: {one.question}\n          {one.answer}")
    return 0
