"""The server's end of one HTTP/2 connection, frame by frame, as a test says. Shares no code with the lab's client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import hpack

from tests.waiting import LIMIT_S

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 32
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def block(*fields: tuple[str, str]) -> bytes:
    """A header block that uses no dynamic table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields)


BEGIN = block((":status", "200"), ("content-type", "application/grpc"))
FINE = block(("grpc-status", "0"))


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.settings: dict[int, int] = {}

    async def greet(self, **settings: int) -> None:
        """Take the client's preface and settings, send ours, and wait until each side's are in force."""
        assert await self._reader.readexactly(len(PREFACE)) == PREFACE
        theirs = await self.next(SETTINGS)
        for at in range(0, len(theirs.payload), 6):
            key, value = theirs.payload[at : at + 2], theirs.payload[at + 2 : at + 6]
            self.settings[int.from_bytes(key, "big")] = int.from_bytes(value, "big")
        self.configure(**settings)
        self.send(frame(SETTINGS, 1, 0))
        assert (await self.next(SETTINGS)).flags == 1

    def configure(self, **settings: int) -> None:
        keys = {"max_streams": 3, "window": 4, "max_frame": 5}
        payload = b"".join(keys[k].to_bytes(2, "big") + v.to_bytes(4, "big") for k, v in settings.items())
        self.send(frame(SETTINGS, 0, 0, payload))

    def send(self, *parts: bytes) -> None:
        self._writer.write(b"".join(parts))

    def answer(self, stream: int) -> None:
        self.send(frame(HEADERS, END_HEADERS, stream, BEGIN), frame(DATA, 0, stream, b"\0\0\0\0\0"))
        self.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, FINE))

    def close(self) -> None:
        self._writer.transport.abort()

    async def next(self, *kinds: int) -> Frame:
        """The client's next frame of one of these kinds; others before it are dropped."""
        while True:
            async with asyncio.timeout(LIMIT_S):
                head = await self._reader.readexactly(9)
                payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] in kinds:
                return Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    async def nothing_comes(self, *kinds: int) -> bool:
        """Whether the client has sent none of these before it answers a ping sent now."""
        self.send(frame(PING, 0, 0, b"anyone?!"))
        return (await self.next(PING, *kinds)).kind == PING


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[int, asyncio.Queue[Peer]]]:
    """(port, the connections that come)."""
    peers: asyncio.Queue[Peer] = asyncio.Queue()
    kept: list[Peer] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept.append(Peer(reader, writer))
        peers.put_nowait(kept[-1])

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], peers
    finally:
        server.close()
        for peer in kept:
            peer.close()
