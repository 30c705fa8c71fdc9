"""HTTP/2's frames (RFC 9113): the numbers, and how bytes are laid out."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Types, flags, settings and error codes.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITISED = 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)
PROTOCOL_ERROR, REFUSED_STREAM, CANCEL = 0x1, 0x7, 0x8

LARGEST = 2**31 - 1
"""Largest window and largest stream number."""
DEFAULT_WINDOW, DEFAULT_FRAME = 65_535, 16_384

HEAD = struct.Struct(">BHBBL")
"""Length in 24 bits, type, flags, stream."""
WORD = struct.Struct(">L")
SETTING = struct.Struct(">HL")


class ProtocolError(Exception):
    """The server broke the protocol; the connection cannot go on."""


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a payload. A length above 24 bits is cut: no such frame is ever sent."""
    return HEAD.pack(length >> 16 & 0xFF, length & 0xFFFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream) + payload
