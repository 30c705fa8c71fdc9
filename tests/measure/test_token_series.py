"""Tokens land in the second in which they came, medians only where enough answers stand behind them."""

import numpy as np

from lab.measure.records import Requests, Streams
from lab.measure.token_series import TokenSeries

MS = 1_000_000


def answers(*rows):
    """Requests from (sent_ms, [(chunk_ms, tokens), …], outcome)."""
    sent = np.array([row[0] for row in rows], np.int64) * MS
    chunks = [row[1] for row in rows]
    flat = [chunk for own in chunks for chunk in own]
    streams = Streams(
        prompt_tokens=np.full(len(rows), 5),
        output_tokens=np.array([sum(tokens for _, tokens in own) for own in chunks]),
        reasoning_chunks=np.zeros(len(rows), np.int64),
        first=np.cumsum([0, *(len(own) for own in chunks)]),
        t_ns=np.array([at for at, _ in flat], np.int64) * MS,
        tokens=np.array([tokens for _, tokens in flat], np.int64),
    )
    done = np.array([own[-1][0] if own else row[0] for row, own in zip(rows, chunks, strict=True)], np.int64) * MS
    return Requests(sent, sent, done, np.array([row[2] for row in rows], np.uint8), streams=streams)


def test_tokens_are_counted_by_arrival_those_of_a_failed_answer_too():
    series = TokenSeries(0)
    series.add(answers((0, [(500, 2), (999, 1), (1000, 4)], 0), (0, [(1500, 3)], 5)))
    series.add(answers((0, [(100, 1), (2100, 1)], 0)))
    assert series.columns(3)["output_tokens_per_s"].tolist() == [4, 7, 1]


def test_medians_of_enough_answers_by_paper():
    series = TokenSeries(0)
    # First tokens after 10, 20 … 70 ms; then 2 tokens later by 100 ms, so 50 ms a token.
    series.add(answers(*((100, [(100 + 10 * n, 1), (200 + 10 * n, 2)], 0) for n in range(1, 8))))
    columns = series.columns(2)
    assert columns["ttft_p50_ms"].tolist() == [40, 40]
    assert columns["itl_p50_ms"].tolist() == [50, 50]


def test_six_answers_are_too_few_for_a_median_and_failed_ones_do_not_count():
    series = TokenSeries(0)
    series.add(answers(*((0, [(10, 1), (20, 1)], 0) for _ in range(6)), (0, [(10, 1)], 4)))
    columns = series.columns(1)
    assert np.isnan(columns["ttft_p50_ms"][0])
    assert np.isnan(columns["itl_p50_ms"][0])


def test_an_answer_of_one_chunk_has_no_time_between_tokens():
    series = TokenSeries(0)
    series.add(answers(*((0, [(10, 4)], 0) for _ in range(7))))
    columns = series.columns(1)
    assert columns["ttft_p50_ms"][0] == 10
    assert np.isnan(columns["itl_p50_ms"][0])


def test_nothing_streamed_is_all_empty():
    series = TokenSeries(0)
    empty = np.zeros(0, np.int64)
    series.add(Requests(empty, empty, empty, empty.astype(np.uint8)))
    assert series.columns(2)["output_tokens_per_s"].tolist() == [0, 0]
