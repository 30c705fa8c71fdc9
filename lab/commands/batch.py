"""`lab batch`: a file of inputs through a model into a file of answers."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.commands.model_options import add_model, model
from lab.commands.terminal import add_json, print_json, say
from lab.errors import InputError

if TYPE_CHECKING:
    from lab.batch.job import Progress, Result
    from lab.spec import ModelSpec

BATCH = 64
"""Rows that a model takes together where its settings do not say."""
BAR = 20
"""Characters of a progress bar."""
EVERY_S = 10.0
"""Between two lines of progress that nobody may be looking at."""
PLACES = 32
"""Answers that a language model writes together: more than one user would like to wait beside."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--in", required=True, type=Path, metavar="FILE", dest="source", help=".jsonl, .csv, .parquet")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="the same; .parts beside it until done")
    parser.add_argument("--column", help="what is asked; default: prompt, text, image or features, by the model")
    parser.add_argument("--id-column", help="copied beside each answer; default: id, where there is one")
    parser.add_argument("--max-tokens", type=int, default=64, help="language model: length of an answer at most")
    parser.add_argument("--temperature", type=float, default=0.0, help="language model; 0 is greedy")
    parser.add_argument("--seed", type=int, default=0, help="language model, for a temperature above 0")
    parser.add_argument("--chat", action="store_true", help="language model: each prompt is a user's turn")
    parser.add_argument("--overwrite", action="store_true", help="whatever is there of another job goes")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from lab.batch import job

    spec = _for_rows(model(options))
    _check(options, spec)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: a server of our own must not stay behind
    sampling: dict[str, Any] = {}
    if spec.family == "llm":
        sampling = {"max_tokens": options.max_tokens, "temperature": options.temperature, "seed": options.seed}
    wanted = job.Job(
        spec,
        options.source,
        options.out,
        options.column,
        options.id_column,
        sampling,
        options.chat,
        options.overwrite,
    )
    result = to_its_end(lambda: job.run(wanted, Shown()))
    if options.json:
        print_json({**asdict(result), "out": str(options.out)})
    else:
        _tell(result, options.out)
    return 1 if result.rows and result.errors == result.rows else 0


def to_its_end(work: Callable[[], Result]) -> Result:
    """What `work` gives; who stops it is told what that costs."""
    bar = "\n" if sys.stderr.isatty() else ""
    try:
        return work()
    except KeyboardInterrupt:
        say(f"{bar}stopped; what was done stays, and the same command goes on")
        bar = ""
        raise
    finally:
        print(end=bar, file=sys.stderr)


def _check(options: argparse.Namespace, spec: ModelSpec) -> None:
    """What would be wrong for every row is refused before anything is loaded."""
    if options.chat and spec.family != "llm":
        raise InputError(f"--chat: {spec.name} writes no text; allowed: a language model")
    if options.max_tokens < 1:
        raise InputError(f"--max-tokens {options.max_tokens}; allowed: 1 or more")
    if not math.isfinite(options.temperature) or options.temperature < 0:
        raise InputError(f"--temperature {options.temperature}; allowed: 0 or more")


def _for_rows(spec: ModelSpec) -> ModelSpec:
    """Unless the user says otherwise, as many rows together as pay."""
    from lab.spec import Batching

    if spec.family == "llm":
        return spec if "max_batch_size" in spec.model_fields_set else spec.model_copy(update={"max_batch_size": PLACES})
    if "batching" in spec.model_fields_set:
        return spec
    return spec.model_copy(update={"batching": Batching(max_batch_size=BATCH)})


class Shown:
    """On a terminal a bar that moves; elsewhere a line every EVERY_S."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + EVERY_S

    def __call__(self, progress: Progress) -> None:
        line = _line(progress)
        if sys.stderr.isatty():
            print(f"\r{_bar(progress)}{line}\x1b[K", end="", file=sys.stderr, flush=True)
        elif time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + EVERY_S
            say(line)


def _bar(progress: Progress) -> str:
    """ "[#####...............]  25 % "; "" where nobody knows how many rows there are."""
    if not progress.total:
        return ""
    share = min(1.0, progress.done / progress.total)
    return f"[{'#' * int(share * BAR):.<{BAR}}] {int(100 * share):>3} % "


def _line(progress: Progress) -> str:
    of = f" of {progress.total:,}" if progress.total is not None else ""
    rate = f", {progress.rate_rps:,.1f} rows/s" if progress.rate_rps else ""
    left = progress.left_s
    return f"{progress.done:,}{of} rows{rate}" + (f", {int(left // 60)}:{int(left % 60):02d} left" if left else "")


def _tell(result: Result, out: Path) -> None:
    from lab.measure.words import plural

    if result.was_done:
        print(f"{out}: done before, by an equal job: {plural(result.rows, 'row')}, {result.errors:,} with an error")
        _tell_cut(result)
        return
    rate = f", {result.asked / result.seconds:,.1f} rows/s" if result.seconds and result.asked else ""
    print(f"{out}: {plural(result.rows, 'row')}, {result.rows - result.errors:,} with an answer{rate}")
    if result.errors:
        has = "has" if result.errors == 1 else "have"
        say(f"{plural(result.errors, 'row')} {has} no answer; why stands in {out.name}.errors.jsonl")
    _tell_cut(result)
    if result.repeated_ids:
        say(f"{result.repeated_ids:,} ids stand for more than one row, {result.repeated!r} among them")


def _tell_cut(result: Result) -> None:
    if result.cut:
        say(
            f"{result.cut:,} texts are longer than the model reads: {result.tokens_cut:,} tokens at their ends are in "
            "no answer; column tokens_cut has how many of each"
        )
