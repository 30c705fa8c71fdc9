"""Free ports of 127.0.0.1, who holds the others, and a port that the user chose."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import psutil

from lab.errors import InputError

HOST = "127.0.0.1"


def pick(wanted: Sequence[int] = (), count: int = 3) -> tuple[list[int], list[str]]:
    """`count` free ports, those of `wanted` first where they are free, and one line for each that is not.

    Free means free a moment ago: whoever starts a server on them must be ready to pick again."""
    taken = []
    with ExitStack() as held:
        ports = []
        for position in range(count):
            port = wanted[position] if position < len(wanted) else 0
            try:
                bound = _bind(port)
            except OSError:
                bound = _bind(0)
                taken.append(f"port {port} is taken by {owner(port)}; using {bound.getsockname()[1]}")
            held.enter_context(bound)
            ports.append(bound.getsockname()[1])
    return ports, taken


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens where the user wants it, at any free port for 0. InputError where that cannot be."""
    if not 0 <= port <= 65_535:
        raise InputError(f"port {port}: allowed are 1 to 65535, or 0 for any that is free")
    try:
        return socket.create_server((host, port), backlog=backlog)
    except OSError as error:
        why = f"taken by {owner(port)}" if error.errno == errno.EADDRINUSE else error.strerror
        raise InputError(f"{host}:{port} cannot be listened on: {why}; allowed: another --port") from None


def is_free(port: int) -> bool:
    try:
        _bind(port).close()
    except OSError:
        return False
    return True


def owner(port: int) -> str:
    """'python3 (pid 4242)' for the process that listens on `port`, as far as this user may see it."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
            if listens and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        pass
    return "a process of another user"


def listens(pid: int, port: int) -> bool:
    """Whether the process `pid` itself holds the listening socket of `port`."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:
        return False
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def _bind(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A port of a server that just stopped is free again at once, as it is for Triton itself.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((HOST, port))
        bound.listen(1)
    except OSError:
        bound.close()
        raise
    return bound
