"""Sampling against paper arithmetic and against transformers' own warpers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lab.serve.models.sampling import LIKELY, Sampling, _draw, _likeliest, pick

LOGITS = torch.tensor([0.5, 0.3, 0.2]).log()
GRID = [(i + 0.5) / 1000 for i in range(1000)]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), {0: 500, 1: 300, 2: 200}),
        # temperature 0.5 squares: 0.25, 0.09, 0.04 of 0.38
        (Sampling(temperature=0.5), {0: 658, 1: 237, 2: 105}),
        (Sampling(top_k=2), {0: 625, 1: 375}),
        (Sampling(top_k=1), {0: 1000}),
        (Sampling(top_p=0.5), {0: 1000}),
        (Sampling(top_p=0.51), {0: 625, 1: 375}),
        # top_k first: of 0.625 and 0.375, the first alone is 0.6
        (Sampling(top_k=2, top_p=0.6), {0: 1000}),
    ],
    ids=str,
)
def test_every_thousandth_of_the_way_hits_its_token(sampling: Sampling, expected: dict[int, int]) -> None:
    assert Counter(_draw(LOGITS, sampling, u) for u in GRID) == expected


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_impossible_tokens_are_never_drawn(u: float) -> None:
    logits = torch.tensor([-torch.inf, 0.0, 0.0, -torch.inf])
    assert _draw(logits, Sampling(), u) == (1 if u == 0 else 2)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.sampled_from([5, 300, 3 * LIKELY]),
    spread=st.sampled_from([0.01, 1.0, 8.0]),
    top_k=st.sampled_from([0, 1, 4, 50]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.3, 0.01]),
)
def test_the_same_tokens_remain_as_in_transformers(
    seed: int, vocabulary: int, spread: float, top_k: int, top_p: float
) -> None:
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    assume(top_k or top_p < 1)  # otherwise nothing is cut and the function is not asked
    scores = torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * spread
    theirs = scores[None]
    if top_k:
        theirs = TopKLogitsWarper(top_k)(None, theirs)
    if top_p < 1:
        theirs = TopPLogitsWarper(top_p)(None, theirs)
    _, tokens = _likeliest(scores.softmax(-1), Sampling(top_k=top_k, top_p=top_p))
    assert set(tokens.tolist()) == set(theirs[0].isfinite().nonzero().flatten().tolist())


def test_each_row_by_its_own_wishes_and_numbers() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    wishes = [Sampling(temperature=0), Sampling(seed=4), Sampling(seed=5, top_p=0.5)]

    def draws(rows: list[int]) -> list[list[int]]:
        generators = [np.random.default_rng(wishes[row].seed) for row in rows]
        steps = [pick(logits[rows], [wishes[row] for row in rows], generators) for _ in range(20)]
        return [list(column) for column in zip(*steps, strict=True)]

    together = draws([0, 1, 2])
    assert together == [draws([row])[0] for row in range(3)]
    assert together[0] == [int(logits[0].argmax())] * 20
    assert len(set(together[1])) > 3


def test_a_single_stop_string_and_none_are_understood() -> None:
    assert Sampling.parse({"stop": "\n"}).stop == ("\n",)
    assert Sampling.parse({"stop": None, "seed": None}).stop == ()
