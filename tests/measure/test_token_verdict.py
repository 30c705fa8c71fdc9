"""Verdicts on language models: simulated answers whose pace was put in, told in words."""

import dataclasses
import re

import numpy as np
import pytest

from lab.measure.compare import compare
from lab.measure.records import OK, Requests, Streams, Window
from lab.measure.summary import summarize
from lab.measure.verdict import CellResult, verdict
from lab.spec import ClosedLoop, Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload

S = 1_000_000_000
PROMPT, ANSWER, CACHE = "workload.prompt_tokens", "workload.output_tokens", "model.kv_cache"
LOAD, SCHEDULER = "workload.arrival.saturation_fraction", "model.scheduler"


def block(due_s, ttft_s, token_s, tokens, seconds):
    """Answers of `tokens` tokens in chunks of one; `token_s(k)`: how long the k-th took, from the second on."""
    n = len(due_s)
    rng = np.random.default_rng([n, tokens])
    waits = np.array([0.0, *(token_s(k) for k in range(2, tokens + 1))])
    noise = rng.normal(1, 0.01, (n, 1))
    at_s = np.asarray(due_s)[:, None] + (np.reshape(ttft_s, (-1, 1)) + np.cumsum(waits)[None, :]) * noise
    t_ns = np.round(at_s * S).astype(np.int64)
    due = np.round(np.asarray(due_s) * S).astype(np.int64)
    counts = np.full(n, tokens)
    streams = Streams(
        counts, counts, np.zeros(n, np.int64), np.arange(n + 1) * tokens, t_ns.ravel(), np.ones(n * tokens, np.int64)
    )
    return Requests(due, due, t_ns[:, -1], np.full(n, OK, np.uint8), streams=streams), Window(0, 0, seconds * S)


def result(factors, blocks, slo, **fields):
    summaries = [
        dataclasses.replace(
            summarize(requests, window=window, planned=None, slo=slo, closed_loop=CACHE in factors), **fields
        )
        for requests, window in blocks
    ]
    return CellResult(factors, blocks, summaries)


# --- the KV cache ------------------------------------------------------------------------------------------------

KV = Experiment(
    id="kv_cache",
    question="?",
    hypothesis="!",
    model=ModelSpec(name="llm"),
    workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=60),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={PROMPT: (16, 128), ANSWER: (32, 256), CACHE: (False, True)},
    judge=Judge(
        factor=CACHE,
        baseline=False,
        primary="output_tokens_per_s",
        metrics=("output_tokens_per_s", "itl_mean_s", "ttft_p50_s"),
    ),
)


def one_after_the_other(tokens, cached, ttft_s=0.05, seconds=60, speed=1.0):
    """One user: a token takes 12 ms with the cache; without, 12 ms and 0.3 more for each token before it."""
    ttft_s *= speed

    def token_s(k):
        return speed * (0.012 if cached else 0.012 + 0.0003 * k)

    took = ttft_s + sum(token_s(k) for k in range(2, tokens + 1))
    return block(np.arange(0, seconds, took), ttft_s, token_s, tokens, seconds)


def kv_cells(repeats=2):
    return [
        result(
            {PROMPT: prompt, ANSWER: answer, CACHE: cached},
            [one_after_the_other(answer, cached) for _ in range(repeats)],
            KV.slo,
        )
        for prompt in (16, 128)
        for answer in (32, 256)
        for cached in (False, True)
    ]


@pytest.fixture(scope="module")
def kv_verdict():
    return verdict(KV, kv_cells())


def test_the_cache_is_told_at_the_longest_answers_though_fewest_of_them_arrive(kv_verdict):
    """255 × 12 + 50 ms with the cache; 255 × 12 + 0.3 × (2 + … + 256) + 50 = 12,979 without: 4.2×."""
    assert kv_verdict.holds is True
    assert kv_verdict.text.startswith(
        "With 1 in flight, prompts of 128 tokens, answers of 256 tokens, the model with the KV cache writes 4."
    )
    assert "× as many tokens a second (" in kv_verdict.text


def test_the_reason_is_the_time_per_token_along_the_answer(kv_verdict):
    """Sixteenths of 2 to 256: the first is centred on the 9th token (14.8 ms), the last on the 248th (86.5 ms)."""
    assert re.search(
        r"With KV cache off the time per token grows from 14\.[789] to 86\.\d ms along the answer, "
        r"with KV cache on it stays at about 12\.0 ms\.",
        kv_verdict.text,
    )


def test_short_answers_are_told_beside(kv_verdict):
    """31 × 12 + 50 = 422 ms against 422 + 0.3 × (2 + … + 32) = 580: 1.37×; 5.1 of 17.1 ms a token fall away."""
    assert (
        "With 1 in flight, prompts of 16 tokens, answers of 32 tokens, "
        "the model with the KV cache writes 1.3" in kv_verdict.text
    )
    assert "takes 5.1 ms off mean ITL" in kv_verdict.text
    assert "makes no detectable difference to TTFT p50" in kv_verdict.text


def test_without_a_reason_in_the_records_none_is_given():
    cells = kv_cells(1)
    bare = [
        CellResult(cell.factors, [(dataclasses.replace(r, streams=None), w) for r, w in cell.blocks], cell.summaries)
        for cell in cells
    ]
    found = verdict(KV, bare)
    assert "along the answer" not in found.text
    assert "there is no output token rate on either side" in found.text


def test_a_cache_that_gains_nothing_says_so():
    cells = [
        result({PROMPT: 16, ANSWER: 32, CACHE: cached}, [one_after_the_other(32, True) for _ in range(3)], KV.slo)
        for cached in (False, True)
    ]
    found = verdict(KV, cells)
    assert found.holds is False
    assert found.text.startswith("The model with the KV cache gains nothing here: with 1 in flight, prompts of 16")


# --- schedulers ----------------------------------------------------------------------------------------------------

BATCHING = Experiment(
    id="llm_batching",
    question="?",
    hypothesis="!",
    model=ModelSpec(name="llm"),
    workload=Workload(arrival=Poisson(saturation_fraction=0.5), duration_s=60, output_tokens=(8, 128)),
    slo=Slo(ttft_s=1.0, itl_s=0.1, percentile=0.9),
    factors={LOAD: (0.5, 3.0), SCHEDULER: ("one", "static", "continuous")},
    reference=Reference(),
    judge=Judge(
        factor=SCHEDULER, baseline="one", primary="goodput_rps", metrics=("goodput_rps", "ttft_p50_s", "itl_mean_s")
    ),
)
SHARED = {"one": 1.0, "static": 3.4, "continuous": 6.2}


def scheduled(load, level, late):
    """4 requests a second; the share `late` gets its first token after 5 s, the others after 0.1."""
    due = np.arange(0, 60, 0.25 if load > 1 else 1.0)
    ttft_s = np.where(np.floor(np.arange(1, len(due) + 1) * late) > np.floor(np.arange(len(due)) * late), 5.0, 0.1)
    blocks = [block(due, ttft_s, lambda k: 0.02, 20, 60) for _ in range(3)]
    return result({LOAD: load, SCHEDULER: level}, blocks, BATCHING.slo, engine_batch_mean=SHARED[level])


def test_schedulers_are_told_with_how_many_shared_a_step():
    cells = [scheduled(0.5, level, 0.0) for level in SHARED]
    cells += [scheduled(3.0, level, late) for level, late in zip(SHARED, (0.75, 0.5, 0.0), strict=True)]
    found = verdict(BATCHING, cells)
    assert found.holds is True
    assert found.text.startswith(
        "At 4.00 req/s (300 % of saturation) continuous batching serves 4.0× as many requests "
        "within 1 s to the first token and 100 ms between tokens ("
    )
    assert (
        "On average 1.0 answers shared a step with one at a time, 3.4 with static batching "
        "and 6.2 with continuous batching." in found.text
    )


def test_a_saturated_language_model_is_told_in_tokens_which_a_short_window_holds_many_of():
    """In 3 s 2 and 7 whole answers end, 3.5×; but 300 and 1,230 tokens came, 4.1×."""
    summary = scheduled(0.5, "one", 0.0).summaries[0]
    reference = [
        (level, dataclasses.replace(summary, window_s=3.0, throughput_rps=answers / 3, output_tokens_per_s=tokens / 3))
        for level, answers, tokens in (("one", 2, 300), ("static", 5, 900), ("continuous", 7, 1230))
    ]
    cells = [scheduled(0.5, level, 0.0) for level in SHARED]
    cells += [scheduled(3.0, level, late) for level, late in zip(SHARED, (0.75, 0.5, 0.0), strict=True)]
    text = verdict(BATCHING, cells, reference).text
    told = "it saturates at 410 tok/s, one request at a time at 100 tok/s (4.1×, measured for 3 s each)"
    assert told in text


def test_a_saturation_with_other_requests_is_not_told():
    """The reference load asks for answers of 32 tokens, the verdict is about those of 256."""
    cells = kv_cells()
    reference = [(cached, cells[cached].summaries[0]) for cached in (False, True)]
    assert "saturates" not in verdict(KV, cells, reference).text
    short = [cell for cell in cells if (cell.factors[PROMPT], cell.factors[ANSWER]) == (16, 32)]
    assert "it saturates at " in verdict(KV, short, reference).text


def test_an_objective_that_the_first_token_never_meets():
    cells = [scheduled(load, level, 1.0) for load in (0.5, 3.0) for level in SHARED]
    found = verdict(BATCHING, cells)
    assert found.holds is False
    assert found.text.startswith(
        "The objective is out of reach, nothing is served within 1 s to the first token and 100 ms between tokens at "
        "any load: at 1.00 req/s (50 % of saturation) the median time to the first token is 5.0"
    )


# --- comparing token metrics ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "verdict_", "ratio"),
    [
        ("output_tokens_per_s", "higher", 580.4 / 422),
        ("itl_mean_s", "lower", 12 / 17.1),
        ("itl_p50_s", "lower", 12 / 17.1),
        ("icl_p50_s", "lower", 12 / 17.1),
        ("ntpot_mean_s", "lower", 422 / 580.4),
        ("ttft_mean_s", "no detectable difference", 1.0),
    ],
)
def test_token_metrics_are_compared_by_their_records(metric, verdict_, ratio):
    """31 tokens of 12 ms after 50, against 0.3 × (2 + … + 32) = 158.1 ms more."""
    a = [one_after_the_other(32, False) for _ in range(2)]
    b = [one_after_the_other(32, True) for _ in range(2)]
    effect = compare(a, b, metric)
    assert effect.verdict == verdict_
    assert effect.ratio == pytest.approx(ratio, rel=0.02)
    assert effect.ci_low <= effect.ratio <= effect.ci_high


@pytest.mark.parametrize("metric", ["output_tokens_per_s", "itl_mean_s", "ttft_mean_s"])
def test_starts_that_differ_by_chance_do_not_differ_and_a_slowdown_does(metric):
    """S13: starts of one server differ by 1 %; at most 2 of 20 pairs may be called different, and all that are 20 %
    slower must be."""
    rng = np.random.default_rng(5)

    def side(slower=1.0):
        return [one_after_the_other(64, True, speed=slower * rng.normal(1, 0.01)) for _ in range(2)]

    same = [compare(side(), side(), metric).verdict for _ in range(20)]
    assert same.count("no detectable difference") >= 18
    slower = {compare(side(), side(1.2), metric).verdict for _ in range(20)}
    assert slower == {"lower" if metric == "output_tokens_per_s" else "higher"}


def test_the_compared_figure_is_that_of_the_summary():
    made = one_after_the_other(32, False)
    summary = summarize(made[0], window=made[1], planned=None, slo=KV.slo)
    for metric in ("output_tokens_per_s", "ttft_mean_s", "itl_mean_s", "itl_p50_s", "icl_p99_s", "ntpot_mean_s"):
        assert compare([made], [made], metric).a == pytest.approx(getattr(summary, metric)), metric


def test_goodput_by_tokens_is_compared():
    design = BATCHING.slo
    due = np.arange(0, 60, 0.25)
    slow, quick = (block(due, 0.1, lambda k, pace=pace: pace, 20, 60) for pace in (0.2, 0.02))
    effect = compare([slow], [quick], "goodput_rps", design)
    assert (effect.a, effect.verdict) == (0, "higher")
    assert effect.b == pytest.approx(4, rel=0.02)
