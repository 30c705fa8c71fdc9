"""The HTTP/2 connection against a peer that says exactly what the test wants. Section numbers are RFC 9113's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import hpack
import pytest

from lab.load.targets.grpc_wire import Method, read_headers
from lab.load.targets.h2 import Connection
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from tests.load.fakes import peer as wire
from tests.load.fakes.peer import BEGIN, DATA, END_HEADERS, END_STREAM, FINE, HEADERS, Peer, block, frame, listening
from tests.waiting import timed

METHOD = Method("127.0.0.1:1", "/service/Method")


@dataclass
class Client:
    """A connection and what it has told."""

    connection: Any = None
    ended: dict[int, tuple[int, str | None]] = field(default_factory=dict)
    left: int = 0
    then: Callable[[int], None] = lambda number: None

    def done(self, number: int, outcome: int, detail: str | None, arrived_ns: int) -> None:
        assert number not in self.ended, "told twice"
        self.ended[number] = (outcome, detail)
        self.then(number)

    def leave(self, connection: Connection) -> None:
        self.left += 1

    def send(self, number: int, message: bytes = b"hello") -> None:
        self.connection.send(number, METHOD.call(message))

    async def until(self, *numbers: int) -> None:
        async with asyncio.timeout(60):
            while not set(numbers) <= set(self.ended):
                await asyncio.sleep(0.001)


@asynccontextmanager
async def connected(**settings: int) -> AsyncIterator[tuple[Client, Peer]]:
    async with listening() as (port, peers):
        client = Client()
        client.connection = await Connection.open("127.0.0.1", port, client.done, read_headers, client.leave)
        peer = await peers.get()
        await peer.greet(**settings)
        await asyncio.wait_for(client.connection.settled, 60)
        yield client, peer
        client.connection.close()


@timed
async def test_a_call_is_headers_and_one_data_frame() -> None:
    async with connected() as (client, peer):
        client.send(0, b"hello")
        headers, data = await peer.next(HEADERS, DATA), await peer.next(HEADERS, DATA)
        assert (headers.kind, headers.flags, headers.stream) == (HEADERS, END_HEADERS, 1)
        assert dict(hpack.Decoder().decode(headers.payload)) == {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/service/Method",
            ":authority": "127.0.0.1:1",
            "te": "trailers",
            "content-type": "application/grpc",
            "user-agent": "serving-lab",
        }
        assert (data.kind, data.flags, data.stream) == (DATA, END_STREAM, 1)
        assert data.payload == b"\0" + (5).to_bytes(4, "big") + b"hello"
        peer.answer(1)
        await client.until(0)
        assert client.ended == {0: (OK, None)}
        assert client.connection.in_flight == 0


@timed
async def test_it_asks_for_stateless_headers_no_push_and_wide_windows() -> None:
    async with connected() as (client, peer):
        assert peer.settings == {1: 0, 2: 0, 4: 2**31 - 1}
        client.send(0)


@timed
async def test_one_decoder_reads_the_headers_of_all_calls() -> None:
    async with connected() as (client, peer):
        decoder = hpack.Decoder()  # a server's decoder keeps its state over calls
        for number in range(3):
            client.send(number)
            fields = dict(decoder.decode((await peer.next(HEADERS)).payload))
            assert fields[":path"] == "/service/Method"


@timed
async def test_answers_in_any_order_end_their_own_calls() -> None:
    async with connected() as (client, peer):
        for number in (7, 8, 9):
            client.send(number)
        peer.answer(5)
        await client.until(9)
        peer.answer(1)
        await client.until(7)
        assert set(client.ended) == {9, 7}
        peer.answer(3)
        await client.until(8)


@timed
async def test_frames_cut_anywhere_are_put_together() -> None:
    async with connected() as (client, peer):
        client.send(0)
        answer = frame(HEADERS, END_HEADERS, 1, BEGIN) + frame(DATA, 0, 1, b"x" * 40)
        for byte in answer + frame(HEADERS, END_HEADERS | END_STREAM, 1, FINE):
            peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await client.until(0)
        assert client.ended[0] == (OK, None)


@timed
async def test_padding_priority_and_continuation_are_understood() -> None:
    async with connected() as (client, peer):
        client.send(0)
        begin = bytes([3]) + bytes(5) + BEGIN + bytes(3)  # 3 bytes of padding, 5 of priority
        peer.send(frame(HEADERS, END_HEADERS | wire.PADDED | wire.PRIORITY, 1, begin))
        peer.send(frame(DATA, wire.PADDED, 1, bytes([2]) + b"abc" + bytes(2)))
        peer.send(frame(HEADERS, END_STREAM, 1, FINE[:3]))
        peer.send(frame(wire.CONTINUATION, 0, 1, FINE[3:6]))
        peer.send(frame(wire.CONTINUATION, END_HEADERS, 1, FINE[6:]))
        await client.until(0)
        assert client.ended[0] == (OK, None)


@timed
async def test_frames_of_unknown_types_are_ignored() -> None:
    async with connected() as (client, peer):
        client.send(0)
        peer.send(frame(0xBE, 0xFF, 0, b"grease"))
        peer.answer(1)
        await client.until(0)


@pytest.mark.parametrize(
    ("fields", "outcome", "detail"),
    [
        ({"grpc-status": "14", "grpc-message": "Exceeds maximum queue size"}, REFUSED, "UNAVAILABLE: Exceeds"),
        ({"grpc-status": "13", "grpc-message": "50%25 caf%C3%A9"}, ERROR, "INTERNAL: 50% café"),
        ({"grpc-status": "99"}, ERROR, "status 99"),
        ({":status": "404"}, ERROR, "HTTP status 404"),
    ],
)
@timed
async def test_headers_say_how_a_call_failed(fields: dict[str, str], outcome: int, detail: str) -> None:
    async with connected() as (client, peer):
        client.send(0)
        fields = {":status": "200", **fields}
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(*fields.items())))
        await client.until(0)
        assert client.ended[0][0] == outcome
        assert str(client.ended[0][1]).startswith(detail)


@timed
async def test_an_answer_without_a_status_is_an_error() -> None:
    async with connected() as (client, peer):
        client.send(0)
        client.send(1)
        peer.send(frame(HEADERS, END_HEADERS, 1, BEGIN), frame(DATA, END_STREAM, 1, b"x"))
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 3, BEGIN))
        await client.until(0, 1)
        assert client.ended[0] == client.ended[1] == (ERROR, "the answer ended without a gRPC status")


@timed
async def test_pings_are_answered_with_their_bytes() -> None:
    async with connected() as (_, peer):
        peer.send(frame(wire.PING, 0, 0, b"12345678"))
        pong = await peer.next(wire.PING)
        assert (pong.flags, pong.payload) == (1, b"12345678")


@timed
async def test_later_settings_are_acknowledged() -> None:
    async with connected() as (_, peer):
        peer.configure(max_streams=5)
        assert (await peer.next(wire.SETTINGS)).flags == 1


@timed
async def test_no_more_streams_than_the_server_allows() -> None:
    async with connected(max_streams=2) as (client, peer):
        for number in range(4):
            client.send(number)
        assert [(await peer.next(HEADERS)).stream for _ in range(2)] == [1, 3]
        assert await peer.nothing_comes(HEADERS)
        assert client.connection.in_flight == 4
        peer.answer(3)
        assert (await peer.next(HEADERS)).stream == 5
        assert await peer.nothing_comes(HEADERS)
        peer.answer(1)
        peer.answer(5)
        assert (await peer.next(HEADERS)).stream == 7
        peer.answer(7)
        await client.until(0, 1, 2, 3)


@timed
async def test_a_call_sent_from_done_goes_out_with_the_read(  # what a closed loop does
) -> None:
    async with connected(max_streams=1) as (client, peer):
        client.then = lambda number: client.send(number + 1) if number < 5 else None
        client.send(0)
        for number in range(6):
            stream = (await peer.next(HEADERS)).stream
            assert stream == 2 * number + 1
            peer.answer(stream)
        await client.until(*range(6))


@timed
async def test_a_body_never_exceeds_the_windows() -> None:
    # 6.9.2: bodies are limited per stream (here 1,000 bytes) and on the connection (65,535 bytes).
    async with connected(window=1000) as (client, peer):
        client.send(0, b"a" * 2495)  # 2,500 with its prefix
        assert len((await peer.next(DATA)).payload) == 1000
        assert await peer.nothing_comes(DATA, HEADERS)
        peer.send(frame(wire.WINDOW_UPDATE, 0, 1, (1400).to_bytes(4, "big")))
        assert len((await peer.next(DATA)).payload) == 1400
        peer.configure(window=1050)  # 6.9.2: a change of the initial window moves the open streams' too
        last = await peer.next(DATA)
        assert (len(last.payload), last.flags) == (50, 0)
        peer.send(frame(wire.WINDOW_UPDATE, 0, 1, (100).to_bytes(4, "big")))
        last = await peer.next(DATA)
        assert (len(last.payload), last.flags) == (50, END_STREAM)
        peer.answer(1)
        await client.until(0)


@timed
async def test_the_connections_window_is_shared_by_all_calls() -> None:
    async with connected() as (client, peer):
        for number in range(7):
            client.send(number, bytes(9995))  # 10,000 each: six fit into 65,535, the seventh in part
        received = [len((await peer.next(DATA)).payload) for _ in range(7)]
        assert received == [10_000] * 6 + [5_535]
        assert await peer.nothing_comes(DATA)
        peer.send(frame(wire.WINDOW_UPDATE, 0, 0, (10_000).to_bytes(4, "big")))
        assert len((await peer.next(DATA)).payload) == 4_465
        client.send(7, bytes(5530))  # the window has 5,535 left: fits exactly
        assert len((await peer.next(DATA)).payload) == 5_535


@timed
async def test_a_body_is_cut_into_the_servers_frames() -> None:
    async with connected(window=1_000_000, max_frame=20_000) as (client, peer):
        peer.send(frame(wire.WINDOW_UPDATE, 0, 0, (1_000_000).to_bytes(4, "big")))
        await peer.nothing_comes()
        message = bytes(range(256)) * 200
        client.send(0, message)
        parts = [await peer.next(DATA) for _ in range(3)]
        assert [len(part.payload) for part in parts] == [20_000, 20_000, 51_205 - 40_000]
        assert b"".join(part.payload for part in parts)[5:] == message
        assert [part.flags for part in parts] == [0, 0, END_STREAM]


@timed
async def test_the_servers_window_is_made_wide_again() -> None:
    async with connected() as (client, peer):
        client.send(0)
        client.connection._consumed = 2**29 - 20_000  # as if so much had come already
        for _ in range(2):
            peer.send(frame(DATA, 0, 1, bytes(16_384)))
        update = await peer.next(wire.WINDOW_UPDATE)
        while update.stream != 0 or int.from_bytes(update.payload, "big") == 2**31 - 1 - 65_535:
            update = await peer.next(wire.WINDOW_UPDATE)
        assert int.from_bytes(update.payload, "big") == 2**29 - 20_000 + 2 * 16_384
        peer.send(frame(DATA, 0, 1, bytes(100)))
        assert await peer.nothing_comes(wire.WINDOW_UPDATE)  # not again for the same bytes


@timed
async def test_an_answer_before_the_body_is_sent_ends_the_upload() -> None:
    async with connected(window=100) as (client, peer):
        client.send(0, bytes(500))
        client.send(1, b"next")
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block((":status", "200"), ("grpc-status", "8"))))
        reset = await peer.next(wire.RST_STREAM)
        assert reset.stream == 1
        assert (await peer.next(HEADERS)).stream == 3
        await client.until(0)
        assert client.ended[0][0] == REFUSED


@timed
async def test_a_cancelled_call_is_reset_and_its_late_answer_ignored() -> None:
    async with connected() as (client, peer):
        client.send(0)
        client.send(1)
        client.connection.cancel(0)
        client.connection.cancel(0)
        reset = await peer.next(wire.RST_STREAM)
        assert (reset.stream, reset.payload) == (1, (8).to_bytes(4, "big"))
        peer.answer(1)
        peer.answer(3)
        await client.until(1)
        assert client.ended == {1: (OK, None)}


@timed
async def test_a_cancelled_upload_makes_room_for_the_next() -> None:
    async with connected(window=100) as (client, peer):
        client.send(0, bytes(500))
        client.send(1, bytes(500))
        client.send(2, b"small")
        assert (await peer.next(HEADERS)).stream == 1
        client.connection.cancel(1)  # had not begun
        client.connection.cancel(0)
        assert (await peer.next(wire.RST_STREAM)).stream == 1
        opened = await peer.next(HEADERS, DATA)
        assert (opened.kind, opened.stream) == (HEADERS, 3)
        assert (await peer.next(DATA)).payload[5:] == b"small"


@pytest.mark.parametrize(("code", "begun", "outcome"), [(2, False, ERROR), (2, True, TRUNCATED)])
@timed
async def test_a_reset_stream_ends_its_call(code: int, begun: bool, outcome: int) -> None:
    async with connected() as (client, peer):
        client.send(0)
        if begun:
            peer.send(frame(HEADERS, END_HEADERS, 1, BEGIN), frame(DATA, 0, 1, b"part"))
        peer.send(frame(wire.RST_STREAM, 0, 1, code.to_bytes(4, "big")))
        await client.until(0)
        assert client.ended[0][0] == outcome


@timed
async def test_a_refused_stream_is_sent_again() -> None:
    async with connected(max_streams=1) as (client, peer):
        client.send(0, b"first")
        client.send(1, b"second")
        await peer.next(DATA)
        peer.send(frame(wire.RST_STREAM, 0, 1, (7).to_bytes(4, "big")))
        assert (await peer.next(DATA)).payload[5:] == b"second"
        peer.answer(3)
        again = await peer.next(DATA)
        assert (again.stream, again.payload[5:]) == (5, b"first")
        peer.answer(5)
        await client.until(0, 1)
        assert client.ended == {0: (OK, None), 1: (OK, None)}


@timed
async def test_goaway_refuses_what_the_server_did_not_look_at() -> None:
    async with connected() as (client, peer):
        for number in range(3):
            client.send(number)
        for _ in range(3):
            await peer.next(HEADERS)
        peer.send(frame(wire.GOAWAY, 0, 0, (3).to_bytes(4, "big") + bytes(4) + b"restart"))
        await client.until(2)
        assert client.ended == {2: (REFUSED, "the server is going away: restart")}
        assert client.left == 1
        peer.answer(1)
        peer.answer(3)
        await client.until(0, 1)
        assert client.ended[0] == client.ended[1] == (OK, None)


@timed
async def test_goaway_refuses_what_still_waits_for_a_stream() -> None:
    async with connected(max_streams=1) as (client, peer):
        client.send(0)
        client.send(1)
        await peer.next(HEADERS)
        peer.send(frame(wire.GOAWAY, 0, 0, (2**31 - 1).to_bytes(4, "big") + bytes(4)))
        await client.until(1)
        assert client.ended[1][0] == REFUSED
        peer.answer(1)
        await client.until(0)


@timed
async def test_a_lost_connection_ends_every_call() -> None:
    async with connected(max_streams=2) as (client, peer):
        for number in range(3):
            client.send(number)
        peer.send(frame(HEADERS, END_HEADERS, 1, BEGIN), frame(DATA, 0, 1, b"part"))
        await peer.next(HEADERS)
        await peer.next(HEADERS)
        peer.send(frame(wire.PING, 0, 0, b"12345678"))
        await peer.next(wire.PING)  # the client has read what came before
        peer.close()
        await client.until(0, 1, 2)
        assert [client.ended[number][0] for number in range(3)] == [TRUNCATED, ERROR, ERROR]
        assert client.left == 1


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(5, END_HEADERS, 1, bytes(4) + FINE),  # PUSH_PROMISE
        frame(wire.CONTINUATION, END_HEADERS, 1, FINE),
        frame(HEADERS, 0, 1, FINE) + frame(DATA, 0, 1, b"x"),  # 6.10: nothing may come between
        frame(HEADERS, END_HEADERS, 1, b"\xbe"),  # refers to a dynamic table that is empty
    ],
)
@timed
async def test_a_broken_protocol_ends_the_connection_and_its_calls(nonsense: bytes) -> None:
    async with connected() as (client, peer):
        client.send(0)
        await peer.next(HEADERS)
        peer.send(nonsense)
        await client.until(0)
        assert client.ended[0][0] == ERROR
        assert client.left == 1
        assert (await peer.next(wire.GOAWAY)).payload[4:] == (1).to_bytes(4, "big")


@timed
async def test_numbers_of_streams_run_out_in_time() -> None:
    async with connected() as (client, peer):
        client.connection._next_stream = 2**31 - 2_000_001
        client.send(0)
        assert client.left == 0
        client.send(1)
        assert client.left == 1
        for stream in (2**31 - 2_000_001, 2**31 - 1_999_999):
            assert (await peer.next(HEADERS)).stream == stream
            peer.answer(stream)
        await client.until(0, 1)


@timed
async def test_error_texts_that_all_differ_do_not_fill_the_memory() -> None:
    async with connected() as (client, peer):
        for number in range(5000):
            client.send(number)
            fields = ((":status", "200"), ("grpc-status", "13"), ("grpc-message", f"fault {number}"))
            peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, block(*fields)))
        await client.until(*range(5000))
        assert client.ended[4999] == (ERROR, "INTERNAL: fault 4999")
        assert len(client.connection._known) <= 4096
