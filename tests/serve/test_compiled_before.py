"""Truth: two packages of unlike names with the same modules, of which the second finds what the first compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lab.serve.models import compiled_before

CALLED = """
from numba import njit

@njit
def half(x):
    return x // 2
"""
CALLS = """
from numba import njit
from .compiled_before import keep
from .kernels import half

@keep
@njit
def forward(x):
    return half(x) + 1
"""
ASKS = """
import importlib, sys
forward = importlib.import_module(f"{sys.argv[1]}.forward").forward
print(forward(int(sys.argv[2])), sum(forward.stats.cache_hits.values()), sum(forward.stats.cache_misses.values()))
"""


def package(folder: Path, called: str = CALLED) -> None:
    folder.mkdir()
    for name in compiled_before.SOURCES:
        (folder / name).write_text({"kernels.py": called, "forward.py": CALLS}.get(name, ""))
    shutil.copy(str(compiled_before.__file__), folder)


def asked(folder: Path, name: str, x: int) -> str:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kept")}
    command = [sys.executable, "-c", ASKS, name, str(x)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


def test_a_package_of_another_name_finds_what_is_compiled(tmp_path: Path) -> None:
    package(tmp_path / "1")
    package(tmp_path / "other")
    assert asked(tmp_path, "1", 10) == "6 0 1"
    assert asked(tmp_path, "other", 20) == "11 1 0"
    package(tmp_path / "changed", CALLED.replace("// 2", "// 5"))  # in a module that `forward` only calls
    assert asked(tmp_path, "changed", 20) == "5 0 1"
