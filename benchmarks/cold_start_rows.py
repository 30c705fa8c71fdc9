"""Rows on cold starts, for benchmarks/patterns.py, or alone:

    .venv/bin/python -m benchmarks.cold_start_rows [--json]         about 5 minutes

The language model from no process to its first answer, plain and with every remedy that leaves nothing running but a
parent, in alternating order on one machine; then with each remedy taken away. Stages are the process's own stamps, the
whole is the owner's; both are one clock.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.table import Row, main, say
from lab.measure import cold
from lab.measure.compare import compare_figures
from lab.run.cold import Ready, one
from lab.serve.cold.starter import Starter
from lab.spec import ModelSpec, Start

LLM = ModelSpec(name="llm")
ALL = {"compile_cache": True, "mapped_weights": True, "zygote": True}
PAIRS, OTHERS = 4, 3
WITHOUT = {"compile_cache": "kept code", "mapped_weights": "mapped weights", "zygote": "a parent that forks"}


def measure(folder: Path) -> list[Row]:
    """`folder` takes what the starts say."""
    log = folder / "starts.log"
    return [*_ratio(log), *_each(log)]


def alone() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


def _ratio(log: Path) -> list[Row]:
    plain, remedied = _ready(Start(), log), _ready(Start(**ALL), log)
    try:
        took: dict[str, list[float]] = {"plain": [], "remedied": []}
        gaps: list[float] = []
        for pair in range(PAIRS):
            order = ("plain", "remedied") if pair % 2 else ("remedied", "plain")
            for way in order:
                told = one(plain if way == "plain" else remedied)
                took[way].append(cold.seconds(told["asked_ns"], told["answered_ns"]))
                gaps.append(_gap(told))
                say(f"{way}: {took[way][-1]:.2f} s, unexplained {gaps[-1]:.1%}")
        parent = remedied.parent_bytes()
        effect = compare_figures(took["plain"], took["remedied"], cold.METRIC)
        plain_s = statistics.fmean(took["plain"])
        low, high = effect.ci_low, effect.ci_high
        note = (
            f"{plain_s:.1f} s plain; interval {low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        )
        what = "cold start of the language model, with remedies"
        return [
            Row(what, statistics.fmean(took["remedied"]), "s", None, PAIRS, "to the end of its first answer"),
            Row(f"{what}, beside plain", effect.ratio, "", "<= 0.25", PAIRS, note),
            Row("stages miss of the whole, at worst", max(map(abs, gaps)), "", "<= 0.05", len(gaps)),
            Row("memory that the parent holds meanwhile", (parent or 0) / 2**20, "MiB", None, 1),
        ]
    finally:
        plain.close()
        remedied.close()


def _each(log: Path) -> list[Row]:
    """What is lost with one of the remedies."""
    found = []
    for name, words in WITHOUT.items():
        ready = _ready(Start(**{**ALL, name: False}), log)
        try:
            took = [_seconds(ready) for _ in range(1 if name == "compile_cache" else OTHERS)]
        finally:
            ready.close()
        found.append(Row(f"the same without {words}", statistics.fmean(took), "s", None, len(took)))
    return found


def _ready(how: Start, log: Path) -> Ready:
    starter = Starter(LLM, how, log=log)
    starter.prepare()
    return Ready(starter, LLM)


def _seconds(ready: Ready) -> float:
    told = one(ready)
    return cold.seconds(told["asked_ns"], told["answered_ns"])


def _gap(told: dict) -> float:
    whole = told["answered_ns"] - told["asked_ns"]
    stages: Sequence[dict] = told["stages"]
    return 1 - sum(stage["end_ns"] - stage["begin_ns"] for stage in stages) / whole


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", alone))
