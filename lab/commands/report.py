"""`lab report`: one file for a review; prints where it is and how many questions stay open."""

from __future__ import annotations

import argparse
from pathlib import Path

from lab import atomic
from lab.errors import FolderError, InputError


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN[.CELL]")
    parser.add_argument("-o", "--out", metavar="FILE.html", help="or .md; default: report-RUN.html, here")
    parser.add_argument("--claim", metavar="TEXT", help="what it is to show; default: the experiment's hypothesis")
    parser.add_argument("--waive", action="append", default=[], metavar="QUESTION=WHO AND WHY")
    parser.add_argument(
        "--price", metavar="ID", help="one of `prices`; default: that of the measured machine, or the nearest to it"
    )


def run(options: argparse.Namespace) -> int:
    try:
        print(_write(options))
    except FolderError as error:
        raise InputError(str(error)) from None
    return 0


def _write(options: argparse.Namespace) -> str:
    """The report as a file, HTML or by its ending Markdown; a line that says where and what stays open."""
    from lab.run import prices
    from lab.run.folder import RunFolder
    from lab.run.sides import Name
    from lab.show.report import report
    from lab.show.report_html import to_html
    from lab.show.report_markdown import to_markdown

    names = [Name.read(text) for text in options.runs]
    out = Path(options.out or f"report-{names[0].run_id}.html")
    if out.suffix not in (".html", ".md"):
        raise InputError(f"--out {str(out)!r}: allowed: a name that ends in .html or .md")
    waivers = {}
    for text in options.waive:
        code, equals, reason = text.partition("=")
        if not equals:
            raise InputError(f"--waive {text!r}: allowed is QUESTION=WHO AND WHY, such as seed=Ann: one draw will do")
        waivers[code] = reason
    price = None if options.price is None else prices.find(options.price)
    if price is None:
        first = RunFolder.open(names[0].run_id).document
        price = prices.nearest(first.get("environment", {}), first["experiment"]["model"].get("device", "cpu"))
    made = report(names, claim=options.claim, price=price, waivers=waivers)
    data = (to_html(made) if out.suffix == ".html" else to_markdown(made)).encode()
    try:
        atomic.write(out, data)
    except OSError as error:
        raise InputError(f"--out {str(out)!r}: {error.strerror}; allowed: a file that can be written") from None
    return f"{out}: {len(data) / 1024:,.0f} KiB, {made.open_questions} questions stay open"
