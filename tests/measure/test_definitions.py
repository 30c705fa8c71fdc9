"""One stream, many answers: what each tool would print for it (MEASUREMENT.md 2.3), by paper arithmetic."""

import pytest

from lab.errors import InputError
from lab.measure.definitions import FIGURES, WHY, rescore

GOLDEN = [(100, 4), (200, 3), (300, 3)]


@pytest.mark.parametrize(
    ("tool", "itl_ms", "median_ms", "tpot_ms"),
    [
        ("lab", 200 / 6, 200 / 6, None),
        ("vLLM", 100, 100, 200 / 9),
        ("AIPerf", 200 / 9, 200 / 9, None),
        ("GuideLLM", 200 / 9, 200 / 9, 30),
        ("LLMPerf", 100, 100, None),
        ("inference-perf", 200 / 9, 0, 200 / 9),
    ],
)
def test_ten_tokens_in_chunks_of_4_3_3(answers_of, answer, window_of, tool, itl_ms, median_ms, tpot_ms):
    scored = rescore(answers_of(answer(GOLDEN)), window_of(1000), tool)
    assert scored["ttft_mean_s"] == pytest.approx(0.1)
    assert scored["itl_mean_s"] == pytest.approx(itl_ms / 1000)
    assert scored["itl_p50_s"] == pytest.approx(median_ms / 1000)
    assert scored["tpot_mean_s"] == (None if tpot_ms is None else pytest.approx(tpot_ms / 1000))


def test_long_answers_weigh_more_for_some(answers_of, answer, window_of):
    """Answers of 2 tokens 100 ms apart and of 11 tokens 10 ms apart: one value each, one a token, or one a gap."""
    short = answer([(50, 1), (150, 1)])
    long = answer([(50 + 10 * n, 1) for n in range(11)])
    requests, window = answers_of(short, long), window_of(1000)
    itl = {tool: rescore(requests, window, tool)["itl_mean_s"] for tool in WHY}
    assert itl["lab"] == itl["AIPerf"] == pytest.approx((0.100 + 0.010) / 2)
    assert itl["GuideLLM"] == itl["vLLM"] == itl["inference-perf"] == pytest.approx((0.100 + 10 * 0.010) / 11)
    # The wait for the first is in: 150 ms over 2 chunks, 150 ms over 11.
    assert itl["LLMPerf"] == pytest.approx((0.075 + 0.150 / 11) / 2)


def test_rates_divide_by_different_times(answers_of, answer, window_of):
    """10 tokens of a success from 1000 to 1300 ms, 3 of a failure that ends at 1600, a window of 2 s."""
    good = answer([(at + 1000, n) for at, n in GOLDEN], due=1000)
    broken = answer([(1500, 3)], due=1100, done=1600, outcome="truncated")
    requests, window = answers_of(good, broken), window_of(2000)
    rate = {tool: rescore(requests, window, tool)["tokens_per_s"] for tool in WHY}
    assert rate["lab"] == pytest.approx(13 / 2.0)
    assert rate["vLLM"] == rate["AIPerf"] == rate["GuideLLM"] == rate["inference-perf"] == pytest.approx(10 / 0.3)
    assert rate["LLMPerf"] == pytest.approx(10 / 0.6)


@pytest.mark.parametrize("tool", WHY)
def test_what_each_makes_of_16_tokens_in_one_chunk(answers_of, answer, window_of, tool):
    scored = rescore(answers_of(answer([(160, 16)])), window_of(1000), tool)
    assert scored["ttft_mean_s"] == pytest.approx(0.16)
    expected = {"LLMPerf": 0.16, "AIPerf": 0, "GuideLLM": 0, "inference-perf": 0}.get(tool)
    assert scored["itl_mean_s"] == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("tool", WHY)
def test_nothing_known_is_none(answers_of, answer, window_of, requests_of, tool):
    nothing = dict.fromkeys(FIGURES)
    assert rescore(requests_of([(0, 0, 10, "ok")]), window_of(1000), tool) == nothing
    assert rescore(answers_of(answer(GOLDEN, outcome="truncated")), window_of(1000), tool) == nothing


def test_another_tool_is_refused_by_name(answers_of, answer, window_of):
    with pytest.raises(InputError, match='did you mean "vLLM"'):
        rescore(answers_of(answer(GOLDEN)), window_of(1000), "vLM")


@pytest.mark.parametrize("tool", WHY)
def test_answers_that_were_not_streamed_have_a_rate_alone(answers_of, answer, window_of, tool):
    scored = rescore(answers_of(answer([(160, 16)])), window_of(1000), tool, streamed=False)
    assert scored.pop("tokens_per_s") > 0 and set(scored.values()) == {None}
