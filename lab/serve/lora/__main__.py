"""The process that trains adapters and merges them, see lab/serve/job.py:

{"train": lesson, "source", "folder", "recipe": {…}}     what it finished when it is stopped stays for the next one
{"merge": folder of an adapter, "source", "folder"}
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from lab import home
from lab.serve import job

from .lessons import lessons
from .merge import merge
from .recipe import Recipe
from .train import train


def work(wanted: dict[str, Any], progress: home.Progress) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    source, folder = Path(wanted["source"]), Path(wanted["folder"])
    if "merge" in wanted:
        merge(source, Path(wanted["merge"]), folder, progress)
    else:
        recipe = Recipe(**{**wanted["recipe"], "targets": tuple(wanted["recipe"]["targets"])})
        train(source, folder, lessons()[wanted["train"]], recipe, progress)


if __name__ == "__main__":
    sys.exit(job.serve(work))
