"""Nice values of a process and its session; without the privilege nothing changes and nothing fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab import priority


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_anybody_may_step_back(sleeper):
    assert priority.give(sleeper.pid, priority.WATCHING)
    assert priority.of(sleeper.pid) == priority.WATCHING
    autogroup = Path(f"/proc/{sleeper.pid}/autogroup")
    if autogroup.exists():
        assert autogroup.read_text().split()[-1] == str(priority.WATCHING)


def test_going_first_needs_the_privilege_and_its_lack_is_no_error(sleeper, monkeypatch):
    def refuse(*_):
        raise PermissionError("not allowed")

    monkeypatch.setattr(os, "setpriority", refuse)
    assert not priority.give(sleeper.pid, priority.MEASURED)
    assert priority.of(sleeper.pid) == 0


def test_a_process_that_is_gone_has_none(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert not priority.give(sleeper.pid, priority.WATCHING)
    assert priority.of(sleeper.pid) is None


def test_session_goes_first_for_a_while_only():
    if priority.session_of(os.getpid()) is None:
        pytest.skip("sessions are not weighed here")
    told = "from lab.priority import *; tell = lambda: print(session_of(os.getpid())); tell()"
    script = f"import os\n{told}\nwith raised(3): tell()\ntell()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, start_new_session=True)
    before, meanwhile, after = done.stdout.split()
    assert meanwhile == "3" and (after == before or os.geteuid() != 0), done.stderr


def test_a_running_session_steps_back_with_all_its_threads_and_comes_forward_again():
    """A thread that was there before is moved too, and so is a child in the same process group."""
    script = (
        "import subprocess, sys, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "input()\n"
    )
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", script], **given) as process:
        try:
            child = int(process.stdout.readline())
            threads = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
            assert len(threads) > 1
            assert priority.change(process.pid, priority.WATCHING)
            assert {priority.of(pid) for pid in (*threads, child)} == {priority.WATCHING}
            assert priority.session_of(process.pid) in (priority.WATCHING, None)
            back = priority.change(process.pid, priority.ORDINARY)
            if priority.session_of(process.pid) is not None:
                assert back and priority.session_of(process.pid) == 0
            if os.geteuid() == 0:
                assert {priority.of(pid) for pid in (*threads, child)} == {0}
        finally:
            process.kill()


def test_a_session_that_is_gone_cannot_step_back(sleeper):
    sleeper.kill()
    sleeper.wait()
    assert not priority.change(sleeper.pid, priority.WATCHING)
