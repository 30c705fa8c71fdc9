"""One HTTP/2 connection for gRPC calls of one message, answered by one or by a stream; made for a load generator.

grpc's own Python client spends about 100 µs of processor time a call, so on a small model it would be what gets
measured; here a call is a dictionary entry, a stream number and a write, about 15 µs with 16 in flight. What makes
that possible: calls are framed before the clock starts (grpc_wire.py), the server is told to send headers without
state, so that a block of bytes is decoded only the first time it is seen, and answers are not kept, only how they
ended; who wants to read them gets their bytes as they come.

RFC 9113 is followed for what such a client meets: settings, flow control in both directions, the server's limit of
streams, PING, GOAWAY, RST_STREAM, CONTINUATION, padding. Knows nothing of Triton, of time limits (its user cancels),
or of reconnecting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from lab.load.targets import frames
from lab.load.targets.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    LARGEST,
    SETTING,
    WORD,
    ProtocolError,
    frame,
)
from lab.load.targets.grpc_wire import Call, Reading
from lab.load.targets.uploads import Uploads
from lab.measure.records import ERROR, REFUSED, TRUNCATED

LAST_STREAM = LARGEST - 2_000_000
"""From here on no new calls are taken; the numbers that are left are for calls that wait already."""
KNOWN_BLOCKS = 4_096
"""Header blocks that are remembered; a server whose error texts all differ must not fill the memory."""

Ended = Callable[[int, int, str | None, int], None]
"""ended(number, outcome, detail, arrived_ns): a call is over, as targets.Done has it."""
Received = Callable[[int, bytes, int], None]
"""received(number, data, arrived_ns): the next bytes of a call's answer, cut anywhere."""
Left = Callable[["Connection"], None]


class Connection(asyncio.Protocol):
    """`open` makes one; `send` starts a call, and `ended` is told how it ended. `received`, where given, is told what
    the answer holds; either may send and cancel calls meanwhile.

    `read_headers(block)` gives a call's outcome and detail, None for headers that only begin an answer; it is asked
    once for each different block. `left(connection)` is called once, when the connection takes no more calls: lost,
    told to go away, or out of stream numbers; calls in flight then still end through `ended`.
    """

    def __init__(
        self,
        ended: Ended,
        read_headers: Callable[[bytes], Reading | None],
        left: Left,
        received: Received | None = None,
    ) -> None:
        self._ended = ended
        self._read_headers = read_headers
        self._left = left
        self._received = received
        self._transport: asyncio.WriteTransport
        self._out: list[bytes] = []
        self._reading = False  # while frames are read, what is to be written is collected
        self._rest = b""  # the start of a frame
        self._split: tuple[int, int, bytes] | None = None  # stream, flags and start of a header block in parts
        self._known: dict[bytes, Reading | None] = {}
        self._streams: dict[int, tuple[int, Call]] = {}
        self._answered: set[int] = set()  # streams whose answer has begun
        self._next_stream = 1
        self._uploads = Uploads(self._streams, self._open_stream)
        self._consumed = 0  # bytes of answers since the server's window was last made wider
        self.settled = asyncio.get_running_loop().create_future()
        """Done when the server's settings are in force, or the connection is lost."""
        self.parting: str | None = None
        """Why it takes no more calls; None while it does."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        ended: Ended,
        read_headers: Callable[[bytes], Reading | None],
        left: Left,
        received: Received | None = None,
    ) -> Connection:
        """OSError when nobody listens."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(ended, read_headers, left, received), host, port)
        return connection

    @property
    def in_flight(self) -> int:
        return len(self._streams) + len(self._uploads.unopened())

    def send(self, number: int, call: Call) -> None:
        """Start `call`; `number` is the caller's name for it. Not after `left`."""
        opening, middle, body, _ = call
        if self._uploads.take(len(body)):
            stream = WORD.pack(self._open_stream(number, call))
            self._out.append(b"".join((opening, stream, middle, stream, body)))
        else:
            self._uploads.add(number, call)
            self._pump()
        if not self._reading:
            self._flush()

    def cancel(self, number: int) -> None:
        """Forget the call: the server is told, `ended` is not called. Without effect when the call has ended."""
        self._uploads.drop(number)
        stream = next((stream for stream, (other, _) in self._streams.items() if other == number), None)
        if stream is not None:
            self._forget(stream)
            self._out.append(frame(frames.RST_STREAM, 0, stream, WORD.pack(frames.CANCEL)))
        self._pump()
        if not self._reading:
            self._flush()

    def close(self) -> None:
        self._leave("closed")
        self._out.append(frame(frames.GOAWAY, 0, 0, bytes(8)))
        self._flush()
        self._transport.close()

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is one without saying so
        settings = ((frames.HEADER_TABLE_SIZE, 0), (frames.ENABLE_PUSH, 0), (frames.INITIAL_WINDOW_SIZE, LARGEST))
        self._transport.write(
            frames.PREFACE
            + frame(frames.SETTINGS, 0, 0, b"".join(SETTING.pack(*setting) for setting in settings))
            + frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(LARGEST - frames.DEFAULT_WINDOW))
        )

    def data_received(self, data: bytes) -> None:
        now_ns = time.perf_counter_ns()  # one stamp for all answers that came together
        self._reading = True
        try:
            self._read_frames(self._rest + data if self._rest else data, now_ns)
        except ProtocolError as error:
            self._out.append(frame(frames.GOAWAY, 0, 0, WORD.pack(0) + WORD.pack(frames.PROTOCOL_ERROR)))
            self._flush()
            self._transport.close()
            self._lose(str(error))
        finally:
            self._reading = False
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(f"connection lost: {error}" if error else "the server closed the connection")

    # --- what goes out ---

    def _open_stream(self, number: int, call: Call) -> int:
        stream = self._next_stream
        self._next_stream = stream + 2
        self._streams[stream] = (number, call)
        if stream > LAST_STREAM:
            self._leave("out of stream numbers")
        return stream

    def _pump(self) -> None:
        more = self._uploads.pump()  # it may find that the connection has to be left, whose hearer may write
        self._out += more

    def _flush(self) -> None:
        if self._out:
            if not self._transport.is_closing():  # else the calls end when the loss is told
                self._transport.writelines(self._out)
            self._out = []

    # --- what comes in ---

    def _read_frames(self, data: bytes, now_ns: int) -> None:
        at, end = 0, len(data)
        while end - at >= 9:
            high, low, kind, flags, stream = HEAD.unpack_from(data, at)
            length = high << 16 | low
            if length > frames.DEFAULT_FRAME:
                raise ProtocolError("the server does not speak HTTP/2; is this its gRPC port?")
            start, stop = at + 9, at + 9 + length
            if stop > end:
                break
            if kind == HEADERS and flags & ~END_STREAM == END_HEADERS and self._split is None:
                self._headers(stream, flags, data[start:stop], now_ns)
            elif kind == DATA and self._split is None:
                self._consumed += length
                if self._received is not None:
                    self._data(stream, flags, data[start:stop], now_ns)
                if flags & END_STREAM:
                    self._end(stream, (ERROR, "the answer ended without a gRPC status"), now_ns)
            else:
                self._other(kind, flags, stream & LARGEST, data[start:stop], now_ns)
            at = stop
        self._rest = data[at:]
        if self._consumed > LARGEST // 4:
            self._out.append(frame(frames.WINDOW_UPDATE, 0, 0, WORD.pack(self._consumed)))
            self._consumed = 0

    def _data(self, stream: int, flags: int, payload: bytes, now_ns: int) -> None:
        number, _ = self._streams.get(stream, (None, None))
        if number is not None and self._received is not None:
            if flags & frames.PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            self._received(number, payload, now_ns)

    def _headers(self, stream: int, flags: int, block: bytes, now_ns: int) -> None:
        try:
            reading = self._known[block]
        except KeyError:
            reading = self._read_headers(block)
            if len(self._known) < KNOWN_BLOCKS:
                self._known[block] = reading
        if reading is not None:
            self._end(stream, reading, now_ns)
        elif flags & END_STREAM:
            self._end(stream, (ERROR, "the answer ended without a gRPC status"), now_ns)
        elif stream in self._streams:
            self._answered.add(stream)

    def _other(self, kind: int, flags: int, stream: int, payload: bytes, now_ns: int) -> None:
        """The frames that are not a plain part of an answer. Unknown types are ignored, as the RFC wants."""
        if self._split is not None and (kind != frames.CONTINUATION or stream != self._split[0]):
            raise ProtocolError("the server broke into a header block")
        if kind == frames.SETTINGS and not flags & frames.ACK:
            self._settings(payload)
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            self._uploads.widen(stream, WORD.unpack(payload)[0] & LARGEST)
            self._pump()
        elif kind == frames.RST_STREAM:
            self._reset(stream, WORD.unpack(payload)[0], now_ns)
        elif kind == frames.GOAWAY:
            self._go_away(WORD.unpack_from(payload)[0] & LARGEST, payload[8:], now_ns)
        elif kind == HEADERS:
            if flags & frames.PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & frames.PRIORITISED:
                payload = payload[5:]
            self._split = (stream, flags, b"")
            self._continue_block(flags, payload, now_ns)
        elif kind == frames.CONTINUATION:
            self._continue_block(flags, payload, now_ns)
        elif kind == frames.PUSH_PROMISE:
            raise ProtocolError("the server pushes, which it was told not to")

    def _continue_block(self, flags: int, payload: bytes, now_ns: int) -> None:
        if self._split is None:
            raise ProtocolError("the server continued a header block that it had not begun")
        stream, first_flags, block = self._split
        self._split = (stream, first_flags, block + payload)
        if flags & END_HEADERS:
            self._split = None
            self._headers(stream, first_flags, block + payload, now_ns)

    def _settings(self, payload: bytes) -> None:
        for key, value in SETTING.iter_unpack(payload):
            self._uploads.setting(key, value)
        self._out.append(frame(frames.SETTINGS, frames.ACK, 0))
        if not self.settled.done():
            self.settled.set_result(None)
        self._pump()

    def _reset(self, stream: int, code: int, now_ns: int) -> None:
        if code == frames.REFUSED_STREAM and stream in self._streams:
            # Not looked at, so safe to send again (8.7). It happens when the server has answered a call but still
            # counts its stream: the caller's concern only if it goes on for longer than the caller waits.
            number, call = self._streams[stream]
            self._uploads.add(number, call)
            self._end(stream, None, now_ns)
        else:
            outcome = TRUNCATED if stream in self._answered else ERROR
            self._end(stream, (outcome, f"the server reset the stream, code {code}"), now_ns)

    def _go_away(self, last: int, debug: bytes, now_ns: int) -> None:
        """The server looks at no stream above `last`; the others still end."""
        why = "the server is going away" + (f": {debug.decode(errors='replace')}" if debug else "")
        self._leave(why)
        waiting = self._uploads.drop_unopened()
        for stream in [stream for stream in self._streams if stream > last]:
            self._end(stream, (REFUSED, why), now_ns)
        for number in waiting:
            self._ended(number, REFUSED, why, now_ns)

    # --- how calls end ---

    def _end(self, stream: int, reading: Reading | None, now_ns: int) -> None:
        """The stream is over; without a reading its call is not."""
        number = self._forget(stream)
        if self._uploads.waiting:
            if self._uploads.over(stream):  # answered before its body was all sent
                self._out.append(frame(frames.RST_STREAM, 0, stream, WORD.pack(frames.CANCEL)))
            self._pump()
        if number is not None and reading is not None:
            self._ended(number, *reading, now_ns)

    def _forget(self, stream: int) -> int | None:
        """The number of the stream's call, if the stream was open."""
        self._answered.discard(stream)
        number, _ = self._streams.pop(stream, (None, None))
        return number

    def _leave(self, why: str) -> None:
        if self.parting is None:
            self.parting = why
            self._left(self)

    def _lose(self, why: str) -> None:
        if not self.settled.done():
            self.settled.set_result(None)
        now_ns = time.perf_counter_ns()
        ended = [
            (number, TRUNCATED if stream in self._answered else ERROR) for stream, (number, _) in self._streams.items()
        ]
        ended += [(number, ERROR) for number in self._uploads.unopened()]
        self._streams.clear()
        self._answered.clear()
        self._uploads = Uploads(self._streams, self._open_stream)
        self._leave(why)
        for number, outcome in ended:
            self._ended(number, outcome, why, now_ns)
