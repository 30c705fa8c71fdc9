"""The experiments that exist: one module in experiments/ each, holding a value named EXPERIMENT; and the run without
a question, one model under one load, that `lab load` and the live page start."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import InputError
from lab.run.plan import settle
from lab.spec import Experiment, nearest, parse, parse_setting

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def names() -> list[str]:
    return sorted(path.stem for path in EXPERIMENTS.glob("*.py") if path.stem != "__init__")


def experiment(name: str) -> Experiment:
    """The experiment of that name; InputError with the nearest right name when there is none."""
    if name not in names():
        raise InputError(f"experiment {name!r}: there is none{nearest(name, names())}")
    found = importlib.import_module(f"experiments.{name}").EXPERIMENT
    if not isinstance(found, Experiment):
        raise InputError(f"experiments/{name}.py: EXPERIMENT is a {type(found).__name__}; allowed: lab.spec.Experiment")
    return found


def single(
    model: dict[str, Any], workload: dict[str, Any], settings: Sequence[str] = (), *, name: str = "load"
) -> Experiment:
    """An experiment of one cell from plain values, with `--set PATH=VALUE` applied. Its goodput counts answers within
    100 ms, of a language model those that begin within a second and go on within 100 ms a token, unless slo is set."""
    generates = "llm" in (model.get("name"), model.get("family"))
    plain = {
        "id": name,
        "question": "How does this model answer under this load?",
        "hypothesis": "None: a single measurement compares nothing.",
        "model": model,
        "workload": workload,
        "slo": {"ttft_s": 1.0, "itl_s": 0.1} if generates else {"latency_s": 0.1},
        "repeats": 1,
    }
    return settle(parse(Experiment, plain), [parse_setting(s) for s in settings], quick=False)
