"""Libraries that answer as NVIDIA's do, so that what asks them runs without a GPU: built once a session, from
tests/watch/fake_nvml.c and fake_cuda.c."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCES = {"libnvidia-ml.so.1": "fake_nvml.c", "libcuda.so.1": "fake_cuda.c"}
FOLDER = Path(__file__).parent / "watch"


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """A function that gives the environment in which a subprocess meets the fakes: its keywords become FAKE_NVML_…,
    `cuda` a folder that FAKE_CUDA names; old_driver=True takes the build without newer functions."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        reason = "no C compiler here to build the fake NVML with (package gcc)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folders = {}
    for old in (False, True):
        folders[old] = tmp_path_factory.mktemp("nvml")
        options = ["-shared", "-fPIC", "-Wall", "-Werror", *(["-DOLD_DRIVER"] if old else [])]
        for library, source in SOURCES.items():
            subprocess.run([compiler, *options, "-o", folders[old] / library, FOLDER / source], check=True)

    def environment(old_driver: bool = False, cuda: Path | None = None, **script: object) -> dict[str, str]:
        scripted = {f"FAKE_NVML_{name.upper()}": str(value) for name, value in script.items()}
        states = {} if cuda is None else {"FAKE_CUDA": str(cuda)}
        return {**os.environ, "LD_LIBRARY_PATH": str(folders[old_driver]), **scripted, **states}

    return environment
