"""The command line, as a user meets it: one line for what is wrong, the right exit status, JSON and nothing else."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.commands import COMMANDS
from lab.measure.prices import FIELDS
from lab.serve import installation

PROJECT = Path(__file__).parents[1]
RUN_ID = "20260101-000000-load-0000"
SEARCH = ["search", "--model", "digits", "--latency", "20"]
SWEEP = ["sweep", "--model", "digits", "--rate", "5", "--knob", "model.instances=[1,2]"]
LOAD = ["load", "--model", "digits", "--rate", "5", "--duration", "1"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """An empty LAB_HOME, on a machine without a GPU."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.setattr(installation, "gpus", lambda: 0)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "batchin"], '"batching"'),
        (["run", "batching", "--set", "model.nme=digits"], '"name"'),
        (["run", "batching", "--set", "model.name=embeder"], '"embedder"'),
        (["run", "batching", "--set", "nonsense"], "PATH=VALUE"),
        (["run", "batching", "--set", "model.instances=0"], "instances 0"),
        (["run", "batching", "--set", "model.device=gpu"], "no NVIDIA GPU"),
        (["run", "batching", "--set", "workload.arrival.concurrency=4"], 'kind "closed" has'),
        (["run", "batching", "--set", "judge.primary=goodput"], '"goodput_rps"'),
        (["run", "batching", "--repeats", "0"], "repeats 0"),
        (["run", "batching", "--set", "workload.arrival.rate_rps=NaN"], "rate_rps"),
        (["run", "batching", "--run-id", "A/B"], "run-id 'A/B'"),
        (["load", "--model", "digit", "--rate", "5", "--duration", "1"], '"digits"'),
        (["load", "--model", "digits", "--rate", "-5", "--duration", "1"], "rate_rps -5"),
        (["load", "--model", "digits", "--rate", "1e9", "--duration", "1"], "rate_rps 1e+09"),
        (["load", "--model", "digits", "--rate", "5", "--concurrency", "2", "--duration", "1"], "not allowed with"),
        (["load", "--model", "digits", "--duration", "1"], "--rate"),
        ([*LOAD, "--prompt-tokens", "9"], "prompt_tokens 9 is given for family digits; only family llm has it"),
        ([*LOAD, "--no-stream"], "stream false is given for family digits"),
        ([*LOAD, "--prompts", str(PROJECT / "pyproject.toml")], "line 1 is no JSON: [project]"),
        ([*LOAD, "--prompts", "nowhere.jsonl"], "nowhere.jsonl' cannot be read: No such file"),
        ([*LOAD, "--ttft", "200"], "slo.ttft_s 0.2 is given for family digits"),
        ([*LOAD, "--latency", "nan"], "--latency nan: allowed: milliseconds above 0"),
        ([*LOAD, "--latency", "5", "--percentile", "95"], "--percentile 95: allowed: above 0 and below 1"),
        (
            ["load", "--model", "llm", *LOAD[3:], "--no-stream", "--ttft", "5"],
            "stream false, where an answer comes whole",
        ),
        ([*LOAD, "--percentile", "0.9"], "--percentile 0.9 without a limit"),
        (["run", "batching", "--set", "workload.output_tokens=9"], "output_tokens 9 is given for family digits"),
        ([*LOAD, "--set", "model.device=gpu"], "no NVIDIA GPU"),
        ([*LOAD, "--set", "model.precision=int4"], "allowed: fp32, bf16, int8"),
        ([*LOAD, "--set", "workload.protocol=openai"], "protocol openai is given for family digits"),
        (["load", "--model", "llm", *LOAD[3:], "--set", "workload.protocol=openai"], "openai+http://HOST:PORT"),
        ([*LOAD, "--url", "ftp://127.0.0.1:8001"], "ftp://127.0.0.1:8001"),
        ([*LOAD, "--url", "grpc://127.0.0.1"], "grpc://HOST:PORT"),
        (["show", "../../etc/passwd"], "run id"),
        (["show", "20200101-000000-nothing-0000"], "there is no run"),
        (["export", ""], "run id ''"),
        (["export", "../.."], "run id '../..'"),
        (["export", "/etc"], "run id '/etc'"),
        (["export", "20200101-000000-nothing-0000"], "there is no run"),
        (["run", "batching", "--set", "model.name=null"], """--set 'model.name="null"'"""),
        (["serverless", "--model", "null", "--port", "99999"], "--port 99999"),
        ([*SEARCH, "--minutes", "0"], "--minutes 0"),
        ([*SEARCH, "--minutes", "nan"], "--minutes nan"),
        ([*SEARCH, "--most", "0"], "--most 0"),
        ([*SWEEP, "--minutes", "0"], "--minutes 0"),
        ([*SWEEP, "--knob", "nope"], "--knob 'nope': allowed is PATH="),
        ([*SWEEP, "--knob", f"workload.seed={list(range(300))}"], "600 combinations; allowed: up to 512"),
        (["frobnicate"], "frobnicate"),
        (["comapre", "--json"], 'did you mean "compare"'),
        (["fetch", "tritn"], "tritn"),
    ],
)
def test_wrong_input_is_one_line_and_status_two_and_leaves_no_run(arguments, words, home, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert not (home / "runs").exists()


@pytest.mark.parametrize("arguments", [["prices"], ["prices", "--json"], [*LOAD, "--price", "x"]])
def test_a_price_list_without_rows_is_one_line(arguments, home, capsys):
    (home / "prices.csv").write_text(f"{','.join(FIELDS)}\n")
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert "prices.csv: prices: no rows" in printed.err and printed.err.count("\n") == 1
    assert printed.out == "" and not (home / "runs").exists()


def test_a_run_id_that_is_taken_is_wrong_input(home, capsys):
    (home / "runs" / RUN_ID).mkdir(parents=True)
    assert main([*LOAD, "--run-id", RUN_ID]) == 2
    assert f"{RUN_ID}'" in capsys.readouterr().err
    assert list((home / "runs" / RUN_ID).iterdir()) == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "GRPC://127.0.0.1:9", "127.0.0.1:9"])
def test_a_server_that_does_not_answer_is_called_what_the_user_called_it(url, home, capsys):
    assert main([*LOAD, "--url", url]) == 1
    assert f" {url}" in capsys.readouterr().err
    assert not (home / "runs").exists()


def test_a_model_named_twice_is_served_once(home, monkeypatch):
    served = []
    monkeypatch.setattr(
        "lab.serve.foreground.serve_forever", lambda models: served.extend(model.name for model in models)
    )
    assert main(["serve", "--model", "digits", "--model", "null", "--model", "digits"]) == 0
    assert served == ["digits", "null"]


def test_what_is_named_twice_is_fetched_once(home, monkeypatch):
    fetched = []
    monkeypatch.setattr("lab.serve.weights.prepare", lambda model: fetched.append(model.name))
    assert main(["fetch", "digits", "embedder", "digits"]) == 0
    assert fetched == ["digits", "embedder"]


def test_json_is_the_only_thing_on_stdout(home, capfd):
    main(["doctor", "--json"])
    checks = json.loads(capfd.readouterr().out)["checks"]
    assert {"name", "ok", "found", "remedy"} == set(checks[0])


@pytest.mark.parametrize("arguments", [[], ["run", "batchin"]])
def test_as_a_process_of_its_own_it_says_so_without_a_traceback(arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lab", *arguments],
        cwd=PROJECT,
        env={**os.environ, "LAB_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert ("COMMAND" if not arguments else '"batching"') in done.stderr


def test_every_command_tells_its_options_and_imports_nothing_that_takes_long():
    code = f"""
import contextlib, sys
from lab.__main__ import main
for arguments in {[[], *([name] for name in COMMANDS)]}:
    with contextlib.suppress(SystemExit):
        main([*arguments, "--help"])
assert not {{"numpy", "pydantic", "pyarrow", "grpc", "torch", "streamlit"}} & set(sys.modules), sorted(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    for name, help_text in COMMANDS.items():
        assert f"usage: python -m lab {name} " in done.stdout
        assert re.search(rf"^    {name}\s+{re.escape(help_text.split()[0])}", done.stdout, re.MULTILINE)


def test_what_measures_imports_neither_streamlit_nor_torch():
    modules = "lab.run.runner, lab.load.generator, lab.load.worker, lab.measure.summary"
    code = f"import sys, {modules}; print([m for m in ('streamlit', 'torch', 'plotly') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
