"""The process that quantizes a folder: {"source", "folder", "recipe": {…}} in, see lab/serve/job.py. What it finished
when it is stopped stays for the next one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch

from lab import home
from lab.serve import job

from .build import build
from .recipe import Recipe


def work(wanted: dict[str, Any], progress: home.Progress) -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    with torch.inference_mode():
        build(Path(wanted["source"]), Path(wanted["folder"]), Recipe(**wanted["recipe"]), progress)


if __name__ == "__main__":
    sys.exit(job.serve(work))
