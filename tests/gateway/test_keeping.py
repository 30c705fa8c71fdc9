"""A gateway whose Triton is somebody else's, which ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SHARED
from tests.waiting import until

pytestmark = pytest.mark.triton
PROJECT = Path(__file__).parents[2]


@contextmanager
def lab(home: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "lab", *words], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "LAB_HOME": str(home)},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def said(process: subprocess.Popen[str], beginning: str) -> str:
    assert process.stdout is not None
    return next(line for line in process.stdout if line.startswith(beginning))


def ask(url: str, model: str) -> tuple[int, Any]:
    body = json.dumps({"inputs": {"INPUT": [[1.0]]}}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/predict/{model}", body), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_gateway_goes_on_with_a_triton_of_its_own_when_the_one_it_used_ends(lab_home: Path, tmp_path: Path) -> None:
    for name in SHARED:
        (tmp_path / name).symlink_to(lab_home / name)
    with lab(tmp_path, "serve", "--model", "null") as owner:
        said(owner, "null is ready")
        with lab(tmp_path, "gateway", "--port", "0") as gateway:
            url = said(gateway, "gateway on").split()[2]
            assert ask(url, "null")[0] == 200
            owner.terminate()
            owner.wait(60)
            why = said(gateway, "the lab's Triton, pid")
            assert "has ended; the gateway starts one of its own" in why
            answers = []
            until(lambda: answers.append(ask(url, "null")) or answers[-1][0] == 200)
            assert {status for status, _ in answers} <= {200, 503}
            assert said(gateway, "Triton (pid").endswith("serves the routes again\n")
