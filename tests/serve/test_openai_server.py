"""Somebody else's OpenAI-compatible server, asked by URL."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lab.errors import InputError, ServerError
from lab.serve.openai_server import OpenAIServer


@pytest.fixture
def answers() -> Iterator[tuple[str, dict[str, tuple[int, bytes]]]]:
    """(HOST:PORT, {path: (status, body)}) of a server that answers so."""
    told: dict[str, tuple[int, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = told.get(self.path, (404, b""))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}", told
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("written", ["openai+http://{}", "OpenAI+http://{}/v1", "openai+http://{}/v1/"])
def test_it_lists_its_models(answers, written):
    address, told = answers
    told["/v1/models"] = (200, json.dumps({"data": [{"id": "org/small"}, {"id": "large"}]}).encode())
    with OpenAIServer(written.format(address)) as server:
        assert [(state.name, state.ready) for state in server.states()] == [("org/small", True), ("large", True)]
        assert server.http_url == f"http://{address}"
        assert server.alive()
        told.clear()
        assert not server.alive()
        assert address in str(server.died())


@pytest.mark.parametrize(
    "url", ["openai+ftp://127.0.0.1:1", "openai+http://", "openai+http://127.0.0.1:1/chat", "openai+http://h:99999"]
)
def test_what_is_no_such_url_is_refused_before_anything_is_asked(url):
    with pytest.raises(InputError, match=r"openai\+http://HOST:PORT"):
        OpenAIServer(url)


@pytest.mark.parametrize(
    ("answer", "words"),
    [((500, b""), "answered 500"), ((200, b"<html>"), "no list"), ((200, b"[]"), "no list")]
    + [((200, b'{"data": ' + data + b"}"), "no list") for data in (b"5", b"[1]", b"[{}]", b"null")],
)
def test_a_server_that_is_something_else_is_told_in_one_line(answers, answer, words):
    address, told = answers
    told["/v1/models"] = answer
    with pytest.raises(ServerError, match=words) as caught:
        OpenAIServer(f"openai+http://{address}")
    assert "\n" not in str(caught.value)


def test_nobody_there():
    with pytest.raises(ServerError, match="nobody listens there"):
        OpenAIServer("openai+http://127.0.0.1:1")
