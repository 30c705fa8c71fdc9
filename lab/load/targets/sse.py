"""Server-sent events (the WHATWG's "event stream"), from bytes that are cut anywhere.

Only what events hold is kept: comments, names, ids and retry times are read over, as no server of language models
says anything in them that a measurement needs.
"""

from __future__ import annotations


class Events:
    """One stream of them."""

    def __init__(self) -> None:
        self._rest = bytearray()  # the start of a line
        self._data: list[bytes] = []  # lines of the event that is not yet whole
        self._after_return = False  # the last byte was a CR, of which a LF may be the other half

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that these bytes complete; of several lines, joined by LF. An event that has not been
        completed when the stream ends never was one."""
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        self._after_return = data.endswith(b"\r") or (self._after_return and not data)
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in data:  # a line of megabytes comes in hundreds of parts
            self._rest += data
            return []
        *lines, rest = (bytes(self._rest) + data).split(b"\n")
        self._rest = bytearray(rest)
        events = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events
