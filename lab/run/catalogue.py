"""The experiments that exist: one module in experiments/ each, holding a value named EXPERIMENT; and the run without
a question, one model under one load, that `lab load` and the live page start."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from lab import spec
from lab.errors import InputError
from lab.refusal import one_line
from lab.run.plan import settle
from lab.spec import Experiment, nearest, parse, parse_setting

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def names() -> list[str]:
    return sorted(path.stem for path in EXPERIMENTS.glob("*.py") if path.stem != "__init__")


def experiment(name: str) -> Experiment:
    """The experiment of that name; InputError with the nearest right name when there is none, or with what does not
    fit in its file."""
    if name not in names():
        raise InputError(f"experiment {name!r}: there is none{nearest(name, names())}")
    file = f"experiments/{name}.py"
    try:
        module = importlib.import_module(f"experiments.{name}")
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except ValidationError as error:
        raise InputError(f"{file}: {one_line(error, getattr(spec, error.title, BaseModel))}") from None
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise InputError(f"{file}: EXPERIMENT is of type {type(found).__name__}; allowed: lab.spec.Experiment")
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
