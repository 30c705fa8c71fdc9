"""Why batching pays or not, from what an item costs alone and in a batch."""

import pytest

from lab.measure.judgement import CellResult
from lab.measure.sharing import Sharing, sharing
from lab.measure.summary import Summary

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


def block(sizes, **costs):
    """A summary of which only the batches count: {size: executions} and what an item cost in each."""
    lacking = dict.fromkeys(Summary.__dataclass_fields__)
    return Summary(**lacking | {"batch_sizes": sizes, "item_compute_s": {int(n[1:]): s for n, s in costs.items()}})


ALONE = CellResult({}, [], [block({1: 500}, n1=0.93e-3)])
SMALL = CellResult({}, [], [block({1: 50, 4: 100}, n1=0.95e-3, n4=0.90e-3)])


def test_what_larger_batches_at_saturation_share_is_not_denied():
    """At the load an item costs 0.93 / 0.90 = 1.03 times less in a batch of 4; at saturation 0.93 / 0.27 = 3.4 times
    less, in batches of 32."""
    told = sharing(ALONE, [SMALL], [block({32: 100}, n32=0.27e-3)]).sentence(gained=None)
    assert told == (
        "One item costs 0.93 ms of compute alone and 0.27 ms in a batch of 32 at saturation, "
        "so there is something to share."
    )


def test_nothing_to_share_is_said_up_to_the_largest_batch_that_ran():
    told = sharing(ALONE, [SMALL], [block({8: 5}, n8=0.1e-3)]).sentence(gained=False)  # 5 executions are luck
    assert told.endswith("0.90 ms in a batch of 4: there is nothing to share in batches of up to 8.")
    assert sharing(ALONE, [SMALL]).sentence(gained=False).endswith("nothing to share in batches of up to 4.")


def test_the_loads_own_batches_are_named_and_not_blended_with_those_at_saturation():
    """Batches of 8 at the load cost 0.30 ms an item and were many; at saturation such ones cost 0.10 ms."""
    own = CellResult({}, [], [block({1: 500, 2: 300, 8: 60}, n1=0.93e-3, n2=0.90e-3, n8=0.30e-3)])
    found = sharing(ALONE, [own], [block({8: 900, 32: 900}, n8=0.10e-3, n32=0.05e-3)])
    assert (found.size, found.together_s, found.at_saturation) == (8, pytest.approx(0.30e-3), False)
