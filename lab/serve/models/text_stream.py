"""Tokens in, text out, as soon as it is certain: never half a character, nothing past a stop string.

A token may end inside a UTF-8 character, which then shows as U+FFFD until the next token completes it. And the first
letters of a stop string may or may not become one. Such text is held back until the following tokens decide.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

UNFINISHED = "\ufffd"


class TextStream:
    """The text of one answer. The pieces from `push` and the rest from `finish` make up the whole of it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._tokens: list[int] = []  # since the last token that was certain, and that one's own
        self._known = ""  # text of the certain ones among them
        self._held = ""  # whole characters that may begin a stop string
        self._certain = 0

    def push(self, token: int) -> tuple[str, bool]:
        """(text that became certain, whether a stop string ended the answer)."""
        self._tokens.append(token)
        return self._release(self._whole_characters())

    def finish(self) -> str:
        """What was held back, without the bytes of a character that never was completed."""
        rest = self._tokenizer.decode(self._tokens)[len(self._known) :].rstrip(UNFINISHED)
        text, stopped = self._release(rest)
        return text if stopped else text + self._held

    def _whole_characters(self) -> str:
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(UNFINISHED) or len(text) <= len(self._known):
            return ""
        new = text[len(self._known) :]
        # The tokens just told stay as context: some tokenizers write a word's leading space only after another word.
        self._tokens = self._tokens[self._certain :]
        self._known = self._tokenizer.decode(self._tokens)
        self._certain = len(self._tokens)
        return new

    def _release(self, new: str) -> tuple[str, bool]:
        text = self._held + new
        self._held = ""
        if not self._stop:
            return text, False
        if found := [at for at in map(text.find, self._stop) if at >= 0]:
            return text[: min(found)], True
        keep = max(_overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
