"""A server of streamed answers that computes nothing and keeps to a timetable: what a load generator can read is
measured on it (ceiling.py).

    python -m lab.load.null_stream        prints its port on 127.0.0.1, and ends when its stdin does

Every answer is CHUNKS tokens, one a chunk, GAP_S apart by deadlines of its own, the first GAP_S after the request was
read. One port speaks what the targets do: Triton's gRPC stream, its /generate_stream, OpenAI's completions. All bytes
are made beforehand, so that it costs a fraction of its reader; it shares the machine with it all the same, as the
server of every run does. It reads no more of a request than where it ends, heeds no flow control (a client that is
measured has windows of 2 GiB) and knows no errors.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import hpack
import numpy as np
import uvloop
from tritonclient.grpc import service_pb2

from lab.load.targets import frames
from lab.load.targets.frames import DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, LARGEST, WORD, frame, frame_head

CHUNKS, GAP_S = 50, 0.010
TICK_S = 0.001
PROMPT_TOKENS = 8
WORD_TEXT = " the"

Write = Callable[[bytes], None]

now_s = time.perf_counter
"""uvloop's own time is in whole milliseconds: by it a chunk would be early."""


class Timetable:
    """Answers under way. Gaps are equal, so whose chunk is due next stands first."""

    def __init__(self) -> None:
        self._due: deque[tuple[float, int, Answer]] = deque()
        self._ticking = False

    def begin(self, answer: Answer) -> None:
        self._due.append((now_s() + GAP_S, 0, answer))
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        due, now = self._due, now_s()
        while due and due[0][0] <= now:
            at, number, answer = due.popleft()
            answer.write(number)
            if number + 1 < CHUNKS and not answer.given_up:
                due.append((at + GAP_S, number + 1, answer))  # by the deadline: a late chunk does not push the rest
        self._ticking = bool(due)
        if due:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)


class Answer:
    """One answer: how its chunks are written."""

    __slots__ = ("_send", "_texts", "given_up")

    def __init__(self, send: Write, texts: list[bytes]) -> None:
        self._send, self._texts = send, texts
        self.given_up = False

    def write(self, number: int) -> None:
        if not self.given_up:
            self._send(self._texts[number])


def completions() -> list[bytes]:
    """OpenAI's events in HTTP chunks, each with the usage so far, as vLLM and SGLang send them when asked for it."""
    written = []
    for number in range(CHUNKS):
        finish = "length" if number == CHUNKS - 1 else None
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": number + 1}
        event = {
            "id": "cmpl-00000000000000000000000000000000",
            "object": "text_completion",
            "created": 1_700_000_000,
            "model": "null",
            "choices": [{"index": 0, "text": WORD_TEXT, "logprobs": None, "finish_reason": finish}],
            "usage": usage | {"total_tokens": PROMPT_TOKENS + number + 1},
        }
        written.append(_event(json.dumps(event).encode()))
    written[-1] += _event(b"[DONE]") + LAST_HTTP_CHUNK
    return written


def generated() -> list[bytes]:
    """Triton's events of /generate_stream in HTTP chunks, with the outputs of its vLLM backend."""
    event = {
        "model_name": "null",
        "model_version": "1",
        "text_output": WORD_TEXT,
        "num_input_tokens": PROMPT_TOKENS,
        "num_output_tokens": 1,
    }
    written = [_event(json.dumps(event | {"finish_reason": "None"}).encode())] * (CHUNKS - 1)
    return [*written, _event(json.dumps(event | {"finish_reason": "length"}).encode()) + LAST_HTTP_CHUNK]


def responses() -> list[bytes]:
    """Triton's gRPC messages with their prefixes, the last of them final."""
    message = service_pb2.ModelStreamInferResponse()
    response = message.infer_response
    response.model_name, response.model_version = "null", "1"
    for name, kind, content in (
        ("text_output", "BYTES", len(WORD_TEXT).to_bytes(4, "little") + WORD_TEXT.encode()),
        ("num_input_tokens", "UINT32", np.uint32(PROMPT_TOKENS).tobytes()),
        ("num_output_tokens", "UINT32", np.uint32(1).tobytes()),
    ):
        response.outputs.add(name=name, datatype=kind, shape=[1])
        response.raw_output_contents.append(content)
    response.parameters["triton_final_response"].bool_param = False
    written = [_prefixed(message.SerializeToString())] * (CHUNKS - 1)
    response.parameters["triton_final_response"].bool_param = True
    return [*written, _prefixed(message.SerializeToString())]


def _event(data: bytes) -> bytes:
    event = b"data: " + data + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


def _prefixed(message: bytes) -> bytes:
    return b"\0" + WORD.pack(len(message)) + message


def _block(*fields: tuple[str, str]) -> bytes:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return bytes(encoder.encode(list(fields), huffman=False))


LAST_HTTP_CHUNK = b"0\r\n\r\n"
HTTP_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GRPC_HEAD = _block((":status", "200"), ("content-type", "application/grpc"))
GRPC_TRAILERS = _block(("grpc-status", "0"))


class Connection(asyncio.Protocol):
    """A client. Its first bytes say whether it speaks HTTP/2."""

    def __init__(self, timetable: Timetable, texts: dict[str, list[bytes]]) -> None:
        self._timetable, self._texts = timetable, texts
        self._transport: asyncio.WriteTransport
        self._rest = b""
        self._is_grpc = False
        self._answers: dict[int, Answer] = {}  # by stream; over HTTP/1.1 there is one, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        for answer in self._answers.values():
            answer.given_up = True

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if not self._is_grpc and self._rest.startswith(frames.PREFACE):
            self._is_grpc, self._rest = True, self._rest[len(frames.PREFACE) :]
            self._transport.write(
                frame(frames.SETTINGS, 0, 0) + frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(LARGEST - 65_535))
            )
        if self._is_grpc:
            self._read_frames()
        elif not frames.PREFACE.startswith(self._rest):
            self._read_requests()

    # --- HTTP/1.1 ---

    def _read_requests(self) -> None:
        while (end := self._rest.find(b"\r\n\r\n")) >= 0:
            head = self._rest[:end].lower()
            length = next((int(h[15:]) for h in head.split(b"\r\n") if h.startswith(b"content-length:")), 0)
            if len(self._rest) < end + 4 + length:
                return
            self._rest = self._rest[end + 4 + length :]
            kind = "generate_stream" if b"/generate_stream" in head.partition(b"\r\n")[0] else "openai"
            self._answers[0] = answer = Answer(self._transport.write, self._texts[kind])
            self._transport.write(HTTP_HEAD)
            self._timetable.begin(answer)

    # --- gRPC ---

    def _read_frames(self) -> None:
        data, at = self._rest, 0
        while len(data) - at >= HEAD.size:
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            stop = at + HEAD.size + (high << 16 | low)
            if stop > len(data):
                break
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._transport.write(frame(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.PING and not flags & frames.ACK:
                self._transport.write(frame(frames.PING, frames.ACK, 0, data[at + HEAD.size : stop]))
            elif kind == frames.RST_STREAM and stream in self._answers:
                self._answers.pop(stream).given_up = True
            elif kind == DATA and flags & END_STREAM:
                self._begin_stream(stream)
            at = stop
        self._rest = data[at:]

    def _begin_stream(self, stream: int) -> None:
        texts, write = self._texts["grpc"], self._transport.write
        last = texts[-1]
        write(frame(HEADERS, END_HEADERS, stream, GRPC_HEAD))

        def send(text: bytes) -> None:
            data = frame_head(len(text), DATA, 0, stream) + text
            if text is last:
                self._answers.pop(stream, None)
                data += frame(HEADERS, END_HEADERS | END_STREAM, stream, GRPC_TRAILERS)
            write(data)

        self._answers[stream] = answer = Answer(send, texts)
        self._timetable.begin(answer)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    timetable = Timetable()
    texts = {"openai": completions(), "generate_stream": generated(), "grpc": responses()}
    server = await loop.create_server(lambda: Connection(timetable, texts), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)  # until whoever started it is gone
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
