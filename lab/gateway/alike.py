"""Responses of one stream that differ in their text alone, read without protobuf.

A model that writes token by token sends the same message again and again: names, shapes, request id and counts are the
same bytes, and only the text and the lengths around it change. To parse all of it costs as much as everything else
that the gateway does with a token; to see that it is alike is two comparisons of bytes.

    ModelStreamInferResponse   0x12 LENGTH …before… 0x32 LENGTH [4 bytes of length, the text] …after…

Fields are written in the order of their numbers (protobuf's "Encoding"; 6, the raw contents, is ModelInferResponse's
last), so everything behind the text is contents of other outputs. What is not alike is for who asks to parse.
"""

from __future__ import annotations

from typing import Any

INFER_RESPONSE, RAW_CONTENTS = 0x12, 0x32
"""Field 2 of ModelStreamInferResponse and field 6 of ModelInferResponse, both of them length-delimited."""
ONE_BYTE = 0x80
"""Lengths below take one byte."""
LENGTH_BYTES = 4
"""Before each text of a tensor."""


class Alike:
    """Knows one message, which held `tokens`."""

    __slots__ = ("_after", "_before", "_least", "tokens")

    def __init__(self, before: bytes, after: bytes, tokens: int) -> None:
        self._before, self._after, self.tokens = before, after, tokens
        self._least = 2 + len(before) + 1 + LENGTH_BYTES + len(after)

    @classmethod
    def of(cls, data: bytes, response: Any, tokens: int) -> Alike | None:
        """From a message and what it was parsed to; None for one whose first output is not a short text, or that is
        laid out otherwise."""
        contents = response.raw_output_contents
        if not contents or response.outputs[0].name != "text_output" or data[0] != INFER_RESPONSE:
            return None
        sizes = [len(content) for content in contents]
        at = len(data) - sum(sizes) - 2 * len(sizes)  # of the first of them
        begin, text = _begin(data), at + 2
        as_thought = data[at:text] == bytes((RAW_CONTENTS, sizes[0])) if max(sizes) < ONE_BYTE else False
        if not as_thought or at < begin or data[text : text + sizes[0]] != contents[0]:
            return None
        return cls(data[begin : at + 1], data[text + sizes[0] :], tokens)

    def text(self, data: bytes) -> str | None:
        """Of a message that is alike; None for one that is not. ValueError for a text that is no UTF-8."""
        if len(data) < self._least or data[0] != INFER_RESPONSE:
            return None
        at = _begin(data)
        if not data.startswith(self._before, at) or not data.endswith(self._after):
            return None
        at += len(self._before)
        stop = len(data) - len(self._after)
        size = stop - at - 1
        if size >= ONE_BYTE or data[at] != size:
            return None
        return data[at + 1 + LENGTH_BYTES : stop].decode()


def _begin(data: bytes) -> int:
    """Behind the length of the whole, which takes one byte or two in a message of a short text."""
    return 2 if data[1] < ONE_BYTE else 3
