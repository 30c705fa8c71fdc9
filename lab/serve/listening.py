"""Who listens at an address? For the one line that a wrong URL deserves.

Two connections at most: the first opens as gRPC does (HTTP/2's preface), to which every kind of server answers in its
own way; where nothing understandable comes back, the second tries a TLS handshake. Sends nothing that a server would
do anything for. Does not know whether a server that speaks the right protocol also serves the right thing.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
from dataclasses import dataclass
from typing import Literal

Kind = Literal["unknown", "nobody", "silent", "grpc", "http", "tls", "other"]

LIMIT_S = 2.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")  # and empty settings
ASKED = "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nAccept: application/json\r\n\r\n"
SETTINGS, ALERT = 4, b"\x15\x03"
MOST_BYTES = 65_536


@dataclass(frozen=True)
class Listener:
    """`what` is the server in words, such as "an HTTP server (nginx)"; `serves` what is known to be behind HTTP:
    "triton", "openai", "torchserve" or None."""

    kind: Kind
    what: str
    serves: str | None = None


def listener(host: str, port: int) -> Listener:
    """Asks within a few seconds at most; never raises."""
    try:
        first = _exchange(host, port, PREFACE)
    except TimeoutError:
        return Listener("silent", "something that takes connections and says nothing")
    except (socket.gaierror, UnicodeError):  # the latter of what can be no name at all
        return Listener("unknown", f"the name {host!r} is not found")
    except OSError as error:
        return Listener("nobody", f"nobody ({error.strerror or error})")
    if len(first) >= 9 and first[3] == SETTINGS and not first.startswith(b"HTTP/"):
        return Listener("grpc", "a gRPC server")
    if first.startswith(b"HTTP/") or _ask(host, port, "/").startswith(b"HTTP/"):
        return _http(host, port)  # some answer HTTP/2's preface with a page alone
    if first.startswith(ALERT) or _speaks_tls(host, port):
        return Listener("tls", "a server that speaks TLS")
    if not first:
        return Listener("other", "something that hangs up on gRPC and on HTTP")
    return Listener("other", f"something else, which says {_shown(first)}")


def _http(host: str, port: int) -> Listener:
    """Which HTTP server, and what it serves, by what its protocol always answers."""
    for path, serves, sign, words in (
        ("/v2", "triton", b'"extensions"', "Triton's HTTP"),
        ("/v1/models", "openai", b'"object"', "an OpenAI-compatible server"),
        ("/ping", "torchserve", b'"Healthy"', "TorchServe"),
    ):
        head, _, body = _ask(host, port, path).partition(b"\r\n\r\n")
        if sign in body and b" 200 " in head.splitlines()[0]:
            return Listener("http", words, serves)
    named = re.search(rb"(?im)^server: ([^\r\n]{1,60})", _ask(host, port, "/"))
    called = f" ({named[1].decode(errors='replace')})" if named else ""
    return Listener("http", f"an HTTP server{called}")


def _ask(host: str, port: int, path: str) -> bytes:
    with contextlib.suppress(OSError):
        return _exchange(host, port, ASKED.format(path=path, host=host).encode(), whole=True)
    return b""


def _exchange(host: str, port: int, said: bytes, *, whole: bool = False) -> bytes:
    """What comes back: the first bytes, or all until the end (at most MOST_BYTES)."""
    with socket.create_connection((host, port), timeout=LIMIT_S) as connection:
        connection.sendall(said)
        answer = b""
        while len(answer) < MOST_BYTES:
            try:
                part = connection.recv(4096)
            except ConnectionResetError:
                break
            except TimeoutError:
                if answer:
                    break
                raise
            answer += part
            if not part or (not whole and len(answer) >= 9):
                break
        return answer


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only whether, not who
    try:
        with (
            socket.create_connection((host, port), timeout=LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except ssl.SSLError as error:
        return error.reason not in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")
    except OSError:
        return False


def _shown(data: bytes) -> str:
    return json.dumps(data[:40].decode(errors="replace"))
