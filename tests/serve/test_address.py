"""URLs as people type them, and the one line that each wrong one gets. Fake listeners are plain sockets."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web

from lab.errors import InputError, ServerError
from lab.run.given import Wishes, of_url
from lab.serve import listening
from lab.serve.address import Address, address, unreachable
from lab.serve.triton import Server
from tests.load.fakes.servers import free_port, grpc_server, http_app
from tests.load.fakes.service import Service


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "path"),
    [
        ("grpc://10.0.0.7:8001", "grpc", "10.0.0.7", 8001, ""),
        ("localhost:8001", "grpc", "localhost", 8001, ""),
        ("HTTP://triton.local:8000/", "http", "triton.local", 8000, ""),
        ("grpc://[::1]:8001", "grpc", "[::1]", 8001, ""),
        ("openai+http://h:8100/v1/chat/completions", "openai+http", "h", 8100, "/v1/chat/completions"),
        ("openai+https://api.example.com/v1", "openai+https", "api.example.com", 443, "/v1"),
        ("torchserve+http://h:8080", "torchserve+http", "h", 8080, ""),
    ],
)
def test_a_url_says_protocol_host_and_port(url: str, scheme: str, host: str, port: int, path: str) -> None:
    assert address(url) == Address(scheme, host, port, path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("grpc://localhost", "grpc://HOST:PORT"),
        ("grpc://localhost:eight", "the port is no number"),
        ("grpc://localhost:70000", "the port is no number from 1 to 65535"),
        ("grpc://:8001", "grpc://HOST:PORT"),
        ("ftp://localhost:21", "there is no scheme 'ftp'"),
        ("grpcs://localhost:8001", "without TLS only"),
        ("https://localhost:8000", "without TLS only"),
        ("http://localhost:8000/v2/models/digits", "http://HOST:PORT"),
        ("http://me:secret@localhost:8000", "http://HOST:PORT"),
        ("", "grpc://HOST:PORT"),
        ("grpc://[::1:8001", "Invalid IPv6 URL"),
        ("grpc://h\u2100:8001", "invalid characters"),
        ("grpc://two words:8001", "grpc://HOST:PORT"),
        ("grpc://localhost:80 01", "the port is no number"),
    ],
)
def test_a_wrong_url_is_one_line_with_what_is_allowed(url: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        address(url)
    assert said in str(error.value) and repr(url) in str(error.value) and "\n" not in str(error.value)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers in threads of a process that may stand still; none of them stays silent."""
    monkeypatch.setattr(listening, "LIMIT_S", 20.0)


@contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port whose every connection is handed to `answer`, and closed after."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # ssl.SSLError is one
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def saying(answer: bytes) -> AbstractContextManager[int]:
    """A port that answers every connection with these bytes, as ssh does with its banner."""

    def say(connection: socket.socket) -> None:
        connection.sendall(answer)
        connection.recv(1000)

    return answering(say)


def tls(folder: Path) -> AbstractContextManager[int]:
    """A port that speaks TLS and nothing else."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return answering(lambda connection: context.wrap_socket(connection, server_side=True).close())


def line(url: str) -> str:
    with pytest.raises(ServerError) as error:
        Server.at(url)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("host", ["nowhere.invalid", "two..dots", "x" * 300])
def test_a_name_that_is_not_found_is_told_as_one(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = socket.getaddrinfo

    def nowhere(name: str, *more: object, **rest: object) -> object:
        if name == "nowhere.invalid":  # a name server may take its time to say so
            raise socket.gaierror(-2, "Name or service not known")
        return asked(name, *more, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    assert f"the name '{host}' is not found" in str(unreachable(address(f"grpc://{host}:8001"), ""))


def test_nobody_there() -> None:
    assert "nobody listens there" in line(f"grpc://127.0.0.1:{free_port()}")


def test_grpc_asked_of_an_http_port_names_the_right_scheme() -> None:
    async def metadata(_: web.Request) -> web.Response:
        return web.json_response({"name": "triton", "version": "2.51.0", "extensions": ["classification"]})

    with http_app([web.get("/v2", metadata)], None) as fake:
        assert f"Triton's HTTP answers there; try http://127.0.0.1:{fake.port}" in line(f"grpc://{fake.url}")


def test_http_asked_of_a_grpc_port_names_the_right_scheme() -> None:
    with grpc_server(Service()) as fake:
        assert f"a gRPC server answers there, not HTTP; try grpc://{fake.url}" in line(f"http://{fake.url}")


def test_another_kind_of_server_is_named() -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    with http_app([web.get("/v1/models", models)], None) as fake:
        assert f"an OpenAI-compatible server answers there; try openai+http://{fake.url}" in line(f"http://{fake.url}")
    with http_app([], None) as fake:
        assert "an HTTP server (Python" in line(f"http://{fake.url}") and "and not Triton" in line(f"http://{fake.url}")
    with saying(b"SSH-2.0-OpenSSH_9.2p1\r\n") as port:
        assert 'something else, which says "SSH-2.0-OpenSSH_9.2p1' in line(f"grpc://127.0.0.1:{port}")


HANGS_UP, BREAKS_OFF = b"", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"


@pytest.mark.parametrize("scheme", ["openai+http", "torchserve+http", "http", "replicate+http"])
@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9.2p1\r\n", HANGS_UP, BREAKS_OFF])
def test_what_is_no_http_is_one_line_for_each_protocol_on_it(scheme: str, said: bytes) -> None:
    with saying(said) as port, pytest.raises(ServerError) as error:
        of_url(f"{scheme}://127.0.0.1:{port}", "any", Wishes())
    assert str(port) in str(error.value) and "\n" not in str(error.value)


def test_each_protocol_on_http_is_told_that_a_grpc_server_answers() -> None:
    with grpc_server(Service()) as fake:
        for scheme in ("openai+http", "torchserve+http", "http"):
            with pytest.raises(ServerError, match=rf"a gRPC server answers there, not HTTP; try grpc://{fake.url}"):
                of_url(f"{scheme}://{fake.url}", "any", Wishes())


def test_tls_asked_of_a_plain_port_names_the_right_scheme() -> None:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    with http_app([web.get("/v1/models", models)], None) as fake, pytest.raises(ServerError) as error:
        of_url(f"openai+https://{fake.url}", "any", Wishes())
    assert f"an OpenAI-compatible server answers there, without TLS; try openai+http://{fake.url}" in str(error.value)


def test_tls_where_plain_was_asked_for(tmp_path: Path) -> None:
    with tls(tmp_path) as port:
        said = str(unreachable(address(f"openai+http://127.0.0.1:{port}"), ""))
        assert f"a server that speaks TLS answers there; try openai+https://127.0.0.1:{port}" in said
        assert listening.listener("127.0.0.1", port).kind == "tls"
        assert "a server that speaks TLS answers there" in str(unreachable(address(f"grpc://127.0.0.1:{port}"), ""))
