"""What of HTTP/2 calls is still to be sent: calls that wait for a stream, and a body that waits for room.

The sender's half of flow control (RFC 9113, 5.2 and 6.9): a body takes room from the server's window of the connection
and from that of its stream, and travels in frames no longer than the server takes. Calls go in order, so that one at
most is in parts. Knows no socket: what is to be written is handed back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from lab.load.targets import frames
from lab.load.targets.frames import DATA, END_HEADERS, END_STREAM, HEADERS, LARGEST, frame
from lab.load.targets.grpc_wire import Call


class _Upload:
    __slots__ = ("call", "number", "sent", "stream", "window")

    def __init__(self, number: int, call: Call) -> None:
        self.number = number
        self.call = call
        self.stream = 0  # none yet
        self.sent = 0  # bytes of the body
        self.window = 0  # bytes that the server takes on the stream


class Uploads:
    """`streams` are those that are open now, `open_stream(number, call)` opens one more and gives its number."""

    def __init__(self, streams: Collection[int], open_stream: Callable[[int, Call], int]) -> None:
        self._streams, self._open_stream = streams, open_stream
        self.waiting: deque[_Upload] = deque()
        """What is not all sent, in order."""
        self._max_streams = LARGEST
        self._window = frames.DEFAULT_WINDOW  # bytes of bodies that the server takes on the connection
        self._initial_window = frames.DEFAULT_WINDOW  # … and on a new stream
        self._max_frame = frames.DEFAULT_FRAME
        self._one_frame = frames.DEFAULT_FRAME  # the longest body that travels in one frame

    def take(self, size: int) -> bool:
        """Whether a call with a body of `size` bytes may be written now and whole; its room is then taken."""
        if self.waiting or size > self._one_frame or size > self._window or len(self._streams) >= self._max_streams:
            return False
        self._window -= size
        return True

    def add(self, number: int, call: Call) -> None:
        self.waiting.append(_Upload(number, call))

    def pump(self) -> list[bytes]:
        """The frames that the server's limits allow of what waits, in order."""
        out: list[bytes] = []
        while self.waiting:
            upload = self.waiting[0]
            if not upload.stream:
                if len(self._streams) >= self._max_streams:
                    break
                upload.stream = self._open_stream(upload.number, upload.call)
                upload.window = self._initial_window
                out.append(frame(HEADERS, END_HEADERS, upload.stream, upload.call.headers))
            body = upload.call.body
            while upload.sent < len(body):
                size = min(len(body) - upload.sent, self._max_frame, self._window, upload.window)
                if size <= 0:
                    return out
                part = body[upload.sent : upload.sent + size]
                upload.sent += size
                upload.window -= size
                self._window -= size
                out.append(frame(DATA, END_STREAM if upload.sent == len(body) else 0, upload.stream, part))
            self.waiting.popleft()
        return out

    # --- what the server says ---

    def setting(self, key: int, value: int) -> None:
        if key == frames.MAX_CONCURRENT_STREAMS:
            self._max_streams = value
        elif key == frames.INITIAL_WINDOW_SIZE:
            if self.waiting and self.waiting[0].stream:
                self.waiting[0].window += value - self._initial_window
            self._initial_window = value
        elif key == frames.MAX_FRAME_SIZE:
            self._max_frame = value
        self._one_frame = min(self._max_frame, self._initial_window)

    def widen(self, stream: int, more: int) -> None:
        """The server takes so many bytes more on the stream, on the connection for stream 0."""
        if stream == 0:
            self._window += more
        elif self.waiting and self.waiting[0].stream == stream:
            self.waiting[0].window += more

    # --- what is not wanted any more ---

    def drop(self, number: int) -> None:
        self.waiting = deque(upload for upload in self.waiting if upload.number != number)

    def over(self, stream: int) -> bool:
        """The stream has ended; whether the rest of its body was still to be sent, which it no longer is."""
        if not self.waiting or self.waiting[0].stream != stream:
            return False
        self.waiting.popleft()
        return True

    def unopened(self) -> list[int]:
        """The calls that have no stream yet."""
        return [upload.number for upload in self.waiting if not upload.stream]

    def drop_unopened(self) -> list[int]:
        dropped = self.unopened()
        self.waiting = deque(upload for upload in self.waiting if upload.stream)
        return dropped
