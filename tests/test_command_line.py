"""The command line, as a user meets it: one line for what is wrong, the right exit status, JSON and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]


def lab(*arguments, home):
    return subprocess.run(
        [sys.executable, "-m", "lab", *arguments],
        cwd=PROJECT,
        env={**os.environ, "LAB_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "batchin"], '"batching"'),
        (["run", "batching", "--set", "model.nme=digits"], '"name"'),
        (["run", "batching", "--set", "model.name=embeder"], '"embedder"'),
        (["run", "batching", "--set", "nonsense"], "PATH=VALUE"),
        (["run", "batching", "--set", "model.instances=0"], "instances 0"),
        (["run", "batching", "--repeats", "0"], "repeats 0"),
        (["run", "batching", "--set", "workload.arrival.rate_rps=NaN"], "rate_rps"),
        (["load", "--model", "digit", "--rate", "5", "--duration", "1"], '"digits"'),
        (["load", "--model", "digits", "--rate", "-5", "--duration", "1"], "rate_rps -5"),
        (["load", "--model", "digits", "--rate", "5", "--concurrency", "2", "--duration", "1"], "not allowed with"),
        (["load", "--model", "digits", "--duration", "1"], "--rate"),
        (["load", "--model", "null", "--rate", "5", "--duration", "1", "--url", "ftp://x"], "ftp://x"),
        (["show", "../../etc/passwd"], "run id"),
        (["show", "20200101-000000-nothing-0000"], "there is no run"),
        (["frobnicate"], "frobnicate"),
        (["fetch", "tritn"], "tritn"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(arguments, words, tmp_path):
    done = lab(*arguments, home=tmp_path)
    lines = done.stderr.strip().splitlines()
    assert words in lines[-1]
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert done.returncode == 2
    assert len([line for line in lines if line.startswith("error: ")]) == 1


def test_wrong_input_leaves_no_run_behind(tmp_path):
    lab("run", "batching", "--set", "model.name=nothing", home=tmp_path)
    assert json.loads(lab("runs", "--json", home=tmp_path).stdout) == {"runs": []}


def test_json_is_the_only_thing_on_stdout(tmp_path):
    done = lab("doctor", "--json", home=tmp_path)
    checks = json.loads(done.stdout)["checks"]
    assert {"name", "ok", "found", "remedy"} == set(checks[0])


def test_a_missing_command_says_what_is_allowed(tmp_path):
    done = lab(home=tmp_path)
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


@pytest.mark.parametrize("module", ["lab.run.runner", "lab.load.generator", "lab.load.worker", "lab.measure.summary"])
def test_what_measures_imports_neither_streamlit_nor_torch(module):
    code = f"import sys, {module}; print([m for m in ('streamlit', 'torch', 'plotly') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
