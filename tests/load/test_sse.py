"""The parser of server-sent events; section numbers are those of the WHATWG's "Server-sent events"."""

from itertools import combinations

import pytest

from lab.load.targets.sse import Events

STREAM = (
    b': hello\r\nevent: token\r\nid: 7\r\ndata: {"a": 1}\r\n\r\n'
    b"data:two\ndata: lines\n\n\n: idle\n\ndata\n\ndata: [DONE]\r\r"
)
EVENTS = [b'{"a": 1}', b"two\nlines", b"", b"[DONE]"]


def fed(*parts: bytes) -> list[bytes]:
    events = Events()
    return [event for part in parts for event in events.feed(part)]


def test_events_are_their_data_lines() -> None:
    assert fed(STREAM) == EVENTS


def test_a_stream_cut_anywhere_holds_the_same_events() -> None:
    for first, second in combinations(range(len(STREAM) + 1), 2):
        assert fed(STREAM[:first], STREAM[first:second], STREAM[second:]) == EVENTS
    assert fed(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


def test_bytes_that_are_not_there_change_nothing() -> None:
    assert fed(b"data: a\r", b"", b"\ndata: b\r\n\r", b"", b"\n") == [b"a\nb"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_told_with_its_last_byte(end: bytes) -> None:  # the stamp of a chunk hangs on it
    events = Events()
    assert events.feed(b"data: a" + end) == []
    assert events.feed(end) == [b"a"]


def test_only_the_first_space_is_syntax() -> None:  # 9.2.6
    assert fed(b"data:  a\n\ndata:b \n\n") == [b" a", b"b "]


def test_fields_whose_names_begin_alike_are_others() -> None:
    assert fed(b"database: x\ndata2\nretry: 10\n\n") == []


def test_an_event_without_its_empty_line_never_was_one() -> None:  # 9.2.6
    assert fed(b"data: whole\n\ndata: torn\n") == [b"whole"]
