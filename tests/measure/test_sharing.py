"""Why batching pays or not, from what an item costs alone and in a batch."""

import pytest

from lab.measure.sharing import Sharing

CASES = [
    # alone, together, capacity, gained, what is said
    (0.0176, 0.0217, None, True, "batching loses throughput"),
    (0.0176, 0.0217, 0.5, False, "batching loses throughput"),
    (0.0176, 0.0170, 0.5, True, "batching loses throughput"),
    (0.0176, 0.0170, 1.2, True, "the gain is in fewer executions"),
    (0.0176, 0.0170, None, False, "there is nothing to share"),
    (0.0006, 0.0001, 2.6, True, "in a batch of 32."),
    (0.0006, 0.0001, 1.0, False, "what limits is not compute"),
]


@pytest.mark.parametrize(("alone", "together", "capacity", "gained", "said"), CASES)
def test_the_reason(alone, together, capacity, gained, said):
    found = Sharing(alone, 32, together, batch_mean=20.0, queue_mean_s=0.1, waited=True)
    assert said in found.sentence(gained=gained, capacity=capacity)


def test_dearer_items_in_a_batch_are_told_with_both_costs():
    found = Sharing(0.0176, 32, 0.0217, batch_mean=20.0, queue_mean_s=0.1, waited=True)
    assert found.sentence(gained=True, capacity=0.5) == (
        "One item costs 17.6 ms of compute alone and 21.7 ms in a batch of 32: batching loses throughput, because "
        "there is nothing to share and a batch takes as long as its longest member, to which the others are padded or "
        "for which they wait."
    )
