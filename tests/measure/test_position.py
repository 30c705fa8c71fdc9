"""Time per token against its place in the answer, by paper arithmetic."""

import pytest

from lab.measure.position import Bucket, along, by_position, memory_held
from lab.measure.records import Window

MS = 1_000_000


def rising(answer, start_ms=0.0, tokens=9):
    """The n-th token takes n ms."""
    at, chunks = start_ms, []
    for n in range(1, tokens + 1):
        at += n
        chunks.append((at, 1))
    return answer(chunks, due=start_ms)


def test_each_place_has_the_wait_of_its_token(answers_of, answer, window_of):
    found = by_position(answers_of(*[rising(answer, 100.0 * n) for n in range(5)]), window_of(1000), buckets=4)
    assert [(b.first, b.last, b.n) for b in found] == [(2, 3, 10), (4, 5, 10), (6, 7, 10), (8, 9, 10)]
    assert [b.median_s for b in found] == pytest.approx([0.0025, 0.0045, 0.0065, 0.0085])


def test_half_of_the_waits_lie_between_the_bounds(answers_of, answer, window_of):
    answers = [answer([(100 * n, 1), (100 * n + wait, 1)], due=100 * n) for n, wait in enumerate([10, 20, 30, 40, 50])]
    assert by_position(answers_of(*answers), window_of(1000)) == [
        Bucket(2, 2, pytest.approx(0.030), pytest.approx(0.020), pytest.approx(0.040), 5)
    ]


def test_a_chunk_of_several_tokens_shares_its_wait(answers_of, answer, window_of):
    """4 tokens, then 3 after 90 ms: the seventh took 30 ms."""
    assert by_position(answers_of(answer([(100, 4), (190, 3)])), window_of(1000), buckets=1) == [
        Bucket(2, 7, pytest.approx(0.030), pytest.approx(0.030), pytest.approx(0.030), 1)
    ]


def test_tokens_of_the_warm_up_and_of_answers_that_broke_off_do_not_count(answers_of, answer, window_of):
    early = answer([(10, 1), (500, 1)], due=0)
    broken = answer([(1100, 1), (1500, 1)], due=1000, outcome="truncated")
    good = answer([(1200, 1), (1210, 1)], due=1100)
    found = by_position(answers_of(early, broken, good), window_of(2000, 1000))
    assert [(b.median_s, b.n) for b in found] == [(pytest.approx(0.010), 1)]


def test_the_later_part_of_an_answer_that_began_in_the_warm_up_counts(answers_of, answer, window_of):
    """Long answers may all begin there: tokens 6 to 9 come at 21, 28, 36 and 45 ms."""
    found = by_position(answers_of(rising(answer)), window_of(1000, 20), buckets=1)
    assert [(b.median_s, b.n) for b in found] == [(pytest.approx(0.0075), 4)]


def test_chunks_nobody_counted_have_no_place(answers_of, answer, window_of):
    uncounted = answer([(100, 1), (900, 1)], total=7, counted=False)
    assert by_position(answers_of(uncounted), window_of(1000)) == []
    assert by_position(answers_of(uncounted, answer([(0, 1), (5, 1)])), window_of(1000))[0].median_s == 0.005


def test_blocks_are_pooled_each_within_its_own_window(answers_of, answer, window_of):
    """10 ms in the one, 30 in the other; 99 in its warm-up."""
    one = (answers_of(answer([(0, 1), (10, 1)])), window_of(1000))
    other = (answers_of(answer([(0, 1), (99, 1)]), answer([(1000, 1), (1030, 1)], due=1000)), window_of(2000, 500))
    assert [(b.median_s, b.n) for b in along([one, other])] == [(pytest.approx(0.020), 2)]


def test_nothing_streamed_has_no_places(requests_of, window_of):
    assert by_position(requests_of([(0, 0, 5, "ok")]), window_of(1000)) == []


def test_tokens_held_meet_the_nearest_memory(server_table, telemetry_table, window_of):
    server = server_table(
        {
            0: {"engine_cache_tokens_used": 0},
            1000: {"engine_cache_tokens_used": 500},
            9000: {"engine_cache_tokens_used": 800},
            20_000: {"engine_cache_tokens_used": 1},
        },
        "llm",
    )
    telemetry = telemetry_table(
        [
            (100, "model:llm", "memory_bytes", 500e6),
            (700, "model:llm", "memory_bytes", 510e6),
            (1200, "model:llm", "memory_bytes", 512e6),
            (1100, "model:other", "memory_bytes", 1.0),
            (1001, "model:llm", "memory_bytes", "gone"),
        ]
    )
    found = memory_held(server, telemetry, "llm", window_of(10_000))
    assert [(held.t_ns // MS, held.tokens, held.memory_bytes) for held in found] == [(0, 0, 500e6), (1000, 500, 512e6)]


def test_memory_from_before_the_block_is_of_another_process(server_table, telemetry_table):
    """Two processes until 900 ms, when the replaced one ended; the block begins at 1,000 with one."""
    server = server_table({1050: {"engine_cache_tokens_used": 16}}, "llm")
    readings = [(900, "model:llm", "memory_bytes", 1.3e9), (1400, "model:llm", "memory_bytes", 0.6e9)]
    window = Window(1000 * MS, 1000 * MS, 5000 * MS)
    (held,) = memory_held(server, telemetry_table(readings), "llm", window)
    assert held.memory_bytes == 0.6e9
