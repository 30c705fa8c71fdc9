"""Regions of dead servers go; everything that somebody lives by stays (P14). With real files in /dev/shm."""

import mmap
import os
import subprocess

import pytest

from lab.__main__ import main
from lab.serve import leftovers
from lab.serve.process import born

SIZE = 8192


@pytest.fixture
def region(tmp_path, monkeypatch):
    """Makes a region file with a prefix; all are gone after the test."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    made = []

    def make(prefix: str, name: str):
        path = leftovers.SHM / f"{prefix}{name}"
        path.write_bytes(bytes(SIZE))
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture
def dead():
    """Pid and start time of a process that ended."""
    child = subprocess.Popen(["/bin/sleep", "600"])
    pid, started = child.pid, born(child.pid)
    child.kill()
    child.wait()
    return pid, started


def test_regions_of_a_dead_server_are_found_and_removed(region, dead):
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, *dead)
    paths = [region(prefix, "a"), region(prefix, "b")]
    assert [left.path for left in leftovers.find()] == paths
    assert leftovers.remove() == (2, 2 * SIZE)
    assert not any(path.exists() for path in paths)
    assert leftovers.remove() == (0, 0)


def test_stubs_of_a_dead_server_end_and_others_go_on(region, dead):
    own, other, plain = leftovers.new_prefix(), leftovers.new_prefix(), leftovers.new_prefix()
    leftovers.record(own, *dead)
    leftovers.record(plain, *dead)
    leftovers.record(other, os.getpid(), born(os.getpid()))
    waits, pipe = ["-c", "echo; read end"], subprocess.PIPE
    started = {
        prefix: subprocess.Popen([name, *waits, f"{prefix}1"], executable="/bin/sh", stdin=pipe, stdout=pipe)
        for prefix, name in ((own, leftovers.STUB), (other, leftovers.STUB), (plain, "sh"))
    }
    try:
        for process in started.values():
            process.stdout.readline()
        leftovers.remove()
        assert [born(process.pid) is None for process in started.values()] == [True, False, False]
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def test_any_command_of_the_lab_removes_them_but_doctor_only_tells(region, dead, capsys):
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, *dead)
    path = region(prefix, "a")
    main(["doctor"])
    assert path.exists() and "1 regions" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert not path.exists()


def test_a_live_servers_regions_stay(region):
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, os.getpid(), born(os.getpid()))
    path = region(prefix, "a")
    assert leftovers.find() == []
    assert leftovers.remove() == (0, 0)
    assert path.exists()


def test_what_a_live_process_still_maps_stays_until_it_is_gone(region, dead):
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, *dead)
    path, other = region(prefix, "a"), region(prefix, "b")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), SIZE):
        assert leftovers.remove() == (1, SIZE)
        assert path.exists()
        assert not other.exists()
    assert leftovers.remove() == (1, SIZE)  # its record was kept until now
    assert not path.exists()


def test_a_recorded_pid_that_came_again_is_a_dead_server(region):
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, os.getpid(), born(os.getpid()) - 3600)
    region(prefix, "a")
    assert leftovers.remove() == (1, SIZE)


def test_regions_without_a_record_are_somebody_elses(region, dead):
    leftovers.record(leftovers.new_prefix(), *dead)
    strangers = [region(leftovers.new_prefix(), "a"), region("triton_python_backend_shm_region_", "0")]
    assert leftovers.find() == []
    assert leftovers.remove() == (0, 0)
    assert all(path.exists() for path in strangers)


@pytest.mark.parametrize("text", ["", "{", '{"prefix": "", "pid": 1, "started": 0}', '{"pid": 1}'])
def test_a_record_that_makes_no_sense_removes_nothing(region, tmp_path, text):
    path = region(leftovers.new_prefix(), "a")
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm" / "servinglab_x.json").write_text(text)
    assert leftovers.remove() == (0, 0)
    assert path.exists()
