import socket
import subprocess

import pytest

from lab.serve import doctor, leftovers
from lab.serve.process import born

pytestmark = pytest.mark.processes


@pytest.fixture
def found(tmp_path, monkeypatch):
    """The checks by name, in an empty LAB_HOME."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return lambda: {check.name: check for check in doctor.checks()}


def test_nothing_fetched_is_said_with_the_command_that_fetches(found, tmp_path):
    checks = found()
    for name, word in (("Triton", "triton"), ("model digits", "digits"), ("model llm", "llm")):
        assert not checks[name].ok
        assert f"python -m lab fetch {word}" in checks[name].remedy
    assert not (tmp_path / "triton").exists()  # a doctor changes nothing


def test_what_is_not_ok_has_a_remedy(found):
    assert all(check.remedy for check in found().values() if not check.ok)


def test_a_taken_port_is_named_with_its_owner(found, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(doctor, "DEFAULT_PORTS", (port,))
        check = found()["server"]
    assert check.ok  # another port will do
    assert f"port {port} is taken by" in check.found
    assert "(pid " in check.found


def test_leftovers_are_counted(found):
    assert found()["leftovers in shared memory"].ok
    child = subprocess.Popen(["/bin/sleep", "600"])
    prefix = leftovers.new_prefix()
    leftovers.record(prefix, child.pid, born(child.pid))
    child.kill()
    child.wait()
    path = leftovers.SHM / f"{prefix}a"
    path.write_bytes(bytes(4096))
    try:
        check = found()["leftovers in shared memory"]
        assert not check.ok
        assert check.found.startswith("1 regions, 4,096 bytes")
    finally:
        path.unlink()


def test_too_little_space_is_not_ok(found, monkeypatch):
    monkeypatch.setattr(doctor, "DISK_BYTES", 2**60)
    check = found()["disk"]
    assert not check.ok
    assert "LAB_HOME" in check.remedy
