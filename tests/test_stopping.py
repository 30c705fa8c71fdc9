"""A stop ends what is waited for: a job's process, a lock, a whole run that still prepares."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from lab import home, stopping
from lab.run import control, formats, results, runner
from lab.run.catalogue import single
from lab.run.folder import new_run_id
from lab.serve import job
from tests.waiting import until

pytestmark = pytest.mark.processes

JOB = """
import json, os, sys, time
print(json.dumps({"label": str(os.getpid()), "done": 0, "total": 1}), flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    (tmp_path / "endless_job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_stop_ends_the_process_of_a_job():
    pids = []
    with stopping.heeding(lambda: bool(pids)), pytest.raises(stopping.Stopped):
        job.do("endless_job", {}, lambda label, done, total: pids.append(int(label)))
    assert gone(pids[0])


def test_a_job_ended_by_the_signal_that_asked_for_the_stop_is_stopped():
    told = threading.Event()

    def end(label, done, total):
        told.set()
        os.kill(int(label), signal.SIGTERM)

    with stopping.heeding(told.is_set), pytest.raises(stopping.Stopped):
        job.do("endless_job", {}, end)


def test_a_job_that_died_by_itself_has_failed():
    with pytest.raises(job.Failed, match="status -15"):
        job.do("endless_job", {}, lambda label, done, total: os.kill(int(label), signal.SIGTERM))


def test_a_process_that_ends_in_time_is_let_be():
    with subprocess.Popen([sys.executable, "-c", ""]) as process, stopping.ending(process):
        process.wait()
    assert process.returncode == 0


def test_a_stop_ends_the_wait_for_a_lock(tmp_path):
    waits = threading.Event()
    lock = tmp_path / "one.lock"
    with (
        home.locked(lock),
        stopping.heeding(waits.is_set),
        pytest.raises(stopping.Stopped),
        home.locked(lock, waits.set),
    ):
        pytest.fail("two hold it")


@pytest.mark.parametrize("how", ["signal", "page"])
@pytest.mark.parametrize("stage", ["prepare", "evaluate"])
def test_a_run_stopped_while_it_prepares_is_cancelled(how, stage, monkeypatch):
    @contextmanager
    def serving(url, folder):
        yield None

    pids = []

    def endless(*_):
        job.do("endless_job", {}, lambda label, done, total: pids.append(int(label)))

    monkeypatch.setattr(runner, "serving", serving)
    monkeypatch.setattr(formats, "prepare", lambda *_: None)
    monkeypatch.setattr(formats, stage, endless)
    workload = {"arrival": {"kind": "poisson", "rate_rps": 1}, "duration_s": 1}
    experiment, stop = single({"name": "null"}, workload, []), runner.Stop()
    folder = runner.create(experiment, new_run_id("load"), quick=False, settings=[], url=None)
    words = {"stop": stop, "report": lambda line: None}
    thread = threading.Thread(target=runner.run, args=(experiment, folder), kwargs=words)
    thread.start()
    until(lambda: pids)
    if how == "signal":
        stop.set()
    else:
        control.send(folder.run_id, {"stop": True})
    thread.join(60)
    assert not thread.is_alive()
    assert gone(pids[0])
    assert stop()
    document = results.document(folder)
    assert (document["state"], document["message"]) == (
        "cancelled",
        "stopped by the user before anything was measured",
    )


def test_a_stage_without_bytes_has_no_unit(capsys):
    home.steps("reading held-out prose", 64, 64)
    home.bar("downloading", 3_000_000, 3_000_000)
    assert capsys.readouterr().err == "reading held-out prose\ndownloading: 3 MB\n"


def test_a_call_that_knows_of_no_stop_is_left_at_one():
    begun, over = threading.Event(), threading.Event()

    def call():
        begun.set()
        over.wait()

    try:
        with stopping.heeding(begun.is_set), pytest.raises(stopping.Stopped):
            stopping.heeded(call)
    finally:
        over.set()


def test_a_call_gives_what_it_gives_and_raises_what_it_raises():
    assert stopping.heeded(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        stopping.heeded(lambda: 1 // 0)
