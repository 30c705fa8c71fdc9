import dataclasses
import json
import os
import subprocess
import sys

import pytest

from lab.serve import record
from lab.serve.process import born
from lab.serve.record import ServerRecord


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A record of this process, as if it were a server."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return ServerRecord(os.getpid(), born(os.getpid()), 8000, 8001, 8002, "/r", "/l", "servinglab_a_", ("null",))


@pytest.fixture
def other():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield ServerRecord(child.pid, born(child.pid), 1, 2, 3, "/r", "/l", "servinglab_b_")
    child.communicate()


def test_a_live_server_is_read_back(own):
    assert record.write(own)
    assert record.read() == own


def test_the_file_holds_what_others_look_for(own, tmp_path):
    record.write(own)
    written = json.loads((tmp_path / "server.json").read_text())
    assert {"pid", "started", "http_port", "grpc_port", "metrics_port", "models"} <= written.keys()
    assert written["pid"] == os.getpid()
    assert written["models"] == ["null"]


def test_a_pid_that_came_again_is_no_server(own):
    record.write(dataclasses.replace(own, started=own.started - 3600))
    assert record.read() is None


def test_the_first_live_server_stays_recorded(own, other):
    record.write(own)
    assert not record.write(other)
    record.remove(other)
    assert record.read() == own


def test_a_dead_one_is_replaced(own, other):
    record.write(dataclasses.replace(own, started=own.started - 3600))
    assert record.write(other)
    assert record.read() == other


def test_models_of_the_recorded_server_are_updated(own):
    record.write(own)
    assert record.write(dataclasses.replace(own, models=("digits", "null")))
    assert record.read().models == ("digits", "null")


def test_removed_is_gone(own):
    record.write(own)
    record.remove(own)
    record.remove(own)
    assert record.read() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}', '{"pid": "x", "started": "y"}'])
def test_a_file_that_makes_no_sense_is_no_server(own, tmp_path, text):
    (tmp_path / "server.json").write_text(text)
    assert record.read() is None
    assert record.write(own)
