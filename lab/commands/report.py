"""`lab report`: one file for a review; prints where it is and how many questions stay open."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab import atomic
from lab.commands.run_document import add_price
from lab.errors import FolderError, InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN[.CELL]")
    parser.add_argument("-o", "--out", required=True, metavar="FILE.html")
    parser.add_argument("--claim", metavar="TEXT", help="what it is to show; default: the experiment's hypothesis")
    parser.add_argument("--waive", action="append", default=[], metavar="QUESTION=WHO AND WHY")
    add_price(parser)


def run(options: argparse.Namespace) -> int:
    try:
        print(_write(options))
    except FolderError as error:
        raise InputError(str(error)) from None
    return 0


def _write(options: argparse.Namespace) -> str:
    """The report as a file, HTML or by its ending Markdown; a line that says where and what stays open."""
    from lab.run import prices
    from lab.run.sides import Name
    from lab.show.report import report
    from lab.show.report_html import to_html
    from lab.show.report_markdown import to_markdown

    out = Path(options.out)
    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {options.out!r}: allowed: a name that ends in .html or .md")
    waivers = {}
    for text in options.waive:
        code, equals, reason = text.partition("=")
        if not equals:
            raise InputError(f"--waive {text!r}: allowed is QUESTION=WHO AND WHY, such as seed=Ann: one draw will do")
        waivers[code] = reason
    price = None if options.price is None else prices.find(options.price)
    names = [Name.read(text) for text in options.runs]
    made = report(names, claim=options.claim, price=price, waivers=waivers)
    data = (to_html(made) if out.suffix == ".html" else to_markdown(made)).encode()
    try:
        atomic.write(out, data)
    except OSError as error:
        raise InputError(f"--out {options.out!r}: {error.strerror}; allowed: a file that can be written") from None
    return f"{out}: {len(data) / 1024:,.0f} KiB, {made.open_questions} questions stay open"
