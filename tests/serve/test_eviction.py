"""Who has to go: the arithmetic on paper, and what must hold whatever the sizes are."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lab.serve.eviction import MIB, Refused, victims

NAMES = "abcdef"


def sizes(shared=0, **own):
    """Own bytes of each model, and `shared` once for all of them together."""
    return lambda names: sum(own[name] for name in set(names)) + (shared if names else 0)


def test_the_least_recently_used_goes_first():
    assert victims("d", ["b", "a", "c"], (), sizes(a=10, b=10, c=10, d=10), 30) == ["b"]
    assert victims("d", ["b", "a", "c"], (), sizes(a=10, b=10, c=10, d=20), 30) == ["b", "a"]


def test_a_pinned_one_stays_however_long_ago_it_was_used():
    assert victims("d", ["b", "a", "c"], {"b"}, sizes(a=10, b=10, c=10, d=10), 30) == ["a"]


def test_nobody_goes_for_nothing():
    """a (5) goes first and is not enough; b (30) makes the room alone, so a may stay."""
    assert victims("d", ["a", "b"], (), sizes(a=5, b=30, d=20), 40) == ["b"]


def test_what_models_share_counts_once():
    """Alone each shows 60; three take 100 + 3 x 10 with what they share, where 3 x 60 would not fit."""
    assert victims("c", ["a", "b"], (), sizes(shared=50, a=10, b=10, c=10), 80) == []


def test_what_can_never_fit_is_refused_with_the_numbers():
    with pytest.raises(Refused, match="model c takes 50 MiB; the budget is 40 MiB") as error:
        victims("c", ["a"], (), sizes(a=10 * MIB, c=50 * MIB), 40 * MIB)
    assert error.value.reason == "too_large"
    with pytest.raises(Refused, match="c takes 20 MiB and the pinned a 30 MiB, 50 MiB together; the budget is 40 MiB"):
        victims("c", ["b", "a"], {"a"}, sizes(a=30 * MIB, b=5 * MIB, c=20 * MIB), 40 * MIB)


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(1, 50), min_size=1),
    st.sets(st.sampled_from(NAMES)),
    st.integers(0, 30),
    st.integers(0, 150),
    st.data(),
)
def test_the_rest_fits_no_pinned_one_goes_and_none_goes_in_vain(own, pinned, shared, budget, data):
    size = sizes(shared, **own)
    names = data.draw(st.permutations(sorted(own)))
    wanted, kept = names[0], names[1:]
    assume(size(kept) <= budget)
    fixed = [name for name in kept if name in pinned]
    try:
        out = victims(wanted, kept, pinned, size, budget)
    except Refused:
        assert size([*fixed, wanted]) > budget
        return
    rest = [name for name in kept if name not in out]
    assert size([*rest, wanted]) <= budget
    assert not set(out) & set(fixed)
    for name in out:
        assert size([*rest, name, wanted]) > budget
