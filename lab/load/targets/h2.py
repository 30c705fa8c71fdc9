"""One HTTP/2 connection that carries unary gRPC calls, made for a load generator.

grpc's own Python client spends about 100 µs of processor time a call, most of it on building what every call of a
load repeats; on a small model the load generator would be what gets measured. Here everything that can be made before
the clock starts is made then (`framed`), and what is left of a call is a dictionary entry, a stream number and one
write. Response headers are kept stateless by announcing a header table of size 0, so a block of bytes always means the
same and is decoded (by the `hpack` library) only the first time it is seen.

RFC 9113 is followed for what a client of unary calls can meet: settings, flow control in both directions, the server's
limit of streams, PING, GOAWAY, RST_STREAM, CONTINUATION, padding. Knows nothing of Triton, of time limits (its user
cancels), or of reconnecting; answers are not kept, only how they ended.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast
from urllib.parse import unquote

import hpack

from lab.measure.records import CANCELLED, ERROR, REFUSED, TRUNCATED

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, REFUSED_STREAM, CANCEL = 0x1, 0x3, 0x7, 0x8

LARGEST = 2**31 - 1
"""Largest stream number and largest window."""
DEFAULT_WINDOW, DEFAULT_FRAME = 65_535, 16_384
KNOWN_BLOCKS = 4_096
"""Decoded header blocks that are remembered; a server whose error texts all differ must not fill the memory."""

_head = struct.Struct(">BHBBL")  # length (24 bits in two fields), type, flags, stream
_word = struct.Struct(">L")
_setting = struct.Struct(">HL")

Done = Callable[[int, int, str | None, int], None]
"""done(number, outcome, detail, arrived_ns): how call `number` ended, exactly once a call."""
Reading = tuple[int, str | None]
"""(outcome, detail)"""
Left = Callable[["Connection"], None]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _head.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


class Call(NamedTuple):
    """A call ready to go: `opening` + stream number + `middle` + stream number + `body` are its two frames."""

    opening: bytes  # HEADERS frame up to its stream number
    middle: bytes  # header block, then DATA frame up to its stream number
    body: bytes  # the length-prefixed message
    headers: bytes  # the header block alone, for a body that does not fit one frame


class Method:
    """One gRPC method at one server; `call(message)` frames a serialized message for it."""

    def __init__(self, authority: str, path: str) -> None:
        encoder = hpack.Encoder()
        encoder.header_table_size = 0  # no state in either direction: the same bytes serve every call
        self._headers: bytes = encoder.encode(
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", authority),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "serving-lab"),
            ],
            huffman=False,
        )
        self._opening = frame(HEADERS, END_HEADERS, 0, self._headers)[:5]

    def call(self, message: bytes) -> Call:
        body = b"\0" + _word.pack(len(message)) + message
        # The length has 24 bits; a longer body never travels in one frame, so what it would say is never sent.
        data = _head.pack(len(body) >> 16 & 0xFF, len(body) & 0xFFFF, DATA, END_STREAM, 0)[:5]
        return Call(self._opening, self._headers + data, body, self._headers)


class _Upload:
    """A call that could not be written at once: it waits for a stream, or part of its body for a window."""

    __slots__ = ("call", "number", "sent", "stream", "window")

    def __init__(self, number: int, call: Call) -> None:
        self.number = number
        self.call = call
        self.stream = 0  # not opened yet
        self.sent = 0  # bytes of the body
        self.window = 0


class _ProtocolError(Exception):
    """The server broke the protocol; the connection cannot go on."""


class Connection(asyncio.Protocol):
    """One connection. `open` makes one; `send` starts a call, whose end is told to `done`.

    `read_status(status, message)` gives outcome and detail of a gRPC status, and is asked once for each different
    header block. `left(connection)` is called once, when the connection takes no more calls: lost, told to go away, or out of
    stream numbers. Calls in flight then still end through `done`.
    """

    def __init__(self, done: Done, read_status: Callable[[str, str], Reading], left: Left) -> None:
        self._done = done
        self._read_status = read_status
        self._left: Left | None = left
        self._transport: asyncio.WriteTransport
        self._out: list[bytes] = []
        self._reading = False
        self._rest = b""
        self._streams: dict[int, int] = {}  # stream → number of the call
        self._answered: set[int] = set()  # streams whose answer has begun
        self._next_stream = 1
        self._max_streams = LARGEST
        self._window = DEFAULT_WINDOW  # bytes of bodies that the server takes on the connection
        self._initial_window = DEFAULT_WINDOW  # … and on a new stream
        self._max_frame = DEFAULT_FRAME
        self._one_frame = DEFAULT_FRAME  # the longest body that travels in one frame
        self._uploads: deque[_Upload] = deque()
        self._consumed = 0  # bytes received since the last WINDOW_UPDATE for the connection
        self._known: dict[bytes, Reading | None] = {}
        self._split: tuple[int, int, bytes] | None = None  # stream, flags, header block so far
        self.settled = asyncio.get_running_loop().create_future()
        """Done once the server's settings are in force: it speaks HTTP/2."""

    @classmethod
    async def open(
        cls, host: str, port: int, done: Done, read_status: Callable[[str, str], Reading], left: Left
    ) -> Connection:
        """OSError when nobody listens."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(done, read_status, left), host, port)
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._streams) + sum(not upload.stream for upload in self._uploads)

    # --- calls ---------------------------------------------------------------------------------------------------

    def send(self, number: int, call: Call) -> None:
        """Start `call`. `number` is the caller's name for it, unique among the calls in flight. Not after `left`."""
        opening, middle, body, _ = call
        size = len(body)
        if self._uploads or size > self._one_frame or size > self._window or len(self._streams) >= self._max_streams:
            self._uploads.append(_Upload(number, call))
            self._pump()
        else:
            self._window -= size
            stream = _word.pack(self._open_stream(number))
            self._out.append(b"".join((opening, stream, middle, stream, body)))
        if not self._reading:
            self._flush()

    def cancel(self, number: int) -> None:
        """Forget the call: the server is told, `done` is not. No effect when it has ended."""
        for upload in self._uploads:
            if upload.number == number:
                self._uploads.remove(upload)
                break
        for stream, other in self._streams.items():
            if other == number:
                self._forget(stream)
                self._out.append(frame(RST_STREAM, 0, stream, _word.pack(CANCEL)))
                break
        self._pump()
        if not self._reading:
            self._flush()

    def close(self) -> None:
        self._leave()
        self._transport.write(frame(GOAWAY, 0, 0, bytes(8)))
        self._transport.close()

    def _open_stream(self, number: int) -> int:
        stream = self._next_stream
        self._next_stream = stream + 2
        self._streams[stream] = number
        if self._next_stream > LARGEST:
            self._leave()
        return stream

    def _forget(self, stream: int) -> int | None:
        self._answered.discard(stream)
        return self._streams.pop(stream, None)

    def _end(self, stream: int, reading: Reading, now_ns: int) -> None:
        number = self._forget(stream)
        if self._uploads:
            self._drop_upload(stream)
        if number is not None:
            self._done(number, *reading, now_ns)

    def _drop_upload(self, stream: int) -> None:
        """The server has answered a call whose body is still under way: the rest of the body is not wanted."""
        if self._uploads[0].stream == stream:
            self._uploads.popleft()
            self._out.append(frame(RST_STREAM, 0, stream, _word.pack(CANCEL)))
        self._pump()

    def _pump(self) -> None:
        """Write what the server's limits allow of the waiting calls, in order."""
        while self._uploads:
            upload = self._uploads[0]
            if not upload.stream:
                if len(self._streams) >= self._max_streams or self._next_stream > LARGEST:
                    return
                upload.stream = self._open_stream(upload.number)
                upload.window = self._initial_window
                self._out.append(frame(HEADERS, END_HEADERS, upload.stream, upload.call.headers))
            body = upload.call.body
            while upload.sent < len(body):
                size = min(len(body) - upload.sent, self._max_frame, self._window, upload.window)
                if size <= 0:
                    return
                part = body[upload.sent : upload.sent + size]
                upload.sent += size
                upload.window -= size
                self._window -= size
                last = upload.sent == len(body)
                self._out.append(frame(DATA, END_STREAM if last else 0, upload.stream, part))
            self._uploads.popleft()

    def _flush(self) -> None:
        if self._out:
            self._transport.writelines(self._out)
            self._out = []

    # --- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's own class, no subclass of it
        settings = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, LARGEST))
        transport.write(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + frame(SETTINGS, 0, 0, b"".join(_setting.pack(*setting) for setting in settings))
            + frame(WINDOW_UPDATE, 0, 0, _word.pack(LARGEST - DEFAULT_WINDOW))
        )

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()
        if self._rest:
            data = self._rest + data
        self._reading = True
        try:
            self._read_frames(data, now_ns)
        except _ProtocolError as error:
            self._out.append(frame(GOAWAY, 0, 0, _word.pack(0) + _word.pack(PROTOCOL_ERROR)))
            self._flush()
            self._transport.close()
            self._lost(str(error))
        finally:
            self._reading = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost(f"connection lost: {error}" if error else "the server closed the connection")

    # --- what the server says ------------------------------------------------------------------------------------

    def _read_frames(self, data: bytes, now_ns: int) -> None:
        at, end = 0, len(data)
        while at + 9 <= end:
            high, low, kind, flags, stream = _head.unpack_from(data, at)
            start = at + 9
            at = start + (high << 16 | low)
            if at > end:
                at = start - 9
                break
            if kind == DATA:
                self._consumed += at - start
                self._answered.add(stream)
                if flags & END_STREAM:
                    self._end(stream, (ERROR, "the answer ended without a gRPC status"), now_ns)
            elif kind == HEADERS and flags & ~END_STREAM == END_HEADERS and self._split is None:
                self._headers(stream, flags, data[start:at], now_ns)
            else:
                self._other(kind, flags, stream & LARGEST, data[start:at], now_ns)
        if end - at >= 9 and high << 16 | low > DEFAULT_FRAME:
            raise _ProtocolError("not HTTP/2, or a frame above the agreed size; is this the server's gRPC port?")
        self._rest = data[at:]
        if self._consumed > LARGEST // 4:
            self._out.append(frame(WINDOW_UPDATE, 0, 0, _word.pack(self._consumed)))
            self._consumed = 0

    def _headers(self, stream: int, flags: int, block: bytes, now_ns: int) -> None:
        try:
            reading = self._known[block]
        except KeyError:
            reading = self._learn(block)
        if reading is not None:
            self._end(stream, reading, now_ns)
        elif flags & END_STREAM:
            self._end(stream, (ERROR, "the answer ended without a gRPC status"), now_ns)
        else:
            self._answered.add(stream)

    def _learn(self, block: bytes) -> Reading | None:
        """What a header block says of its call's end; None when it is the start of an answer."""
        decoder = hpack.Decoder()
        decoder.header_table_size = decoder.max_allowed_table_size = 0
        try:
            fields = dict(decoder.decode(block))
        except hpack.HPACKError as error:
            raise _ProtocolError(f"the server's headers cannot be read: {error}") from None
        reading: Reading | None = None
        if "grpc-status" in fields:
            reading = self._read_status(fields["grpc-status"], unquote(fields.get("grpc-message", "")))
        elif fields.get(":status", "200") != "200":
            reading = (ERROR, f"HTTP status {fields[':status']} instead of a gRPC answer")
        if len(self._known) < KNOWN_BLOCKS:
            self._known[block] = reading
        return reading

    def _other(self, kind: int, flags: int, stream: int, payload: bytes, now_ns: int) -> None:
        if self._split is not None:
            if kind != CONTINUATION or stream != self._split[0]:
                raise _ProtocolError("the server broke into a header block")
            self._block_goes_on(flags, payload, now_ns)
        elif kind == HEADERS:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & PRIORITISED:
                payload = payload[5:]
            self._split = (stream, flags, b"")
            self._block_goes_on(flags, payload, now_ns)
        elif kind == SETTINGS:
            if not flags & ACK:
                self._settings(payload)
        elif kind == PING:
            if not flags & ACK:
                self._out.append(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._window_update(stream, _word.unpack(payload)[0] & LARGEST)
        elif kind == RST_STREAM:
            self._reset(stream, _word.unpack(payload)[0], now_ns)
        elif kind == GOAWAY:
            self._go_away(_word.unpack_from(payload)[0] & LARGEST, payload[8:], now_ns)
        elif kind in (PUSH_PROMISE, CONTINUATION):
            raise _ProtocolError(f"the server sent a frame of type {kind}, which has no place here")

    def _block_goes_on(self, flags: int, payload: bytes, now_ns: int) -> None:
        assert self._split is not None
        stream, first_flags, block = self._split
        block += payload
        self._split = (stream, first_flags, block)
        if flags & END_HEADERS:
            self._split = None
            self._headers(stream, first_flags, block, now_ns)

    def _settings(self, payload: bytes) -> None:
        for key, value in _setting.iter_unpack(payload):
            if key == MAX_CONCURRENT_STREAMS:
                self._max_streams = value
            elif key == INITIAL_WINDOW_SIZE:
                if self._uploads and self._uploads[0].stream:
                    self._uploads[0].window += value - self._initial_window
                self._initial_window = value
            elif key == MAX_FRAME_SIZE:
                self._max_frame = value
        self._one_frame = min(self._max_frame, self._initial_window)
        self._out.append(frame(SETTINGS, ACK, 0))
        if not self.settled.done():
            self.settled.set_result(None)
        self._pump()

    def _window_update(self, stream: int, more: int) -> None:
        if stream == 0:
            self._window += more
        elif self._uploads and self._uploads[0].stream == stream:
            self._uploads[0].window += more
        self._pump()

    def _reset(self, stream: int, code: int, now_ns: int) -> None:
        if code == REFUSED_STREAM:
            self._end(stream, (REFUSED, "the server refused the stream"), now_ns)
        else:
            outcome = TRUNCATED if stream in self._answered else ERROR
            self._end(stream, (outcome, f"the server reset the stream, code {code}"), now_ns)

    def _go_away(self, last: int, debug: bytes, now_ns: int) -> None:
        """The server takes no more streams. Those above `last` were not looked at; the others still end."""
        self._leave()
        text = "the server is going away" + (f": {debug.decode(errors='replace')}" if debug else "")
        for stream in [stream for stream in self._streams if stream > last]:
            self._end(stream, (REFUSED, text), now_ns)
        while self._uploads and not self._uploads[-1].stream:
            self._done(self._uploads.pop().number, REFUSED, text, now_ns)

    def _leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left(self)

    def _lost(self, why: str) -> None:
        self._leave()
        if not self.settled.done():
            self.settled.set_result(None)
        now_ns = time.perf_counter_ns()
        waiting = [upload.number for upload in self._uploads if not upload.stream]
        streams, answered = self._streams, self._answered
        self._uploads, self._streams, self._answered = deque(), {}, set()
        for stream, number in streams.items():
            self._done(number, TRUNCATED if stream in answered else ERROR, why, now_ns)
        for number in waiting:
            self._done(number, CANCELLED, why, now_ns)
