"""Answers of many messages, frame by frame: the stream target against a peer that says exactly what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hpack
import pytest
from tritonclient.grpc import service_pb2

from lab.load.payload import requests_for
from lab.load.targets.triton_stream import TritonStream
from lab.measure.records import ERROR, OK, REFUSED, TRUNCATED
from lab.spec import ClosedLoop, ModelSpec, Workload
from tests.load.fakes import peer as wire
from tests.load.fakes.peer import BEGIN, DATA, END_HEADERS, END_STREAM, FINE, HEADERS, Peer, block, frame, listening
from tests.load.fakes.streams import Chunk, Story, response
from tests.load.fakes.using import End, Using
from tests.waiting import LIMIT_S, timed

REQUESTS = requests_for(ModelSpec(name="llm"), Workload(arrival=ClosedLoop(concurrency=1), duration_s=1), 3)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Using, Peer]]:
    async with listening() as (port, peers):
        ends: dict[int, End] = {}
        target = TritonStream(
            f"127.0.0.1:{port}", lambda number, *end: ends.__setitem__(number, End(*end, *[None] * (4 - len(end))))
        )
        opening = asyncio.ensure_future(target.open())
        peer = await peers.get()
        await peer.greet()
        await opening
        yield Using(target, target.prepare("llm", REQUESTS), ends), peer
        peer.close()  # else the target waits for the trailers of what was answered
        await target.close()


def prefixed(message: Any, compressed: int = 0) -> bytes:
    body = message.SerializeToString()
    return bytes([compressed]) + len(body).to_bytes(4, "big") + body


def words(*tokens: int, text: str = "word ") -> bytes:
    return b"".join(prefixed(response(Story(), Chunk(0, n, text))) for n in tokens)


def final() -> bytes:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return prefixed(message)


def begin(stream: int = 1) -> bytes:
    return frame(HEADERS, END_HEADERS, stream, BEGIN)


def data(payload: bytes, stream: int = 1) -> bytes:
    return frame(DATA, 0, stream, payload)


END = frame(HEADERS, END_HEADERS | END_STREAM, 1, FINE)


@timed
async def test_messages_are_found_however_the_frames_are_cut() -> None:
    answer = words(2, 1, 3) + final()
    for size in (1, 4, 5, 6, 7, 100, len(answer)):
        async with connected() as (using, peer):
            using.ask(0)
            peer.send(begin(), *(data(answer[at : at + size]) for at in range(0, len(answer), size)), END)
            await using.until(0)
            end = using.ends[0]
            assert (end.outcome, end.generated and end.generated.chunk_tokens) == (OK, [2, 1, 3])


@timed
async def test_what_comes_together_has_one_stamp_and_what_comes_later_a_later_one() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin() + data(words(1) + words(1)))
        assert await peer.nothing_comes()
        peer.send(data(words(1) + final()), END)
        await using.until(0)
        generated = using.ends[0].generated
        assert generated is not None
        first, second, third = generated.chunk_ns
        assert first == second < third


@timed
async def test_an_answered_stream_is_closed_only_after_its_trailers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton keeps the model for ever when the connection goes away in between."""
    monkeypatch.setattr("lab.load.targets.channel.TRAILERS_S", LIMIT_S)
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin(), data(words(1) + final()))
        await using.until(0)
        closing = asyncio.ensure_future(using.target.close())
        assert await peer.nothing_comes(wire.GOAWAY)
        assert not closing.done()
        peer.send(END)
        assert (await peer.next(wire.GOAWAY)).kind == wire.GOAWAY
        await closing


@timed
async def test_padding_is_no_part_of_a_message() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        answer = words(2) + final()
        peer.send(begin(), frame(DATA, wire.PADDED, 1, bytes([9]) + answer[:20] + bytes(9)), data(answer[20:]), END)
        await using.until(0)
        assert using.ends[0].generated and using.ends[0].generated.chunk_tokens == [2]


@timed
async def test_streams_in_turn_keep_their_own_messages() -> None:
    async with connected() as (using, peer):
        for number in range(3):
            using.ask(number)
        answers = {2 * number + 1: words(*[number + 1] * 4) + final() for number in range(3)}
        peer.send(*(begin(stream) for stream in answers))
        for at in range(0, max(map(len, answers.values())), 11):
            peer.send(*(data(answer[at : at + 11], stream) for stream, answer in answers.items()))
        await using.until(0, 1, 2)
        found = [using.ends[number].generated for number in range(3)]
        assert [generated and generated.chunk_tokens for generated in found] == [[1] * 4, [2] * 4, [3] * 4]


@timed
async def test_an_answer_ends_with_its_final_response_and_only_once() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin(), data(words(1) + final()))
        await using.until(0)  # before its trailers
        peer.send(data(words(5)), END)
        assert await peer.nothing_comes(wire.RST_STREAM)
        assert using.ends[0].generated and using.ends[0].generated.output_tokens == 1


@timed
async def test_a_long_answer_makes_the_servers_window_wide_again() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        using.target._channel._connection._consumed = 2**29 - 200_000
        long = words(1, text="x" * 16_000)
        peer.send(begin(), *(data(part) for _ in range(15) for part in (long[:8_000], long[8_000:])))
        update = await peer.next(wire.WINDOW_UPDATE)
        while int.from_bytes(update.payload, "big") == 2**31 - 1 - 65_535:  # the first, on connecting
            update = await peer.next(wire.WINDOW_UPDATE)
        assert update.stream == 0
        assert int.from_bytes(update.payload, "big") >= 2**29
        peer.send(data(final()), END)
        await using.until(0)
        assert using.ends[0].generated and using.ends[0].generated.output_tokens == 15


@timed
async def test_trailers_without_a_final_response_mean_that_it_broke_off() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin(), data(words(1, 1)), END)
        await using.until(0)
        assert using.ends[0].outcome == TRUNCATED
        assert using.ends[0].generated and using.ends[0].generated.output_tokens == 2


@pytest.mark.parametrize(("before", "outcome"), [(b"", ERROR), (words(1, 2), TRUNCATED)])
@timed
async def test_an_older_tritons_error_in_words_ends_the_answer(before: bytes, outcome: int) -> None:
    async with connected() as (using, peer):
        using.ask(0)
        message = service_pb2.ModelStreamInferResponse(error_message="the stub died")
        peer.send(begin(), data(before + prefixed(message)))
        assert (await peer.next(wire.RST_STREAM)).stream == 1  # nothing more is wanted of it
        await using.until(0)
        assert (using.ends[0].outcome, using.ends[0].detail) == (outcome, "the stub died")


@timed
async def test_an_answer_that_is_compressed_is_not_guessed_at() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin(), data(prefixed(response(Story(), Chunk(0, 1)), compressed=1)))
        await using.until(0)
        assert (using.ends[0].outcome, using.ends[0].detail) == (ERROR, "the answer is compressed")


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xff",  # no protobuf
        service_pb2.ModelStreamInferResponse(
            infer_response=service_pb2.ModelInferResponse(
                outputs=[service_pb2.ModelInferResponse.InferOutputTensor(name="num_output_tokens")],
                raw_output_contents=[b"\1"],
            )
        ).SerializeToString(),
    ],
)
@timed
async def test_a_response_that_cannot_be_read_ends_its_answer_alone(payload: bytes) -> None:
    async with connected() as (using, peer):
        using.ask(0)
        using.ask(1)
        peer.send(begin(1), begin(3), data(b"\0" + len(payload).to_bytes(4, "big") + payload, 1))
        await using.until(0)
        assert using.ends[0].outcome == ERROR
        assert "not as Triton makes them" in str(using.ends[0].detail)
        peer.send(data(words(1) + final(), 3))
        await using.until(1)
        assert using.ends[1].outcome == OK


@timed
async def test_a_status_after_tokens_truncates() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        peer.send(begin(), data(words(1)))
        fields = ((":status", "200"), ("grpc-status", "14"), ("grpc-message", "unloading"))
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 1, block(*fields)))
        await using.until(0)
        assert (using.ends[0].outcome, using.ends[0].detail) == (TRUNCATED, "UNAVAILABLE: unloading")


@timed
async def test_a_request_that_is_given_up_resets_its_stream_alone() -> None:  # how Triton learns of it
    async with connected() as (using, peer):
        for number in range(2):
            using.ask(number)
        peer.send(begin(1), begin(3), data(words(1, 1), 1), data(words(3), 3))
        assert await peer.nothing_comes()
        given = using.target.cancel(0)
        reset = await peer.next(wire.RST_STREAM)
        assert (reset.stream, reset.payload) == (1, (8).to_bytes(4, "big"))
        assert given and given.chunk_tokens == [1, 1]
        peer.send(data(words(1) + final(), 1), data(final(), 3))
        await using.until(1)
        assert list(using.ends) == [1]


@timed
async def test_each_request_closes_its_side_and_wants_statuses_and_a_final_response() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        headers, body = await peer.next(HEADERS, DATA), await peer.next(HEADERS, DATA)
        fields = dict(hpack.Decoder().decode(headers.payload))
        assert fields[":path"] == "/inference.GRPCInferenceService/ModelStreamInfer"
        assert fields["triton_grpc_error"] == "true"
        assert body.flags == END_STREAM
        message = service_pb2.ModelInferRequest.FromString(body.payload[5:])
        assert message.parameters["triton_enable_empty_final_response"].bool_param is True


@timed
async def test_what_waits_when_the_server_goes_away_is_refused() -> None:
    async with connected() as (using, peer):
        using.ask(0)
        await peer.next(DATA)
        peer.send(frame(wire.GOAWAY, 0, 0, bytes(8) + b"restart"))
        await using.until(0)
        assert using.ends[0].outcome == REFUSED
