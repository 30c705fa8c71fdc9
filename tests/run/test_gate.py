"""The residency before a real Triton: swaps, a dead model, a budget that changes under load (P11, P12; two loads at
once, an unload under requests, a stub that dies while it loads)."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from lab.errors import InputError
from lab.load.targets.triton_http import infer_request
from lab.run.gate import Gate, Limits, parse_size
from lab.serve import repository
from lab.serve.eviction import Refused
from lab.spec import ModelSpec
from lab.watch import host
from tests.waiting import LIMIT_S, until

triton = pytest.mark.triton
ROOM = 2**62


def ask(gate, model, value, limit_s=LIMIT_S):
    """(status, the float that came back or the error's text)."""
    headers, body = infer_request({"INPUT": np.array([[value]], np.float32)})
    request = urllib.request.Request(f"{gate.url}/v2/models/{model}/infer", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=limit_s) as answer:
            return answer.status, float(np.frombuffer(answer.read()[-4:], np.float32)[0])
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]


@pytest.fixture(scope="module")
def models():
    return [ModelSpec(name=f"resident_{n}", family="null") for n in range(4)]


@triton
def test_three_models_share_room_for_two(triton_server, models):
    with Gate(triton_server, models, ROOM) as gate:
        for n in (0, 1):
            assert ask(gate, f"resident_{n}", n + 0.5) == (200, n + 0.5)
        gate.set_budget(round(1.2 * gate.shelf.size_bytes(["resident_0", "resident_1"])))
        assert gate.shelf.measured_bytes() <= gate.residency.budget_bytes
        # Twenty who miss one model share one load, and the least recently used one makes its room.
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda value: ask(gate, "resident_2", float(value)), range(20)))
        assert answers == [(200, float(value)) for value in range(20)]
        assert gate.residency.places()["resident_0"] == "absent"
        assert (gate.residency.counts["loads"], gate.residency.counts["evictions"]) == (3, 1)
        assert {name for name in host.model_processes(triton_server.pid) if name.startswith("resident")} == {
            "resident_1",
            "resident_2",
        }
        status, text = ask(gate, "nobody", 1.0)
        assert (status, "there is none" in text) == (404, True)
        # A smaller budget, while requests go on: nobody is lost.
        over, endings = threading.Event(), []

        def go_on():
            while not over.is_set():
                endings.append(ask(gate, "resident_2", 7.0))

        client = threading.Thread(target=go_on)
        client.start()
        gate.set_budget(round(1.1 * gate.shelf.size_bytes(["resident_2"])))
        over.set()
        client.join(60)
        assert set(endings) == {(200, 7.0)}
        assert gate.residency.resident() == ["resident_2"]
        with pytest.raises(Refused, match=r"model resident_3 takes .* MiB; the budget is 0 MiB"):
            gate.set_budget(1000)
            gate.acquire("resident_3")


@triton
def test_an_unload_under_requests_waits_for_their_answers(triton_server):
    with Gate(triton_server, [ModelSpec(name="slow", family="sleeper", instances=2)], ROOM) as gate:
        gate.acquire("slow")
        gate.release("slow")
        headers, body = infer_request({"SLEEP_S": np.array([[0.5]], np.float32)})

        def sleep():
            request = urllib.request.Request(f"{gate.url}/v2/models/slow/infer", body, headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status

        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(sleep) for _ in range(2)]
            until(lambda: gate.residency.counts["hits"] == 2, "two requests under way")
            leaving = pool.submit(gate.unload, "slow")
            assert [each.result(LIMIT_S) for each in asked] == [200] * 2
            leaving.result(LIMIT_S)
        assert gate.residency.places() == {"slow": "absent"}
        assert "slow" not in host.model_processes(triton_server.pid)


@triton
def test_a_model_whose_process_dies_is_loaded_anew(triton_server, models):
    """P11: Triton goes on saying that it is ready."""
    with Gate(triton_server, models[:1], ROOM) as gate:
        assert ask(gate, "resident_0", 1.0) == (200, 1.0)
        (stub,) = host.model_processes(triton_server.pid)["resident_0"]
        os.kill(stub, signal.SIGKILL)
        status, text = ask(gate, "resident_0", 2.0)
        assert status == 500, text
        until(lambda: ask(gate, "resident_0", 3.0) == (200, 3.0), "the model loaded anew")
        assert gate.residency.counts["loads"] == 2
        gate.unload("resident_0")


HANGS_AT_FIRST = """

class TritonPythonModel(TritonPythonModel):
    def initialize(self, args):
        import pathlib, time
        if not (mark := pathlib.Path({mark!r})).exists():
            mark.touch()
            time.sleep(600)
"""


@triton
def test_a_model_whose_process_is_killed_while_it_loads_is_refused_by_its_reason(triton_server, tmp_path, monkeypatch):
    # A name of its own: the server that tests share may still have a null, whose process would be killed instead.
    # It loads for as long as it takes to kill it, and has met its server: one that has not is waited for by Triton for
    # minutes (triton-inference-server/server#5381), until the lab's own limit.
    mark = tmp_path / "loads"
    (tmp_path / "null.py").write_text(
        (repository.MODELS / "null.py").read_text() + HANGS_AT_FIRST.format(mark=str(mark))
    )
    monkeypatch.setattr(repository, "MODELS", tmp_path)
    with Gate(triton_server, [ModelSpec(name="killed", family="null")], ROOM, limits=Limits(retry_s=0.1)) as gate:
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(gate.acquire, "killed")
            until(mark.exists, "its process to load")
            (stub,) = host.model_processes(triton_server.pid)["killed"]
            os.kill(stub, signal.SIGKILL)
            with pytest.raises(Refused, match="model killed did not load") as refusal:
                load.result(60)
        assert refusal.value.reason == "failed"
        assert gate.residency.places() == {"killed": "absent"}
        time.sleep(0.2)  # longer than a failure is remembered
        gate.acquire("killed")  # the next try has a process of its own
        gate.release("killed")
        gate.unload("killed")


@pytest.mark.parametrize(
    ("text", "size"), [("500MiB", 500 * 2**20), ("1.5 GiB", 3 * 2**29), ("800000000", 8 * 10**8), ("2kB", 2000)]
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "MiB", "5 loaves", "-3MiB", "1e9"])
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="allowed are a number and"):
        parse_size(text)
