"""Memory and CPU of real processes, and the reason where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from lab.watch.host import CpuMeter, host_memory, memory, model_processes
from lab.watch.reading import Reading
from tests.waiting import until

pytestmark = pytest.mark.processes

MIB = 2**20


@pytest.fixture
def python() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """A function that starts a Python process and returns once it printed a line."""
    processes = []

    def start(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_models_are_found_by_the_command_lines_of_their_stubs(fake_server: Callable[..., Any]) -> None:
    server = fake_server(
        "/some/repository/digits/1/model.py triton_python_backend_shm_region_1 1048576",
        "/some/repository/embedder/2/model.py region_2",
        "/some/repository/digits/1/model.py region_3",  # a second instance
        "/some/place/notes/model.py",  # no version folder: no model of Triton's
        "--verbose 1",
    )
    assert model_processes(server.pid) == {
        "digits": sorted([server.stubs[0], server.stubs[2]]),
        "embedder": [server.stubs[1]],
    }


def test_a_server_that_is_gone_has_no_models(fake_server: Callable[..., Any]) -> None:
    server = fake_server("/r/digits/1/model.py")
    server.stop()
    assert model_processes(server.pid) == {}


HOLD = "import time; block = bytearray(b'x' * {size}); print('up', flush=True); time.sleep(60)"


def test_memory_grows_by_what_a_process_holds(python: Callable[[str], subprocess.Popen[str]]) -> None:
    small, large = python(HOLD.format(size=1)), python(HOLD.format(size=64 * MIB))
    values = [memory("model:a", [process.pid]).value for process in (small, large)]
    assert values[0] is not None
    assert values[1] is not None
    assert (values[1] - values[0]) / MIB == pytest.approx(64, abs=4)


def test_a_page_that_two_processes_share_is_counted_once(python: Callable[[str], subprocess.Popen[str]]) -> None:
    forked = python(
        f"import os, time; block = bytearray(b'x' * {64 * MIB}); os.fork() and print('up', flush=True); time.sleep(60)"
    )
    child = psutil.Process(forked.pid).children()[0].pid
    both = memory("model:a", [forked.pid, child]).value
    os.kill(child, signal.SIGKILL)
    assert both is not None
    assert 64 * MIB < both < 2 * 64 * MIB


def test_a_process_that_is_gone_or_a_zombie_is_a_reason(python: Callable[[str], subprocess.Popen[str]]) -> None:
    process = python(HOLD.format(size=1))
    meter = CpuMeter()
    meter.read("server", [process.pid])
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended; nobody has reaped it
    expected = f"process {process.pid} is gone"
    for _ in ("zombie", "reaped"):
        assert memory("server", [process.pid]) == Reading("server", "memory_bytes", None, expected)
        assert meter.read("server", [process.pid]) == Reading("server", "cpu_fraction", None, expected)
        process.wait()


def test_a_part_that_cannot_be_read_makes_the_whole_unknown() -> None:
    assert memory("model:a", [os.getpid(), 2**22 + 1]).value is None
    meter = CpuMeter()
    meter.read("model:a", [os.getpid()])
    assert meter.read("model:a", [os.getpid(), 2**22 + 1]).value is None


def test_memory_of_another_users_process_is_a_matter_of_permission() -> None:
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)  # nobody
    try:
        reading = memory("server", [1])
    finally:
        if root:
            os.seteuid(0)
    assert reading.value is None
    assert reading.reason == "no permission to read the memory of process 1; run as its user"


def cpu_seconds(pids: Iterable[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(each.user + each.system for each in times)


class Looks:
    """A meter's two looks, each between two of ours, as far apart as this process was held up."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids, self.meter = pids, CpuMeter()
        self.looks: list[tuple[tuple[float, float], tuple[float, float]]] = []

    def look(self) -> Reading:
        before = time.perf_counter(), cpu_seconds(self.pids)
        reading = self.meter.read("a", self.pids)
        self.looks.append((before, (time.perf_counter(), cpu_seconds(self.pids))))
        return reading

    def allows(self, fraction: float | None) -> bool:
        (outer_from, inner_from), (inner_to, outer_to) = self.looks
        tick_s = 0.02 * len(self.pids)  # the kernel counts in hundredths
        least = (inner_to[1] - inner_from[1] - tick_s) / (outer_to[0] - outer_from[0])
        most = (outer_to[1] - outer_from[1] + tick_s) / (inner_to[0] - inner_from[0])
        return fraction is not None and least <= fraction <= most


def test_cpu_is_what_was_spent_between_two_looks(python: Callable[[str], subprocess.Popen[str]]) -> None:
    busy = python("import time\nwhile time.process_time() < 0.5: pass\nprint('up', flush=True)\nwhile True: pass")
    seen = Looks([busy.pid])
    assert seen.look() == Reading("a", "cpu_fraction", None, "needs two looks")
    spent = seen.looks[0][1][1]
    assert spent > 0.4  # before the first look: must not count
    until(lambda: cpu_seconds([busy.pid]) > spent + 0.4)
    assert seen.allows(seen.look().value)


def test_cpu_of_several_processes_is_their_sum(python: Callable[[str], subprocess.Popen[str]]) -> None:
    busy = "print('up', flush=True)\nwhile True: pass"
    seen = Looks([python(code).pid for code in (busy, busy, HOLD.format(size=1))])
    seen.look()
    spent = cpu_seconds(seen.pids)
    until(lambda: cpu_seconds(seen.pids) > spent + 0.5)
    assert seen.allows(seen.look().value)


def test_the_machine_is_busy_between_nothing_and_all() -> None:
    meter = CpuMeter()
    assert meter.host() == Reading("host", "cpu_fraction", None, "needs two looks")
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    found = meter.host().value
    assert found is not None
    assert 0 < found <= 1


def test_the_machine_holds_more_than_one_process_and_less_than_all() -> None:
    own, whole = memory("host", [os.getpid()]).value, host_memory().value
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert own is not None
    assert whole is not None
    assert own < whole < total
