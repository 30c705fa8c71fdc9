"""`lab batch`: a file of inputs through a model into a file of answers."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.commands.model_options import add_model, model
from lab.commands.terminal import add_json, print_json, say

if TYPE_CHECKING:
    from lab.batch.job import Progress, Result
    from lab.spec import ModelSpec

BATCH = 64
"""Rows that a model takes together where its settings do not say."""
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
        options.chat and spec.family == "llm",
        options.overwrite,
    )
    result = job.run(wanted, _show)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if options.json:
        print_json({**asdict(result), "out": str(options.out)})
    else:
        _tell(result, options.out)
    return 0


def _for_rows(spec: ModelSpec) -> ModelSpec:
    """Unless the user says otherwise, as many rows together as pay."""
    from lab.spec import Batching

    if spec.family == "llm":
        return spec if "max_batch_size" in spec.model_fields_set else spec.model_copy(update={"max_batch_size": PLACES})
    if "batching" in spec.model_fields_set:
        return spec
    return spec.model_copy(update={"batching": Batching(max_batch_size=BATCH)})


def _show(progress: Progress) -> None:
    if not sys.stderr.isatty():
        return
    of = f" of {progress.total:,}" if progress.total is not None else ""
    rate = f", {progress.rate_rps:,.1f} rows/s" if progress.rate_rps else ""
    left = progress.left_s
    eta = f", {int(left // 60)}:{int(left % 60):02d} left" if left is not None else ""
    print(f"\r{progress.done:,}{of} rows{rate}{eta}   ", end="", file=sys.stderr, flush=True)


def _tell(result: Result, out: Path) -> None:
    if result.was_done:
        print(f"{out}: done before, by an equal job: {result.rows:,} rows, {result.errors:,} with an error")
        return
    rate = f", {result.asked / result.seconds:,.1f} rows/s" if result.seconds and result.asked else ""
    print(f"{out}: {result.rows:,} rows{rate}")
    if result.errors:
        say(f"{result.errors:,} rows have no answer; why stands in {out.name}.errors.jsonl")
    if result.repeated_ids:
        say(f"{result.repeated_ids:,} ids stand for more than one row, {result.repeated!r} among them")
