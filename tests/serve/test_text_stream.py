"""Text that comes out while tokens go in: whole characters, and nothing of a stop string."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lab.serve.models.text_stream import TextStream


def pieces(tokenizer: Any, tokens: list[int], stop: tuple[str, ...] = ()) -> list[str]:
    stream, told = TextStream(tokenizer, stop), []
    for token in tokens:
        text, stopped = stream.push(token)
        told.append(text)
        if stopped:
            return told
    return [*told, stream.finish()]


@given(st.text(max_size=12))
def test_no_piece_ever_holds_half_a_character(tiny_tokenizer: Any, text: str) -> None:
    """The tiny tokenizer cuts every character into its bytes, so each one above 127 is in question."""
    told = pieces(tiny_tokenizer, tiny_tokenizer.encode(text).ids)
    assert "".join(told) == text.rstrip("\ufffd")  # a character that says "damaged" is held to the end, then dropped
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in told)


@given(st.lists(st.integers(0, 256), max_size=30))
def test_any_bytes_come_out_as_the_tokenizer_reads_them(tiny_tokenizer: Any, tokens: list[int]) -> None:
    assert "".join(pieces(tiny_tokenizer, tokens)) == tiny_tokenizer.decode(tokens).rstrip("\ufffd")


def test_a_character_comes_with_its_last_byte(tiny_tokenizer: Any) -> None:
    assert pieces(tiny_tokenizer, tiny_tokenizer.encode("a漢b").ids) == ["a", "", "", "漢", "b", ""]


def test_a_character_cut_off_by_the_end_is_left_out(tiny_tokenizer: Any) -> None:
    assert pieces(tiny_tokenizer, tiny_tokenizer.encode("a漢").ids[:-1]) == ["a", "", "", ""]


@given(text=st.text("abc", max_size=30), stop=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=2))
def test_the_text_ends_before_the_first_stop_string(tiny_tokenizer: Any, text: str, stop: list[str]) -> None:
    """Letter by letter: the answer ends as soon as the letters so far contain a stop string, and before it."""
    expected = text
    for end in range(1, len(text) + 1):
        if found := [text[:end].find(s) for s in stop if s in text[:end]]:
            expected = text[: min(found)]
            break
    told = pieces(tiny_tokenizer, tiny_tokenizer.encode(text).ids, tuple(stop))
    assert "".join(told) == expected


def test_only_what_may_become_a_stop_string_is_held_back(tiny_tokenizer: Any) -> None:
    assert pieces(tiny_tokenizer, tiny_tokenizer.encode("xENx").ids, ("END",)) == ["x", "", "", "ENx", ""]
