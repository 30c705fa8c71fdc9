import os
import socket
import subprocess
import sys

import pytest

from lab.errors import InputError
from lab.serve import ports


@pytest.fixture
def taken():
    with socket.create_server((ports.HOST, 0)) as server:
        yield server.getsockname()[1]


def test_ports_are_different_and_can_be_bound():
    picked, taken = ports.pick()
    assert len(set(picked)) == 3
    assert taken == []
    assert all(ports.is_free(port) for port in picked)


def test_wanted_ports_are_used_where_they_are_free():
    with socket.socket() as held:  # bound, so that no neighbour takes it, and free to who listens
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((ports.HOST, 0))
        wanted = held.getsockname()[1]
        assert ports.pick([wanted], count=1) == ([wanted], [])


def test_every_taken_port_is_named_with_its_owner_and_replaced(taken):
    with socket.create_server((ports.HOST, 0)) as other:
        also_taken = other.getsockname()[1]
        picked, lines = ports.pick([taken, also_taken])
    assert {taken, also_taken}.isdisjoint(picked)
    for port, line in zip((taken, also_taken), lines, strict=True):
        assert f"port {port} is taken by" in line
        assert f"(pid {os.getpid()})" in line
    assert f"using {picked[0]}" in lines[0]


def test_listens_tells_the_holder_from_a_stranger(taken):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert ports.listens(os.getpid(), taken)
        assert not ports.listens(stranger.pid, taken)
    finally:
        stranger.communicate()
    assert not ports.listens(stranger.pid, taken)  # gone by now


def test_a_port_that_the_user_chose_and_cannot_have_is_an_input_error(taken):
    with ports.listen(ports.HOST, 0) as server:
        assert server.getsockname()[1]
    with pytest.raises(InputError, match=rf"{taken} cannot be listened on: taken by .*{os.getpid()}.*another --port"):
        ports.listen(ports.HOST, taken)
    with pytest.raises(InputError, match="port 70000: allowed are 1 to 65535"):
        ports.listen(ports.HOST, 70_000)
