"""`lab cassette record|play|list`: real runs as small text files, for pages and machines where nothing has run."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from lab.commands.execution import free
from lab.commands.terminal import INTERRUPTED, add_json, print_json, say
from lab.errors import InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("record", "play", "list"))
    parser.add_argument("what", nargs="?", metavar="RUN|NAME|FILE", help="record: a run; play: a cassette")
    parser.add_argument("-o", "--out", metavar="FILE.jsonl", help="record: where to; default: RUN.jsonl here")
    parser.add_argument("--run-id", help=argparse.SUPPRESS)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    if options.action == "list":
        return _list(options)
    if options.what is None:
        what = "the id of a run" if options.action == "record" else "a name from `cassette list`, or a file"
        raise InputError(f"cassette {options.action}: nothing is given; allowed: {what}")
    return _record(options) if options.action == "record" else _play(options)


def _list(options: argparse.Namespace) -> int:
    from lab.run import cassette

    found = cassette.shipped()
    if options.json:
        print_json({"cassettes": [{"name": name, **asdict(manifest)} for name, manifest in found.items()]})
        return 0
    for name, manifest in found.items():
        kind = "plays" if manifest.plays else "whole" if manifest.whole else "thinned"
        print(f"{name}  {manifest.run}  {manifest.machine}, {manifest.created_utc[:10]}, {manifest.commit}, {kind}")
    return 0


def _record(options: argparse.Namespace) -> int:
    from lab.run import cassette, cassette_record

    out = Path(options.out or f"{options.what}{cassette.ENDING}")
    if out.suffix != cassette.ENDING:
        raise InputError(f"--out {options.out!r}: allowed: a name that ends in {cassette.ENDING}")
    text, manifest = cassette_record.record(options.what)
    cassette_record.write(out, text)
    print(f"{out}: {cassette_record.told(manifest, len(text.encode()))}")
    return 0


def _play(options: argparse.Namespace) -> int:
    from lab.run import cassette, replay, runner
    from lab.run.folder import new_run_id

    path = cassette.find(options.what)
    recorded = cassette.read(path).manifest
    run_id = new_run_id(f"replay-{recorded.experiment}") if options.run_id is None else free(options.run_id)
    stop = runner.Stop().on_signals()
    say(f"run {run_id}: a replay of {recorded.run}; watch it on the live page")
    replay.play(path, run_id, stop=stop)
    return INTERRUPTED if stop() else 0
