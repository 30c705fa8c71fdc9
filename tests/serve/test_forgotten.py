"""Processes of models that Triton has let go of and does not end."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import tritonclient.grpc as client

from lab.errors import ModelError
from lab.serve import forgotten, health, triton
from lab.spec import ModelSpec
from tests.waiting import until

IDLE = "import sys; print(flush=True); sys.stdin.read()"
BUSY = "print(flush=True)\nwhile True: pass"
STARTS = """
import subprocess, sys
for path in sys.argv[1:]:  # one after the other: who is older is known
    child = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def server(tmp_path):
    """A process that stands for Triton; its children are processes of models, as the arguments say, oldest first."""
    started = []

    def start(*models):
        paths = []
        for number, (name, program) in enumerate(models):
            path = tmp_path / str(number) / name / "1" / "model.py"
            path.parent.mkdir(parents=True)
            path.write_text(program)
            paths.append(str(path))
        process = subprocess.Popen(
            [sys.executable, "-c", STARTS, *paths], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        children = psutil.Process(process.pid).children()
        for child in children:
            child.kill()
        process.kill()
        process.communicate()


@pytest.mark.processes
def test_idle_processes_that_a_newer_one_replaced_are_ended(server):
    pid = server(("null", IDLE), ("null", BUSY), ("other", IDLE), ("null", IDLE), ("null", IDLE))
    _, busy, *serving = health.processes(pid)["null"]
    assert forgotten.end(pid, "null", serving=2) == 1
    assert health.processes(pid)["null"] == [busy, *serving]
    assert health.live_processes(pid) == {"null": 3, "other": 1}


def test_where_none_is_too_many_none_is_ended(server):
    pid = server(("null", IDLE))
    assert [forgotten.end(pid, name, serving=1) for name in ("null", "digits")] == [0, 0]
    assert health.live_processes(pid) == {"null": 1}


def refuses(name):
    raise ModelError("no configuration")


@pytest.mark.parametrize(
    ("reason", "config", "kept"),
    [
        (None, lambda name: {"instance_group": [{"count": 2}, {"count": 1}]}, 3),
        ("unloading", refuses, 0),
        ("unloaded", refuses, 0),
        (None, refuses, None),  # how many serve is not known: none is ended
    ],
)
def test_those_that_serve_are_kept(monkeypatch, reason, config, kept):
    asked = []
    monkeypatch.setattr(forgotten, "end", lambda pid, name, serving: asked.append(serving) or 1)
    server = object.__new__(triton.Server)
    server.managed = SimpleNamespace(pid=7)
    server.state = lambda name: health.ModelState(name, reason is None, reason)
    server.config = config
    assert server.end_forgotten("null") == len(asked)
    assert asked == ([] if kept is None else [kept])


@pytest.mark.triton
def test_a_model_that_a_client_holds_is_unloaded_all_the_same(triton_server, monkeypatch):
    """An open stream keeps a model in Triton as a request does that it never lets go, which is a matter of luck."""
    monkeypatch.setattr(triton, "FORGOTTEN_S", 0.5)
    spec = ModelSpec(name="null")
    triton_server.load(spec)
    value = client.InferInput("INPUT", [1, 1], "FP32")
    value.set_data_from_numpy(np.zeros((1, 1), np.float32))
    answers = []
    with client.InferenceServerClient(triton_server.grpc_url) as holder:
        holder.start_stream(lambda result, error: answers.append(error))
        holder.async_stream_infer("null", [value])
        assert until(lambda: answers) == [None]
        triton_server.unload("null")
        assert "null" not in health.live_processes(triton_server.pid)
        triton_server.load(spec)
        assert holder.infer("null", [value]).as_numpy("OUTPUT") is not None
        assert health.live_processes(triton_server.pid)["null"] == 1
