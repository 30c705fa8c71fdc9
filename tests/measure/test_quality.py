"""Losses and their intervals, against paper arithmetic and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from lab.measure.quality import (
    NO_LOSS,
    Quality,
    accuracy,
    first_difference,
    judge,
    paired_difference,
    perplexity,
    wilson,
)

DRAWN = np.random.default_rng(11)
NATS = DRAWN.normal(300, 40, 64).tolist()
TOKENS = [127] * 64


def test_perplexity_by_hand() -> None:
    found = perplexity([2 * math.log(8), 2 * math.log(2)], [2, 2])
    assert found.value == pytest.approx(4)  # the geometric mean of 8, 8, 2 and 2
    assert 2 - 1e-9 <= found.low <= 4 <= found.high <= 8 + 1e-9
    assert found.loss is None
    assert found.verdict == ""


def test_a_loss_is_taken_passage_by_passage() -> None:
    """Passages differ by far more than the formats do, and yet 1 % in each is found and told."""
    worse = [nats + 127 * math.log(1.01) for nats in NATS]
    found = perplexity(worse, TOKENS, NATS)
    assert found.loss == pytest.approx(0.01)
    assert found.high - found.low > 0.1
    assert found.loss_low == pytest.approx(0.01)
    assert found.verdict.startswith("loss of 1.0")


@pytest.mark.parametrize("seed", range(20))
def test_noise_without_a_loss_is_told_as_none(seed: int) -> None:
    """Each interval may be wrong in one case of twenty, on one side in one of forty."""
    noise = np.random.default_rng(seed).normal(0, 1, 64)
    found = perplexity((np.array(NATS) + noise - noise.mean()).tolist(), TOKENS, NATS)
    assert found.verdict == NO_LOSS


def test_most_intervals_of_a_true_loss_hold_it() -> None:
    """Coverage: a loss of 1 % with noise, 200 times; 95 % of the intervals are to hold it."""
    held = 0
    for seed in range(200):
        noise = np.random.default_rng(seed).normal(127 * math.log(1.01), 2, 64)
        found = perplexity((np.array(NATS) + noise).tolist(), TOKENS, NATS)
        assert found.loss_low is not None and found.loss_high is not None
        held += found.loss_low <= 0.01 <= found.loss_high
    assert 180 <= held <= 199


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (7, 10), (60, 64), (64, 64)])
def test_wilson_as_scipy_has_it(hits: int, n: int) -> None:
    expected = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_a_paired_difference_as_the_paper_has_it() -> None:
    """Of 50 pairs 36 right in both, 12 in the first only, 2 in the second only. Wilson: 0.8654 to 0.9890 around 0.96,
    0.6259 to 0.8570 around 0.76; correlation -24 / sqrt(48 × 2 × 38 × 12) = -0.1147. So 0.2 goes down by
    sqrt(0.0946² + 2 × 0.1147 × 0.0946 × 0.0970 + 0.0970²) and up by the like."""
    a = [True] * 48 + [False] * 2
    b = [True] * 36 + [False] * 12 + [True] * 2
    difference, low, high = paired_difference(a, b)
    assert difference == pytest.approx(0.2)
    assert (low, high) == pytest.approx((0.0569, 0.3404), abs=2e-4)


def test_the_same_answers_are_no_loss_and_many_lost_ones_are() -> None:
    right = [True] * 50 + [False] * 14
    same = accuracy("facts", "fact accuracy", "questions", right, right)
    assert (same.loss, same.loss_low, same.loss_high, same.verdict) == (0, 0, 0, NO_LOSS)
    one = accuracy("facts", "fact accuracy", "questions", [False, *right[1:]], right)
    assert one.verdict == NO_LOSS
    many = accuracy("facts", "fact accuracy", "questions", [False] * 15 + right[15:], right)
    assert many.loss == pytest.approx(15 / 64)
    assert many.verdict.startswith("loss of 23 ±")
    assert many.verdict.endswith("points")
    better = accuracy("facts", "fact accuracy", "questions", right, [False] * 15 + right[15:])
    assert better.loss == pytest.approx(-15 / 64)
    assert better.verdict == NO_LOSS


def test_a_baseline_is_judged_without_losses() -> None:
    found = judge({"nats": NATS, "tokens": TOKENS, "cloze": [True] * 9 + [False], "answers": [[1, 2]]}, None)
    assert [m.name for m in found] == ["perplexity", "cloze"]
    assert all(m.loss is None and m.verdict == "" for m in found)


def test_the_same_format_twice_loses_nothing() -> None:
    seen = {
        "nats": NATS,
        "tokens": TOKENS,
        "agreed": TOKENS,
        "kl_nats": [0.0] * 64,
        "cloze": [True, False] * 32,
        "facts": [True] * 60,
        "answers": [[1, 2, 3]] * 8,
        "recall": [0.2, 0.8] * 10,
        "cosine": [1.0] * 20,
    }
    found = {m.name: m for m in judge(seen, seen)}
    assert {m.verdict for m in found.values()} == {NO_LOSS, ""}
    assert all(not m.loss for m in found.values())
    assert found["agreement"].value == 1
    assert found["kl_nats"].value == 0
    assert found["answer_drift_tokens"].value == 3
    whole = Quality("bf16", "bf16", False, tuple(found.values()), (), (), 1.0)
    assert whole.verdict == ("No measurable loss on perplexity, cloze accuracy, fact accuracy, recall by topic.")
    assert Quality.from_dict(whole.to_dict()) == whole


def test_agreement_divergence_and_drift_by_hand() -> None:
    """Tokens count alike, in whichever passage they stand: 3 of 4 and 12 of 16."""
    seen = {
        "nats": [1.0, 1.0],
        "tokens": [4, 16],
        "agreed": [3, 12],
        "kl_nats": [0.4, 1.6],
        "answers": [[5, 6, 7, 8], [5, 6, 7, 8], [5, 6]],
    }
    theirs = {"nats": [1.0, 1.0], "answers": [[5, 6, 7, 8], [5, 9, 7, 8], [9, 9]]}
    found = {m.name: m.value for m in judge(seen, theirs)}
    assert found["agreement"] == pytest.approx(0.75)
    assert found["kl_nats"] == pytest.approx(0.1)
    assert found["answer_tokens_equal"] == pytest.approx(7 / 10)
    assert found["answer_drift_tokens"] == pytest.approx((4 + 1 + 0) / 3)


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 4, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


def test_a_verdict_names_what_is_lost_and_what_is_not() -> None:
    measures = judge(
        {"nats": [n + 5 for n in NATS], "tokens": TOKENS, "facts": [True] * 60},
        {"nats": NATS, "facts": [True] * 60},
    )
    found = Quality("int4 RTN", "bf16", False, measures, (), (), 1.0).verdict
    assert found.startswith("perplexity: loss of 4.0")
    assert found.endswith("; no measurable loss on fact accuracy.")
