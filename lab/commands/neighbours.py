"""`lab neighbours`: of each row of a file of vectors, as `lab batch` writes them, the nearest other rows."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from lab.commands.batch import Shown, to_its_end
from lab.commands.terminal import add_json, print_json, say


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--in", required=True, type=Path, metavar="FILE", dest="source", help=".jsonl, .csv, .parquet")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the same; .parts beside it until done")
    parser.add_argument("--top", type=int, default=10, metavar="K", help="how many neighbours a row gets")
    parser.add_argument("--column", default="answer", help="the vectors; default: answer, as `lab batch` calls them")
    parser.add_argument("--id-column", help="default: id, where there is one")
    parser.add_argument("--overwrite", action="store_true", help="whatever is there of another job goes")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.batch import neighbours
    from lab.measure.words import plural

    job = neighbours.Job(options.source, options.out, options.top, options.column, options.id_column, options.overwrite)
    result = to_its_end(lambda: neighbours.run(job, Shown()))
    if options.json:
        print_json({**asdict(result), "out": str(options.out)})
    elif result.was_done:
        print(f"{options.out}: done before, by an equal job: {plural(result.rows, 'row')}")
    else:
        rate = f", {result.asked / result.seconds:,.1f} rows/s" if result.seconds and result.asked else ""
        print(f"{options.out}: {plural(result.rows, 'row')}, {result.rows - result.errors:,} with neighbours{rate}")
    if result.errors and not options.json:
        has = "has" if result.errors == 1 else "have"
        say(f"{plural(result.errors, 'row')} {has} none; why stands in {options.out.name}.errors.jsonl")
    return 1 if result.rows and result.errors == result.rows else 0
