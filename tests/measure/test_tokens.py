"""Token figures against paper arithmetic: the shared cases T1, T2, T8, T9, T22, T26, T36, P8 and P24."""

import json

import numpy as np
import pytest

from lab.measure.summary import Summary, summarize
from lab.spec import Slo

MS = 1_000_000
GOLDEN = [(100, 4), (200, 3), (300, 3)]


@pytest.fixture
def summary_of(answers_of, window_of):
    """The summary of answers over a window of 10 s unless given."""

    def summary(*answers, window=None, **arguments) -> Summary:
        arguments = {"planned": len(answers), "slo": None, **arguments}
        return summarize(answers_of(*answers), window=window or window_of(10_000), **arguments)

    return summary


def test_chunks_of_4_3_3_tokens_are_three_arrivals_of_ten_tokens(summary_of, answer):
    summary = summary_of(*[answer(GOLDEN)] * 7)
    assert summary.ttft_mean_s == summary.ttft_p50_s == pytest.approx(0.100)
    assert summary.itl_mean_s == summary.itl_p50_s == pytest.approx(0.200 / 6)
    assert summary.icl_mean_s == summary.icl_p50_s == pytest.approx(0.100)
    assert summary.ntpot_mean_s == pytest.approx(0.300 / 10)
    assert summary.decode_tokens_per_s_user == pytest.approx(30)
    assert summary.output_tokens == 70
    assert summary.output_tokens_per_s == pytest.approx(7)
    assert (summary.prompt_tokens_mean, summary.output_tokens_mean) == (5, 10)


def test_an_answer_in_one_chunk_has_no_time_between_tokens(summary_of, answer):
    summary = summary_of(*[answer([(160, 16)])] * 7)
    assert summary.ttft_mean_s == summary.latency_mean_s == pytest.approx(0.160)
    assert summary.output_tokens_mean == 16
    for name in ("itl_mean_s", "itl_p50_s", "icl_mean_s", "decode_tokens_per_s_user"):
        assert getattr(summary, name) is None
        assert "chunk" in summary.notes[name]


def test_chunks_of_1_4_1_4_and_1_after_100_ms(summary_of, answer):
    """P24: 11 tokens; TTFT + (N - n_1) × ITL is the arrival of the last; the gaps are gaps of chunks."""
    summary = summary_of(answer([(100, 1), (150, 4), (200, 1), (250, 4), (300, 1)]))
    assert summary.output_tokens == 11
    assert summary.itl_mean_s == pytest.approx(0.200 / 10)
    assert summary.ttft_mean_s + 10 * summary.itl_mean_s == pytest.approx(0.300)
    assert summary.icl_mean_s == pytest.approx(0.050)


def test_first_token_counts_from_the_send_and_latency_from_the_schedule(summary_of, answer):
    """T8 after the client's parsing: the role and the empty chunk are no rows, the first token comes 200 ms after."""
    summary = summary_of(*[answer([(1200, 1), (1300, 1)], due=500, sent=1000)] * 7)
    assert summary.ttft_p50_s == pytest.approx(0.200)
    assert summary.latency_p50_s == pytest.approx(0.800)
    assert summary.ntpot_mean_s == pytest.approx(0.150)


def test_reasoning_is_the_first_token_and_the_first_word_comes_later(summary_of, answer):
    thinking = [(50, 1), (1000, 1), (2000, 1), (2050, 1)]
    summary = summary_of(*[answer(thinking, reasoning=2)] * 7)
    assert summary.ttft_p50_s == pytest.approx(0.050)
    assert summary.ttfo_p50_s == pytest.approx(2.0)
    assert summary.output_tokens == 28


def test_without_reasoning_the_first_word_is_the_first_token(summary_of, answer):
    summary = summary_of(*[answer(GOLDEN)] * 7)
    assert summary.ttfo_p50_s is None
    assert "time to first token" in summary.notes["ttfo_p50_s"]


def test_tokens_of_answers_that_were_given_up_count_by_arrival(summary_of, answer, window_of):
    """T22: 60 s, answers of 50 s at a token a second; one starts at 0, one at 30 and is stopped at 60."""
    whole = answer([(1000 * (second + 1), 1) for second in range(50)])
    stopped = answer(
        [(30_000 + 1000 * (second + 1), 1) for second in range(29)], due=30_000, done=60_000, outcome="cancelled"
    )
    summary = summary_of(whole, stopped, window=window_of(60_000))
    assert summary.output_tokens == 50 + 29
    assert summary.output_tokens_incomplete == 29
    assert summary.output_tokens_per_s == pytest.approx(79 / 60)
    assert summary.output_tokens_mean == 50  # of what succeeded


def test_only_tokens_that_arrive_inside_the_window_count(summary_of, answer, window_of):
    """One token each at 900, 1000, 1999 and 2000 ms; the window is [1000, 2000)."""
    spread = answer([(900, 1), (1000, 1), (1999, 1), (2000, 1)])
    assert summary_of(spread, window=window_of(2000, 1000)).output_tokens == 2


def test_tokens_are_those_of_the_server(summary_of, answer):
    """T26: ten chunks of a token; what a tokenizer would make of each text is asked nowhere."""
    summary = summary_of(answer([(10 * n, 1) for n in range(1, 11)], total=10))
    assert summary.output_tokens == summary.output_tokens_mean == 10


def test_a_total_without_counts_by_chunk_gives_a_rate_and_no_pace(summary_of, answer, window_of):
    """30 tokens in 3 chunks that nobody counted: 10 each, so 20 in a window that holds two of the chunks."""
    unsplit = answer(GOLDEN, total=30, counted=False)
    assert summary_of(unsplit).output_tokens == 30
    assert summary_of(unsplit, window=window_of(250)).output_tokens == 20
    summary = summary_of(unsplit)
    assert summary.output_tokens_mean == 30
    assert summary.ntpot_mean_s == pytest.approx(0.010)
    assert summary.itl_mean_s is None
    assert "how many each chunk held" in summary.notes["itl_mean_s"]


def test_tokens_nobody_counted_are_not_measured_and_named(summary_of, answer):
    unknown = answer(GOLDEN, counted=False)
    summary = summary_of(unknown)
    assert summary.output_tokens is None
    assert summary.output_tokens_per_s is None
    assert summary.ttft_mean_s == pytest.approx(0.1)
    mixed = summary_of(unknown, answer(GOLDEN))
    assert mixed.output_tokens == 10
    assert [p.text for p in mixed.problems if p.code == "tokens_uncounted"] == [
        "1 answer came without the server's own count of tokens: token figures are those of the others."
    ]


def test_an_answer_of_no_tokens_ends_normally(summary_of, answer):
    """P8: the model answers nothing and says so by its final flag; T36: that final reply is no token."""
    summary = summary_of(answer([], done=80))
    assert (summary.ok, summary.output_tokens, summary.output_tokens_mean) == (1, 0, 0)
    assert summary.ttft_mean_s is None


def test_five_responses_are_one_request(summary_of, answer):
    summary = summary_of(answer([(10 * n, 1) for n in range(1, 6)], done=55))
    assert (summary.ok, summary.output_tokens) == (1, 5)


def test_an_answer_that_broke_off_enters_no_time(summary_of, answer):
    """T6: three tokens, then the stream breaks; they are tokens that came, of no answer."""
    broken = answer([(5000, 1), (5001, 1), (5002, 1)], outcome="truncated")
    summary = summary_of(broken, *[answer(GOLDEN)] * 7)
    assert summary.ttft_mean_s == pytest.approx(0.1)
    assert summary.itl_mean_s == pytest.approx(0.2 / 6)
    assert (summary.output_tokens, summary.output_tokens_incomplete) == (73, 3)


def test_no_percentile_of_too_few(summary_of, answer):
    summary = summary_of(*[answer(GOLDEN)] * 30)
    assert summary.ttft_p99_s is None
    assert summary.notes["ttft_p99_s"] == "needs 459 successes, has 30; largest seen 100 ms"
    assert summary.notes["itl_p95_s"] == "needs 90 answers with several chunks, has 30; largest seen 33.3 ms"


def test_the_interval_of_the_first_token_is_that_of_order_statistics(summary_of, answer):
    """Of 100 distinct independent values, the 40th and the 61st bound the median with 95 % (binomial tables)."""
    rng = np.random.default_rng(0)
    waits = rng.permutation(np.arange(1, 101)).tolist()
    summary = summary_of(*[answer([(n * 90 + wait, 1)], due=n * 90) for n, wait in enumerate(waits)])
    assert summary.ttft_p50_s == pytest.approx(0.0505)
    assert summary.ttft_p50_low_s <= 0.040
    assert summary.ttft_p50_high_s >= 0.061


def test_a_live_summary_counts_answers_that_have_ended(summary_of, answer):
    """An answer that is still being written has no record, so arrivals would miss its tokens and read too low."""
    early, late = answer(GOLDEN), answer([(1100, 1), (2900, 5)], due=1000)
    live = summary_of(early, late, now_ns=1500 * MS)
    assert live.output_tokens == 10
    assert live.output_tokens_per_s == pytest.approx(10 / 1.5)


def test_requests_that_stream_nothing_have_no_token_figures(requests_of, window_of):
    rows = [(10 * i, 10 * i, 10 * i + 5, "ok") for i in range(100)]
    summary = summarize(requests_of(rows), window=window_of(1000), planned=100, slo=None)
    assert summary.output_tokens is None
    assert summary.notes["itl_mean_s"] == "no answer was streamed"


def test_a_kept_summary_is_the_same_and_an_older_one_lacks_the_tokens(summary_of, answer):
    summary = summary_of(*[answer(GOLDEN)] * 7)
    kept = json.loads(json.dumps(summary.to_dict()))
    assert Summary.from_dict(kept) == summary
    del kept["ttft_p50_s"]
    assert Summary.from_dict(kept).ttft_p50_s is None


def test_few_long_answers_hold_enough_tokens_to_compare(summary_of, answer):
    """Three answers are too few for any percentile, but 600 tokens of them have a rate."""
    long, short = [answer([(20 * (n + 1), 1) for n in range(200)])] * 3, [answer(GOLDEN)] * 3
    (few,) = [p for p in summary_of(*long).problems if p.code == "too_few_samples"]
    assert not few.forbids_verdict
    (few,) = [p for p in summary_of(*short).problems if p.code == "too_few_samples"]
    assert few.forbids_verdict


# --- the objective -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft_s=0.1), 1),
        (Slo(ttft_s=0.099), 0),
        (Slo(itl_s=0.034), 1),
        (Slo(itl_s=0.033), 0),
        (Slo(ttft_s=0.1, itl_s=0.033), 0),
        (Slo(latency_s=0.3, ttft_s=0.1, itl_s=0.034), 1),
        (Slo(latency_s=0.29, ttft_s=0.1, itl_s=0.034), 0),
    ],
)
def test_good_is_within_every_limit(summary_of, answer, slo, good):
    assert summary_of(answer(GOLDEN), slo=slo).slo_attainment_fraction == good


def test_the_limit_on_the_first_token_counts_from_the_schedule(summary_of, answer):
    late = answer([(250, 1)], due=0, sent=200)
    assert summary_of(late, slo=Slo(ttft_s=0.1)).goodput_rps == 0


def test_a_single_chunk_passes_a_limit_between_tokens_and_no_other(summary_of, answer):
    assert summary_of(answer([(160, 16)]), slo=Slo(itl_s=0.001)).slo_attainment_fraction == 1
    assert summary_of(answer([(160, 16)]), slo=Slo(itl_s=0.001, ttft_s=0.1)).slo_attainment_fraction == 0


def test_limits_are_compared_within_one_request(summary_of, answer):
    """MEASUREMENT 2.2, 8: (500, one token), (50, 100 a token), (500, 10 a token) against 100 and 50: none is good."""
    rows = [answer([(500, 1)]), answer([(50, 1), (150, 1)]), answer([(500, 1), (510, 1)])]
    assert summary_of(*rows, slo=Slo(ttft_s=0.1, itl_s=0.05)).goodput_rps == 0


def test_an_answer_that_is_not_streamed_shows_its_first_token_at_its_end(requests_of, window_of):
    rows = [(0, 0, 50, "ok"), (0, 0, 150, "ok")]
    summary = summarize(requests_of(rows), window=window_of(1000), planned=2, slo=Slo(ttft_s=0.1))
    assert summary.slo_attainment_fraction == 0.5


def test_good_tokens_are_those_of_answers_within_every_limit(summary_of, answer):
    """Of three answers of ten tokens one begins too late and one breaks off: 10 good tokens in 10 s, 30 in all."""
    slow = [(2_100, 4), (2_200, 3), (2_300, 3)]
    given = (answer(GOLDEN), answer(slow), answer(GOLDEN, outcome="truncated"))
    summary = summary_of(*given, slo=Slo(ttft_s=1.0))
    assert summary.output_tokens_per_s == pytest.approx(3)
    assert summary.good_tokens_per_s == pytest.approx(1)
    assert summary_of(*given, slo=Slo(ttft_s=0.05)).good_tokens_per_s == 0
    without = summary_of(*given)
    assert without.good_tokens_per_s is None
    assert without.notes["good_tokens_per_s"] == "no objective is given"


def test_failures_alone_make_no_throughput(summary_of, answer):
    """Tokens came, and every answer broke off: how many is told, a rate is not."""
    alone = summary_of(answer(GOLDEN, outcome="truncated"))
    assert (alone.output_tokens, alone.output_tokens_incomplete, alone.output_tokens_per_s) == (10, 10, None)
    assert alone.notes["output_tokens_per_s"] == "every answer that wrote tokens failed"
    assert summary_of(answer(GOLDEN, outcome="truncated"), answer(GOLDEN)).output_tokens_per_s > 0
