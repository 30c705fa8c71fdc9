"""A child that dies with its owner, however the owner dies, and a log that cannot fill the disk."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest

from lab.serve import process
from lab.serve.process import BoundedLog, Process, born, exit_status_of, is_same, last_lines
from tests.waiting import until

pytestmark = pytest.mark.processes

PROJECT = Path(__file__).parents[2]
SLEEP = ["/bin/sleep", "600"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_child_dies_with_its_owner(tmp_path, how):
    code = textwrap.dedent(
        f"""
        import sys, time
        from pathlib import Path
        from lab.serve.process import Process
        child = Process({SLEEP!r}, {{}}, Path({str(tmp_path / "log")!r}))
        print(child.pid, flush=True)
        time.sleep(600)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    child = int(owner.stdout.readline())
    until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")  # the death signal is set before this
    started = born(child)
    owner.send_signal(how)
    owner.wait(60)
    until(lambda: not is_same(child, started))


def test_what_the_child_started_dies_with_the_owner(tmp_path):
    """As a stub of Triton's does, which the signal at its server's end does not reach."""
    log = tmp_path / "log"
    code = textwrap.dedent(
        f"""
        import time
        from pathlib import Path
        from lab.serve.process import Process
        Process(["/bin/sh", "-c", "sleep 600 & echo $!; wait"], {{}}, Path({str(log)!r}))
        time.sleep(600)
        """
    )
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT)
    (grandchild,) = until(lambda: last_lines(log, 1))
    started = born(int(grandchild))
    owner.kill()
    owner.wait(60)
    until(lambda: not is_same(int(grandchild), started))


def test_nobody_watches_once_there_is_nothing_to_watch(tmp_path):
    before = {child.pid for child in psutil.Process().children()}
    children = [Process(SLEEP, {}, tmp_path / "log") for _ in range(2)]
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait(60)
    until(lambda: {child.pid for child in psutil.Process().children()} <= before)


def test_the_child_survives_the_thread_that_asked_for_it(tmp_path):
    made = []
    thread = threading.Thread(target=lambda: made.append(Process(SLEEP, {}, tmp_path / "log")))
    thread.start()
    thread.join()
    (child,) = made
    until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n")
    assert not child.wait(0.3)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(60)
    assert child.exit_status == -signal.SIGKILL


def test_what_the_child_started_ends_with_it(tmp_path):
    child = Process(["/bin/sh", "-c", "sleep 600 & echo $!"], {}, tmp_path / "log")
    assert child.wait(60)
    (grandchild,) = until(lambda: last_lines(tmp_path / "log", 1))
    until(lambda: born(int(grandchild)) is None)


def test_both_output_streams_are_in_the_log(tmp_path):
    child = Process(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], {}, tmp_path / "deep" / "log")
    assert child.wait(60)
    assert child.exit_status == 3
    until(lambda: sorted(last_lines(tmp_path / "deep" / "log", 5)) == ["err", "out"])


def test_a_program_that_is_not_there_is_an_exit_and_a_line(tmp_path):
    child = Process(["/nowhere/triton"], {}, tmp_path / "log")
    assert child.wait(60)
    assert child.exit_status != 0
    until(lambda: any("/nowhere/triton" in line or "No such file" in line for line in last_lines(tmp_path / "log", 9)))


def test_a_log_keeps_the_newest_and_stays_within_twice_its_bound(tmp_path):
    path = tmp_path / "log"
    with BoundedLog(path, limit=1000) as log:
        for number in range(500):
            log.write(f"line {number}\n".encode())
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 1000
    assert last_lines(path, 2) == ["line 498", "line 499"]


def test_a_log_is_continued_not_begun_anew(tmp_path):
    for word in (b"first\n", b"second\n"):
        with BoundedLog(tmp_path / "log") as log:
            log.write(word)
    assert last_lines(tmp_path / "log", 5) == ["first", "second"]


def test_the_last_lines_of_no_file_are_none(tmp_path):
    assert last_lines(tmp_path / "none", 3) == []


def test_a_pid_that_came_again_is_another_process():
    started = born(os.getpid())
    assert is_same(os.getpid(), started)
    assert not is_same(os.getpid(), started - 3600)


def test_a_process_that_ended_but_was_not_collected_is_gone():
    child = subprocess.Popen(["/bin/true"])
    until(lambda: born(child.pid) is None)
    assert child.wait() == 0


def test_others_learn_how_a_process_ended(tmp_path, monkeypatch):
    """Who only attached to it cannot wait for it, and its log says nothing where a signal ended it."""
    log = tmp_path / "log"
    child = Process(SLEEP, {}, log, told=True)
    child.send_signal(signal.SIGKILL)
    assert child.wait(60)
    assert exit_status_of(child.pid, log) == -signal.SIGKILL
    monkeypatch.setattr(process, "TOLD_S", 0.0)
    assert exit_status_of(child.pid + 1, log) is None  # an earlier one's end is not this one's
    child.send_signal(signal.SIGKILL)  # to one that is gone: nothing
