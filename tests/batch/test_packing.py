from hypothesis import given
from hypothesis import strategies as st

from lab.batch.packing import packed


def test_batches_are_of_rows_alike_in_length_and_within_the_budget():
    # 9 alone is 9; 5 and 5 are 2 × 5 = 10; 4 with either would be 3 × 5 = 15, so 4 and 1 are 2 × 4 = 8.
    assert packed([5, 1, 9, 4, 5], budget=10, most=8) == [[2], [0, 4], [3, 1]]


def test_a_row_above_the_budget_stands_alone():
    assert packed([3, 100], budget=10, most=8) == [[1], [0]]


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 100), st.integers(1, 9))
def test_every_row_is_in_one_batch_that_keeps_to_its_limits(lengths, budget, most):
    batches = packed(lengths, budget, most)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= most
        assert len(batch) == 1 or max(lengths[position] for position in batch) * len(batch) <= budget
