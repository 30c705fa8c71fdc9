"""The proxy between a client of raw HTTP and a server that answers as Triton does, on a shelf of the tests' own."""

import asyncio
import json
import threading

from lab.errors import ModelError
from lab.serve.proxy import Proxy
from lab.serve.residency import Residency
from tests.waiting import until_async

MIB = 2**20


class Shelf:
    def __init__(self):
        self.calls = []

    def load(self, name):
        if name == "bad":
            raise ModelError("model bad did not load: no weights")
        self.calls.append(("load", name))

    def unload(self, name):
        self.calls.append(("unload", name))

    def evict(self, name):
        self.unload(name)
        return "disk"

    def size_bytes(self, names):
        return sum(100 * MIB if name == "big" else 10 * MIB for name in set(names))


class Upstream:
    """Answers by the model that is asked, and keeps what it was sent."""

    def __init__(self):
        self.heads = []
        self.connections = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        return self.server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer):
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = next(
                    (int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.startswith(b"Content-Length")), 0
                )
                body = await reader.readexactly(length)
                await self.hold.wait()
                path = head.split()[1]
                if b"/stream/" in path:
                    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    for part in (b"data: 1\n\n", b"data: 2\n\n"):
                        writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                        await writer.drain()
                    writer.write(b"0\r\n\r\n")
                elif b"/dead/" in path:
                    said = b'{"error":"Stub process is not healthy"}'
                    writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: %d\r\n\r\n" % len(said) + said)
                elif b"/once/" in path:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                    writer.close()
                    return
                else:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        except asyncio.IncompleteReadError:
            writer.close()


class Client:
    """One connection to the proxy."""

    async def open(self, port):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    def send(self, model, body=b"x", kind="infer", more=""):
        head = f"POST /v2/models/{model}/{kind} HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def answer(self):
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"chunked" in head:
            return head, await self.reader.readuntil(b"0\r\n\r\n")
        length = next(int(h.split(b":")[1]) for h in head.split(b"\r\n") if h.lower().startswith(b"content-length"))
        return head, await self.reader.readexactly(length)

    async def ask(self, model, **how):
        self.send(model, **how)
        head, body = await self.answer()
        return int(head.split()[1]), body


def run(story, models=("a", "b", "big", "bad", "stream", "dead", "once"), budget=20, **options):
    async def whole():
        upstream, shelf, passed = Upstream(), Shelf(), []
        healthy = options.pop("healthy", lambda model: True)
        residency = Residency(shelf, budget * MIB, models, **options)
        proxy = Proxy(residency, ("127.0.0.1", await upstream.start()), is_healthy=healthy, on_request=passed.append)
        port = await proxy.start()
        client = await Client().open(port)
        try:
            await story(client, upstream, shelf, residency, passed, port)
        finally:
            client.writer.close()
            await asyncio.wait_for(proxy.close(), 60)
            upstream.server.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_miss_loads_the_model_and_a_hit_passes_through_on_one_connection():
    async def story(client, upstream, shelf, residency, passed, port):
        body = b"\0tensor\r\n\r\nbytes" * 20_000  # larger than any buffer, and not text
        assert await client.ask("a", body=body, more="Lab-Request: 7\r\n") == (200, body)
        assert await client.ask("a", body=b"y", more="Lab-Request: 8\r\n") == (200, b"y")
        assert shelf.calls == [("load", "a")]
        assert upstream.connections == 1
        assert [(p.model, p.number, p.waited_ns > 0, p.refused) for p in passed] == [
            ("a", 7, True, None),
            ("a", 8, False, None),
        ]
        assert b"Lab-Request: 8" in upstream.heads[1]  # passed on as it is

    run(story)


def test_answers_in_chunks_come_as_they_are():
    async def story(client, upstream, shelf, residency, passed, port):
        status, body = await client.ask("stream", kind="generate_stream")
        assert (status, body) == (200, b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n")
        assert await client.ask("stream", kind="generate_stream") == (status, body)

    run(story)


def test_refusals_are_answers_with_their_reason_and_the_connection_goes_on():
    async def story(client, upstream, shelf, residency, passed, port):
        for model, status, text in (
            ("nobody", 404, "model 'nobody': there is none"),
            ("big", 507, "model big takes 100 MiB; the budget is 20 MiB"),
            ("bad", 503, "model bad did not load: no weights"),
        ):
            found, body = await client.ask(model)
            assert found == status
            assert text in json.loads(body)["error"]
        assert await client.ask("a") == (200, b"x")
        assert [p.refused for p in passed] == ["unknown", "too_large", "failed", None]

    run(story)


def test_what_is_no_inference_is_passed_on_and_the_residency_tells_of_itself():
    async def story(client, upstream, shelf, residency, passed, port):
        client.writer.write(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answer())[1] == b""
        await client.ask("a")
        client.writer.write(b"GET /v2/residency HTTP/1.1\r\nHost: h\r\n\r\n")
        told = json.loads((await client.answer())[1])
        assert told["places"]["a"] == "resident"
        assert told["counts"] == {"loads": 1, "misses": 1}
        assert shelf.calls == [("load", "a")]

    run(story)


def test_a_connection_that_triton_closed_is_replaced_without_a_lost_request():
    async def story(client, upstream, shelf, residency, passed, port):
        for _ in range(3):
            assert await client.ask("once") == (200, b"ok")
        upstream.hold.set()
        assert await client.ask("a") == (200, b"x")

    run(story)


async def behind(client, upstream, residency, port):
    """Another client that asks for b, for which a has to go, while the answer that `client` gets from a is held."""
    upstream.hold.clear()
    client.send("a")
    await until_async(lambda: upstream.heads)
    other = await Client().open(port)
    other.send("b")
    await until_async(lambda: residency.places()["a"] == "leaving")
    return other


def test_a_model_is_held_until_its_answer_is_sent():
    async def story(client, upstream, shelf, residency, passed, port):
        other = await behind(client, upstream, residency, port)
        assert shelf.calls == [("load", "a")]
        upstream.hold.set()
        assert (await client.answer())[1] == b"x"
        assert (await other.answer())[1] == b"x"
        assert shelf.calls == [("load", "a"), ("unload", "a"), ("load", "b")]
        other.writer.close()

    run(story, budget=10)


def test_a_client_that_leaves_while_it_waits_wants_its_model_no_more():
    async def story(client, upstream, shelf, residency, passed, port):
        other = await behind(client, upstream, residency, port)
        other.writer.close()
        await until_async(lambda: residency.places()["a"] == "resident")  # nobody wants b: a may stay
        upstream.hold.set()
        assert (await client.answer())[1] == b"x"
        assert shelf.calls == [("load", "a")]

    run(story, budget=10)


def test_after_a_server_error_a_dead_model_is_loaded_anew_and_a_living_one_is_left():
    looked = threading.Event()

    def healthy(model):
        looked.set()
        return False

    async def dead(client, upstream, shelf, residency, passed, port):
        assert (await client.ask("dead"))[0] == 500
        await until_async(lambda: residency.places()["dead"] == "absent")
        await client.ask("dead")
        assert shelf.calls[:3] == [("load", "dead"), ("unload", "dead"), ("load", "dead")]

    run(dead, healthy=healthy)
    assert looked.is_set()

    async def alive(client, upstream, shelf, residency, passed, port):
        for _ in range(3):
            assert (await client.ask("dead"))[0] == 500
        assert shelf.calls == [("load", "dead")]

    run(alive)


def test_a_triton_that_is_gone_is_an_answer_too():
    async def story(client, upstream, shelf, residency, passed, port):
        upstream.server.close()
        status, body = await client.ask("a")
        assert (status, json.loads(body)) == (503, {"error": "Triton does not answer"})
        assert residency.places()["a"] == "resident"

    run(story)


def test_a_request_without_a_length_is_refused():
    async def story(client, upstream, shelf, residency, passed, port):
        client.writer.write(b"POST /v2/models/a/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        head, _ = await client.answer()
        assert head.startswith(b"HTTP/1.1 411 ")

    run(story)
