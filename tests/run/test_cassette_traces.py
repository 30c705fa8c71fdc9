"""Traces in a cassette come back to a microsecond, in Triton's form; stamps in events move together."""

import pytest

from lab.measure.trace import STAMPS, read_traces
from lab.run import cassette_lines, cassette_traces

ORIGIN = 7_000_000_000
STAMPED = {
    40: tuple(ORIGIN + 1_000 * t for t in (10, 12, 50, 51, 90, 91, 95)),
    41: tuple(ORIGIN + 1_000 * t for t in (20, 22, 50, 51, 90, 92, 96)),  # in one batch with the first
    48: tuple(ORIGIN + 1_000 * t + 300 for t in (60, 61, 100, 102, 140, 141, 150)),
}


def test_what_is_read_is_what_was_traced() -> None:
    block, text = cassette_traces.text(cassette_traces.line(STAMPED, 3, "digits", ORIGIN))
    assert block == 3
    read = read_traces([text], "digits")
    assert read.lacking == {} and read.broken == 0 and set(read.stamps) == set(STAMPED)
    for number, stamps in STAMPED.items():
        off = [was - ORIGIN - now for was, now in zip(stamps, read.stamps[number], strict=True)]
        assert max(map(abs, off)) <= 500
    begin = STAMPS.index("COMPUTE_START")
    assert read.stamps[40][begin] == read.stamps[41][begin] != read.stamps[48][begin]
    assert read_traces([text], "another").stamps == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block", True),
        ("block", -1),
        ("model", 5),
        ("request", [1]),
        ("after", [[1, 1, 1]] * 5),
        ("first", [0.5, 1, 1]),
    ],
)
def test_what_makes_no_sense_is_refused(field: str, value: object) -> None:
    line = cassette_traces.line(STAMPED, 3, "digits", ORIGIN)
    with pytest.raises(ValueError, match="traces"):
        cassette_traces.text({**line, field: value})


def test_every_stamp_of_an_event_moves_and_no_duration_does() -> None:
    stages = [{"begin_ns": 1, "end_ns": 2, "name": "read"}]
    event = {"kind": "x", "t_ns": 5, "waited_ns": 9, "asked_ns": 3, "done_ns": 4, "stages": stages}
    assert cassette_lines.moved(event, 10) == {
        "kind": "x", "t_ns": 15, "waited_ns": 9, "asked_ns": 13, "done_ns": 14,
        "stages": [{"begin_ns": 11, "end_ns": 12, "name": "read"}],
    }  # fmt: skip
