"""Both targets against real servers: grpc's own and aiohttp's. The servers' books are the truth."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import uvloop
from tritonclient.grpc import service_pb2

from lab.errors import InputError
from lab.load.targets import INVALID
from lab.load.targets.channel import split_url, unconnected
from lab.load.targets.triton_grpc import TracedGrpc, TritonGrpc, infer_request
from lab.load.targets.triton_http import TritonHttp
from lab.measure.records import ERROR, OK, OUTCOMES, REFUSED, TRUNCATED
from tests.load.fakes.servers import free_port, grpc_server, http_server
from tests.load.fakes.service import Service
from tests.waiting import until_async

Ends = dict[int, tuple[int, str | None]]
KINDS = [(TritonGrpc, grpc_server), (TritonHttp, http_server)]


def requests(count: int) -> list[dict[str, np.ndarray]]:
    return [{"INPUT": np.full((1, 1), i, np.float32)} for i in range(count)]


def use(
    target_of: Any, url: str, script: Callable[[Any, Ends], Any], made: Sequence[dict[str, np.ndarray]] | None = None
) -> Ends:
    """Run `script(send, ends)` in a loop with an open target; the ends of what it sent. `send(n)` sends the n-th."""

    async def main() -> Ends:
        ends: Ends = {}

        def done(number: int, outcome: int, detail: str | None, arrived_ns: int) -> None:
            assert number not in ends, "told twice"
            assert 0 <= time.perf_counter_ns() - arrived_ns < 60 * 10**9
            assert (detail is None) == (outcome == OK)
            ends[number] = (outcome, detail)

        target = target_of(url, done)
        messages = target.prepare("null", made or requests(1000))
        await target.open()
        target.ask = lambda number: target.send(number, messages[number])
        async with asyncio.timeout(60):
            await script(target, ends)
        await target.close()
        return ends

    return uvloop.run(main())


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_the_server_gets_the_tensors_as_they_are(target: Any, server: Any) -> None:
    service = Service()

    async def script(target: Any, ends: Ends) -> None:
        for number in range(20):
            target.ask(number)
        await until_async(lambda: len(ends) == 20)

    with server(service) as fake:
        ends = use(target, fake.url, script)
    assert ends == dict.fromkeys(range(20), (OK, None))
    assert sorted(np.frombuffer(p, np.float32)[0] for p in service.payloads) == list(range(20))


def test_a_traced_request_carries_its_number_and_nothing_else_changes() -> None:
    """The id that a server would write into its trace, as protobuf reads it from the bytes that are sent."""
    sent: list[bytes] = []

    class Written(TracedGrpc):
        def _connect(self) -> Any:  # what waits for a connection is what would be written to it
            sent.extend(call.body for call in self._waiting.values())

    async def main() -> list[bytes]:
        target = Written("127.0.0.1:1", lambda *_: None)
        messages = target.prepare("null", requests(2))
        for number in (0, 123_456):
            target._waiting.clear()
            target.send(number, messages[number % 2])
        return [bytes(message.body) for message in messages]

    prepared = uvloop.run(main())
    found = [service_pb2.ModelInferRequest.FromString(body[5:]) for body in sent]
    assert [message.id for message in found] == ["0" * 20, "00000000000000123456"]
    assert len(sent[1]) == len(prepared[0]) and found[1].model_name == "null"
    plain = service_pb2.ModelInferRequest.FromString(infer_request("null", requests(2)[0]))
    assert found[0].inputs == plain.inputs and found[0].raw_input_contents == plain.raw_input_contents


def test_a_grpc_request_names_model_type_and_shape() -> None:
    texts = np.array([[b"one"], ["zwei é"]], dtype=object)
    request = {"IMAGE": np.arange(128, dtype=np.float32).reshape(2, 64), "TEXT": texts}
    message = service_pb2.ModelInferRequest.FromString(infer_request("digits", request))
    assert message.model_name == "digits"
    assert [(i.name, i.datatype, list(i.shape)) for i in message.inputs] == [
        ("IMAGE", "FP32", [2, 64]),
        ("TEXT", "BYTES", [2, 1]),
    ]
    assert message.raw_input_contents[0] == np.arange(128, dtype="<f4").tobytes()
    # Triton's BYTES: each element behind its length, 4 bytes, little endian.
    assert message.raw_input_contents[1] == b"\x03\0\0\0one" + b"\x07\0\0\0" + "zwei é".encode()


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_in_flight_is_what_was_sent_however_many(target: Any, server: Any) -> None:  # P4
    service = Service(together=150)

    async def script(target: Any, ends: Ends) -> None:
        for number in range(150):
            target.ask(number)
        await until_async(lambda: len(ends) == 150)

    with server(service) as fake:
        use(target, fake.url, script)
    assert service.peak_in_flight == 150


@pytest.mark.parametrize(("target", "server"), KINDS)
@pytest.mark.parametrize(
    ("status", "text", "outcome"),
    [
        ("UNAVAILABLE", "Exceeds maximum queue size", REFUSED),
        ("INVALID_ARGUMENT", "batch must be <= 8", INVALID),
        ("NOT_FOUND", "no model of that name", INVALID),
        ("INTERNAL", "Stub process is not healthy", ERROR),
    ],
)
def test_a_status_becomes_an_outcome_with_its_text(
    target: Any, server: Any, status: str, text: str, outcome: int
) -> None:
    async def script(target: Any, ends: Ends) -> None:
        target.ask(0)
        await until_async(lambda: bool(ends))

    with server(Service(refuse=(status, text))) as fake:
        ends = use(target, fake.url, script)
    assert ends[0][0] == outcome
    assert text in str(ends[0][1])


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_nobody_there_is_refused_each_time(target: Any, server: Any) -> None:  # T5
    async def script(target: Any, ends: Ends) -> None:
        for number in range(3):
            target.ask(number)
            await until_async(lambda number=number: number in ends)

    ends = use(target, f"127.0.0.1:{free_port()}", script)
    assert [outcome for outcome, _ in ends.values()] == [REFUSED] * 3
    assert all("refused" in str(detail) for _, detail in ends.values())


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_a_cancelled_request_is_cancelled_at_the_server(target: Any, server: Any) -> None:
    service = Service(seconds=10)

    async def script(target: Any, ends: Ends) -> None:
        target.ask(0)
        target.ask(1)
        await until_async(lambda: service.in_flight == 2)
        target.cancel(0)
        target.cancel(0)
        await until_async(lambda: service.cancelled == 1)
        target.cancel(1)
        await until_async(lambda: service.cancelled == 2)

    with server(service) as fake:
        assert use(target, fake.url, script) == {}


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_a_server_that_dies_ends_what_is_in_flight(target: Any, server: Any) -> None:  # T13
    service = Service(seconds=10)

    async def script(target: Any, ends: Ends) -> None:
        for number in range(5):
            target.ask(number)
        await until_async(lambda: service.in_flight == 5)
        await asyncio.get_running_loop().run_in_executor(None, fake.kill)
        await until_async(lambda: len(ends) == 5)
        target.ask(5)
        await until_async(lambda: len(ends) == 6)

    with server(service) as fake:
        ends = use(target, fake.url, script)
    for number in range(5):
        assert ends[number][0] in (ERROR, TRUNCATED, REFUSED), OUTCOMES[ends[number][0]]
    assert ends[5][0] == REFUSED


def test_a_grpc_server_that_comes_back_is_found_again() -> None:
    bound = socket.socket()  # and stays bound, so that no neighbour takes the port before the server has it
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]

    async def script(target: Any, ends: Ends) -> None:
        target.ask(0)
        await until_async(lambda: 0 in ends)
        loop = asyncio.get_running_loop()
        server = grpc_server(Service(), port=port)
        fake = await loop.run_in_executor(None, server.__enter__)
        for number in (1, 2):
            target.ask(number)
        await until_async(lambda: {1, 2} <= set(ends))
        await loop.run_in_executor(None, fake.kill)

    with bound:
        ends = use(TritonGrpc, f"127.0.0.1:{port}", script)
    assert [ends[number][0] for number in range(3)] == [REFUSED, OK, OK]


def test_a_large_message_fits_through_grpcs_flow_control() -> None:
    # grpc's server opens with 64 KiB windows; five messages of 3 MiB need many updates of them.
    service = Service()
    made = [{"INPUT": np.random.default_rng(i).random((1, 3 * 2**18), np.float32)} for i in range(5)]

    async def script(target: Any, ends: Ends) -> None:
        for number in range(5):
            target.ask(number)
        await until_async(lambda: len(ends) == 5)

    with grpc_server(service) as fake:
        ends = use(TritonGrpc, fake.url, script, made)
    assert ends == dict.fromkeys(range(5), (OK, None))
    assert sorted(service.payloads) == sorted(request["INPUT"].tobytes() for request in made)


@pytest.mark.parametrize(("target", "server"), KINDS)
def test_answers_of_ten_megabytes_end_like_others(target: Any, server: Any) -> None:
    async def script(target: Any, ends: Ends) -> None:
        for number in range(3):
            target.ask(number)
        await until_async(lambda: len(ends) == 3)

    with server(Service(answer_bytes=10_000_000)) as fake:
        assert use(target, fake.url, script) == dict.fromkeys(range(3), (OK, None))


@pytest.mark.parametrize(("number", "outcome"), [(errno.ECONNREFUSED, REFUSED), (errno.EMFILE, ERROR)])
def test_a_client_at_its_own_limit_was_refused_by_nobody(number: int, outcome: int) -> None:
    found, detail = unconnected("h:1", OSError(number, "whatever"))
    assert found == outcome and os.strerror(number) in detail
    assert ("load generator" in detail) == (outcome == ERROR)


def test_a_name_that_is_not_found_says_so_in_words() -> None:
    """getaddrinfo's numbers are negative, and none of the system's errors."""
    assert unconnected("h:1", socket.gaierror(-2, "Name or service not known"))[1] == "h:1: Name or service not known"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_an_ipv6_address_is_reached_in_its_brackets() -> None:
    async def script(target: Any, ends: Ends) -> None:
        target.ask(0)
        await until_async(lambda: bool(ends))

    def hang_up(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                listener.accept()[0].close()

    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        threading.Thread(target=hang_up, args=[listener], daemon=True).start()
        ends = use(TritonGrpc, f"[::1]:{listener.getsockname()[1]}", script)
    assert ends[0][0] == ERROR  # it was reached, and hung up


def test_grpcs_limit_of_streams_is_kept_without_losing_a_call() -> None:
    service = Service(seconds=0.01)

    async def script(target: Any, ends: Ends) -> None:
        for number in range(200):
            target.ask(number)
        await until_async(lambda: len(ends) == 200)

    with grpc_server(service, options=[("grpc.max_concurrent_streams", 7)]) as fake:
        ends = use(TritonGrpc, fake.url, script)
    assert ends == dict.fromkeys(range(200), (OK, None))
    assert service.peak_in_flight == 7


def test_the_http_port_is_recognised_by_the_grpc_target() -> None:
    async def script(target: Any, ends: Ends) -> None:
        target.ask(0)
        await until_async(lambda: bool(ends))

    with http_server(Service()) as fake:
        ends = use(TritonGrpc, fake.url, script)
    assert ends[0][0] == ERROR


@pytest.mark.parametrize("url", ["", "127.0.0.1", "http://", ":8001", "host:port"])
def test_a_url_without_host_and_port_is_named(url: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        split_url(url)


@pytest.mark.parametrize("url", ["127.0.0.1:8001", "grpc://127.0.0.1:8001", "http://127.0.0.1:8001"])
def test_a_scheme_may_stand_before_host_and_port(url: str) -> None:
    assert split_url(url) == ("127.0.0.1", 8001)
