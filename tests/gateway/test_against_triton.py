"""The gateway's own process in front of the real Triton: answers, cancellation, a kill in the middle of a rollout."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from lab.errors import InputError
from lab.gateway.serve import Wishes, serve
from lab.load.payload import held_out_digits
from lab.serve.metrics import scrape
from lab.serve.triton import Server
from lab.spec import ModelSpec, parse
from lab.track import rollout
from lab.track.routes import Routes, last_look
from lab.track.routing import Version
from tests.waiting import until

pytestmark = pytest.mark.triton
PROJECT = Path(__file__).parents[2]


@contextmanager
def gateway(*more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(url, process) of `lab gateway` on the session's LAB_HOME."""
    command = [sys.executable, "-m", "lab", "gateway", "--port", "0", *more]
    process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("gateway on ")), "")
        assert line, process.wait(60)
        yield line.split()[2], process
    finally:
        process.terminate()
        assert process.wait(60) is not None


def ask(url: str, path: str, body: Any = None) -> tuple[Any, dict[str, str]]:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, data), timeout=60) as answer:
        return json.load(answer), dict(answer.headers)


def refused(url: str, path: str, body: Any) -> tuple[int, str]:
    """(status, code) of the error in OpenAI's shape."""
    with pytest.raises(urllib.error.HTTPError) as error:
        ask(url, path, body)
    return error.value.code, json.load(error.value)["error"]["code"]


def test_predictions_are_tritons_and_a_killed_gateway_goes_on_with_its_rollout(
    triton_server: Server, lab_home: Path
) -> None:
    for name in ("gw_digits", "gw_digits_b"):
        triton_server.load(ModelSpec(name=name, family="digits"))
    images = held_out_digits()
    body = {"inputs": {"IMAGE": images[0].tolist()}}
    with gateway() as (url, process):
        said, headers = ask(url, "/predict/gw_digits", body)
        tensor = triton.InferInput("IMAGE", [1, 64], "FP32")
        tensor.set_data_from_numpy(images[:1])
        with triton.InferenceServerClient(triton_server.grpc_url) as client:
            direct = client.infer("gw_digits", [tensor]).as_numpy("LOGITS")
        assert np.array_equal(np.array(said["outputs"]["LOGITS"], np.float32), direct)
        assert headers["x-model-version"] == "1" and ask(url, "/healthz/gw_digits")[0]["ready"]

        assert refused(url, "/v1/completions", {"model": "gw_digits", "prompt": "Once"}) == (400, "no_text")

        routes = Routes()
        replica = {"url": "lab", "model": "gw_digits_b"}
        two = parse(Version, {"version": "2", "weight": 0, "replicas": [replica]})
        rollout.add_version(routes, "gw_digits", two)
        rollout.begin(routes, "gw_digits", "2", steps=(0.5, 1.0))
        db = lab_home / "mlflow" / "mlflow.db"  # a registry that somebody holds locked is nothing to who serves
        db.parent.mkdir(exist_ok=True)
        holder = sqlite3.connect(db, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        until(lambda: ask(url, "/routes")[0]["routes"]["gw_digits"]["canary"] is not None)
        versions = [ask(url, "/predict/gw_digits", body)[1]["x-model-version"] for _ in range(40)]
        assert set(versions) == {"1", "2"}
        look = until(lambda: (found := last_look(routes, "gw_digits")) and found["touched"] > 0 and found)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        holder.close()
    triton_server.unload("gw_digits_b")  # a gateway that comes back loads what its routes name
    with gateway() as (url, _):
        assert triton_server.state("gw_digits_b").ready
        route = ask(url, "/routes")[0]["routes"]["gw_digits"]
        assert route["canary"]["state"] == "going" and [v["weight"] for v in route["versions"]] == [0.5, 0.5]
        for _ in range(20):
            ask(url, "/predict/gw_digits", body)
        until(lambda: (found := last_look(routes, "gw_digits")) and found["touched"] > look["touched"])
        rollout.move(routes, "gw_digits", "roll_back")
        until(lambda: ask(url, "/routes")[0]["routes"]["gw_digits"]["versions"][1]["weight"] == 0)
        assert {ask(url, "/predict/gw_digits", body)[1]["x-model-version"] for _ in range(10)} == {"1"}
        assert ask(url, "/routes")[0]["in_flight"] == 0


def test_client_that_goes_stops_the_engine(triton_server: Server) -> None:
    triton_server.load(ModelSpec(name="llm"))

    def engine(field: str) -> float:
        rows = scrape(triton_server, ["llm"]).to_pylist()
        return next(row["value"] for row in rows if row["field"] == f"engine_{field}") or 0.0

    body = {"model": "llm", "prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with gateway("--model", "llm", "--drain", "0") as (url, process):
        assert refused(url, "/predict/llm", {"inputs": {"text_input": ["Once"]}}) == (400, "streams")
        before, cancelled = engine("output_tokens"), engine("cancelled")
        for _ in range(3):
            connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
            connection.request("POST", "/v1/completions", json.dumps(body))
            answer = connection.getresponse()
            for _ in range(6):  # three events and what is between them
                answer.readline()
            answer.close()
            connection.close()
        until(lambda: ask(url, "/routes")[0]["in_flight"] == 0)
        until(lambda: engine("cancelled") == cancelled + 3)  # told together with the tokens, once a second
        written = engine("output_tokens") - before
        with pytest.raises(InputError, match=url):  # two guards on half of the requests each would both decide
            serve(Wishes())
        connection = HTTPConnection(url.removeprefix("http://"), timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        first = answer.readline()
        process.send_signal(signal.SIGTERM)
        rest = answer.read().decode()
        assert process.wait(60) == 0
    assert b"choices" in first and '"stopping"' in rest and "[DONE]" not in rest
    assert 9 <= written < 1350  # of 2,700 that they asked for; how few exactly is benchmarks/rollout.py's


def test_without_anything_to_serve_it_says_so(lab_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "lab", "gateway", "--port", "0"], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stderr.startswith("error: no Triton of the lab runs")
    with pytest.raises(urllib.error.URLError):
        ask("http://127.0.0.1:9", "/")
