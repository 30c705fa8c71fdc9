"""The pace of streamed answers, against loops over plain lists."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.measure.pace import arrivals, gaps, pace
from lab.measure.records import Window
from lab.measure.summary import summarize

MS = 1_000_000


@st.composite
def streamed(draw, answer):
    """An answer of up to six chunks in ascending time: perhaps reasoning first, uncounted, or broken off."""
    times = sorted(draw(st.lists(st.integers(1, 500), max_size=6)))
    chunks = [(at, draw(st.integers(1, 5))) for at in times]
    counted = draw(st.booleans())
    return answer(
        chunks,
        done=(times[-1] if times else 0) + draw(st.integers(0, 9)),
        outcome=draw(st.sampled_from(["ok", "ok", "truncated"])),
        counted=counted,
        total=None if counted else draw(st.one_of(st.none(), st.integers(1, 40))),
        reasoning=draw(st.integers(0, len(chunks))),
    )


@pytest.fixture(scope="session")
def some_answers(answer):
    return st.lists(streamed(answer), min_size=1, max_size=6)


@given(data=st.data())
def test_every_entry_is_what_its_chunks_say(some_answers, answers_of, data):
    rows = data.draw(some_answers)
    if not any(row.chunks for row in rows):
        return
    requests = answers_of(*rows)
    found = pace(requests)
    itl, ttft, ntpot = found.itl_s, found.ttft_s(requests.sent_ns), found.ntpot_s(requests.sent_ns)
    for i, row in enumerate(rows):
        times, held = [at for at, _ in row.chunks], [tokens for _, tokens in row.chunks]
        total = (sum(held) if row.counted else row.total) if row.chunks else (0 if row.counted else row.total)
        assert found.chunks[i] == len(times)
        assert found.tokens[i] == (-1 if total is None else total)
        assert found.first_ns[i] == (times[0] * MS if times else -1)
        assert found.visible_ns[i] == (times[row.reasoning] * MS if row.reasoning < len(times) else -1)
        assert math.isnan(ttft[i]) or ttft[i] == pytest.approx(times[0] / 1e3)
        later = sum(held[1:])
        assert math.isnan(itl[i]) == (not (row.counted and later))
        if row.counted and later:
            assert itl[i] == pytest.approx((times[-1] - times[0]) / later / 1e3)
            # The identity of TTFT, ITL and the last token (MEASUREMENT.md, S14).
            assert ttft[i] + later * itl[i] == pytest.approx(ntpot[i] * total)


@given(data=st.data())
def test_gaps_and_arrivals_are_those_of_each_answer_alone(some_answers, answers_of, data):
    rows = data.draw(some_answers)
    requests = answers_of(*rows)
    if requests.streams is None:
        return
    request, chunk, gap_ns = gaps(requests.streams)
    expected = [
        (i, (after[0] - before[0]) * MS)
        for i, row in enumerate(rows)
        for before, after in zip(row.chunks, row.chunks[1:], strict=False)
    ]
    assert list(zip(request.tolist(), gap_ns.tolist(), strict=True)) == expected
    assert (requests.streams.t_ns[chunk] - gap_ns >= 0).all()
    owner, tokens = arrivals(requests.streams)
    for i, row in enumerate(rows):
        whole = sum(n for _, n in row.chunks) if row.counted else (row.total or 0) if row.chunks else 0
        assert tokens[owner == i].sum() == pytest.approx(whole)


@given(data=st.data(), now_ms=st.integers(0, 600))
def test_a_live_summary_is_that_of_the_answers_that_have_ended(some_answers, answers_of, data, now_ms):
    rows = data.draw(some_answers)
    ended = [row for row in rows if row.done <= now_ms]
    window = Window(0, 0, 1000 * MS)

    def live(some):
        return summarize(answers_of(*some), window=window, planned=None, slo=None, now_ns=now_ms * MS)

    if any(row.chunks for row in ended):
        assert live(rows) == live(ended)


def test_a_table_in_pieces_reads_as_one(answers_of, answer):
    """Load workers flush once a second, so a column has many chunks of its own kind."""
    import pyarrow as pa

    from lab.measure.records import REQUESTS, Requests

    rows = [answer([(1, 2), (3, 4)]), answer([(5, 6)], counted=False, total=6), answer([], done=7)]
    pieces = [pa.Table.from_pylist([row.row(n)], schema=REQUESTS) for n, row in enumerate(rows)]
    one, whole = Requests.from_table(pa.concat_tables(pieces)).streams, answers_of(*rows).streams
    for name in ("prompt_tokens", "output_tokens", "reasoning_chunks", "first", "t_ns", "tokens"):
        assert np.array_equal(getattr(one, name), getattr(whole, name)), name
    assert whole.tokens.tolist() == [2, 4, -1]
