"""The scaler at a bench: a stand-in for the server first, then Triton's own instances."""

import threading
import time
from types import SimpleNamespace

import pytest

from lab.errors import ModelError
from lab.load import worker
from lab.load.generator import Progress
from lab.run import scaled
from lab.run.scaler import Scaler
from lab.serve.health import live_processes
from lab.spec import ModelSpec, Scaling
from tests.waiting import until

RULES = Scaling(target=1.0, most=4, tick_s=0.01, window_s=0.05)
MODEL = ModelSpec(name="sleeper", scaling=RULES)


def progress(in_flight, sent=0, done=False):
    return Progress(None, sent, 0, in_flight, done, {})


class Folder:
    def __init__(self):
        self.events = []

    def event(self, kind, **fields):
        self.events.append((kind, fields))


def ticked(scaler, in_flight, condition):
    def once():
        scaler.tick(progress(in_flight))
        return condition()

    until(once)


def test_one_change_at_a_time_and_each_is_written_down():
    gate, asked = threading.Event(), []

    def load(model):
        asked.append(model.instances)
        gate.wait(60)

    folder = Folder()
    scaler = Scaler(SimpleNamespace(load=load), MODEL, folder, block=3)
    ticked(scaler, 3, lambda: asked)
    for _ in range(20):
        scaler.tick(progress(4))
        time.sleep(0.005)
    assert asked == [3]
    gate.set()
    ticked(scaler, 4, lambda: asked[-1] == 4)
    scaler.close()
    assert [(kind, e["block"], e["before"], e["after"]) for kind, e in folder.events] == [
        ("scaled", 3, 1, 3),
        ("scaled", 3, 3, 4),
    ]
    assert all(e["asked_ns"] < e["done_ns"] for _, e in folder.events)


def test_decisions_come_by_the_loads_own_clock_without_drift(monkeypatch):
    """Ticks of 1 s, looked at every 0.3 s: decided at the first look after each whole second, not before the load."""
    scaler = Scaler(SimpleNamespace(), ModelSpec(name="sleeper", scaling=Scaling(tick_s=1.0)), Folder(), block=0)
    decided = []
    monkeypatch.setattr(scaler._scaler, "decide", lambda t_s, current: decided.append(round(t_s, 1)) or current)
    now = SimpleNamespace(ns=0)
    monkeypatch.setattr("lab.run.scaler.time.perf_counter_ns", lambda: now.ns)
    scaler.begin(10**9)
    for look in range(17):
        now.ns = look * 300_000_000
        scaler.tick(progress(1))
    assert decided == [0.2, 1.1, 2.0, 3.2]


def test_the_simulator_knows_how_often_the_scaler_is_told():
    assert scaled.TOLD_EVERY_S == worker.REPORT_S


def test_a_change_that_fails_is_a_problem_and_the_next_is_tried():
    tries = []

    def load(model):
        tries.append(model.instances)
        if len(tries) == 1:
            raise ModelError("no room")

    folder = Folder()
    scaler = Scaler(SimpleNamespace(load=load), MODEL, folder, block=0)
    ticked(scaler, 2, lambda: len(tries) == 2)
    scaler.close()
    assert [kind for kind, _ in folder.events] == ["problem", "scaled"]
    assert folder.events[0][1]["text"] == "Scaling to 2 instances failed: no room"


@pytest.mark.triton
def test_instances_come_and_go_while_a_crowd_is_served(triton_server):
    """Four users who never pause, one instance: a change in place would wait for ever."""
    from lab.load.payload import requests_for
    from lab.run.equality import infer
    from lab.spec import ClosedLoop, Workload

    spec = ModelSpec(name="scaled", family="sleeper", scaling=Scaling(target=1.0, most=3, tick_s=0.05, window_s=0.2))
    triton_server.load(spec)
    workload = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1, sleep_s=(0.02,))
    (request,) = requests_for(spec, workload, 1)
    stop, answered, failed = threading.Event(), [], []

    def ask():
        while not stop.is_set():
            try:
                infer(triton_server.client, spec.name, request)
                answered.append(1)
            except Exception as error:  # noqa: BLE001  whatever it is, none may be lost
                failed.append(error)

    users = [threading.Thread(target=ask) for _ in range(4)]
    folder = Folder()
    scaler = Scaler(triton_server, spec, folder, block=0)
    for user in users:
        user.start()
    try:
        ticked(scaler, 4, lambda: counted(triton_server, spec.name) == 3)
        until(lambda: live_processes(triton_server.pid).get(spec.name) == 3)  # those that it replaced have gone
        ticked(scaler, 0, lambda: counted(triton_server, spec.name) == 1)
        before = len(answered)
        until(lambda: len(answered) > before)
    finally:
        stop.set()
        for user in users:
            user.join()
    scaler.close()
    triton_server.unload(spec.name)
    assert not failed
    assert [(e["before"], e["after"]) for kind, e in folder.events if kind == "scaled"] == [(1, 3), (3, 1)]


def counted(server, name):
    return sum(group["count"] for group in server.config(name)["instance_group"])
