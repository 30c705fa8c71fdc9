"""An experiment that compares devices, on a machine that lacks some of them: what cannot be measured is said, never
modelled, and the rest runs."""

from __future__ import annotations

from typing import Any

from lab.measure.words import join, level_label
from lab.serve import installation
from lab.spec import Experiment, plain, set_path

REASON = "this machine has no NVIDIA GPU"


def without_missing(experiment: Experiment) -> tuple[Experiment, list[dict[str, Any]]]:
    """The experiment without the levels that need a GPU that is not here, and what was left out as
    {"level", "text"}. An experiment all of whose levels need one is left as it is, to be refused."""
    if installation.gpus():
        return experiment, []
    left_out: list[dict[str, Any]] = []
    for path, levels in experiment.factors.items():
        needs = [level for level in levels if _on_gpu(path, level)]
        if needs and len(needs) < len(levels):
            kept = [level for level in levels if level not in needs]
            experiment = set_path(experiment, "factors", {**experiment.factors, path: kept})
            words = join([_words(path, plain(level)) for level in needs])
            text = f"Not measured: {words}, as {REASON}."
            left_out.append({"factor": path, "levels": [plain(level) for level in needs], "text": text})
    return experiment, left_out


def _on_gpu(path: str, level: Any) -> bool:
    if path == "model.device":
        return bool(level == "gpu")
    return path == "model" and isinstance(level, dict) and level.get("device") == "gpu"


def _words(path: str, level: Any) -> str:
    named = isinstance(level, dict) and "name" in level
    return f"{level['name']} on a GPU" if named else level_label(path, level)
