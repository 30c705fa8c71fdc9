"""What an autoscaling run is told to have shown, from blocks whose shares in time are known."""

import pytest

from lab.measure import autoscale_words


def block(label, share, instances, judged, scales=True):
    measured = {"share": share, "p95_s": 0.4, "instance_s": instances * 40, "instances_mean": instances}
    return {
        "label": label, "scales": scales, "goal": 0.95, "seconds": 40.0, "judged": judged, "up_s": None,
        "measured": measured, "off_p95": None,
    }  # fmt: skip


ALWAYS = block("5 instances", 1.0, 5.0, 400, scales=False)


@pytest.mark.parametrize(
    ("scaled", "holds"),
    [
        ([block("scaled", 1.0, 3.5, 400)], True),
        ([block("scaled", 1.0, 3.5, 11)], None),  # Wilson: all of 11 leave 74 %
        ([block("scaled", 0.96, 3.5, 400)], None),
        ([block("scaled", 0.8, 3.5, 400)], False),
        ([block("scaled", 1.0, 4.5, 400)], False),  # kept, and not a quarter cheaper
        ([block("scaled", 1.0, 3.5, 40)] * 3, True),  # repeats count together: all of 120 leave 96.9 %
    ],
)
def test_it_holds_only_with_the_whole_interval(scaled, holds):
    assert autoscale_words.holds({"blocks": [ALWAYS, *scaled]}) is holds


def test_a_share_is_told_with_its_interval_and_one_repeat_as_one():
    said = " ".join(autoscale_words.sentences({"blocks": [ALWAYS, block("scaled", 1.0, 3.5, 11)]}))
    assert "100 % in time (74.1 to 100 % by 11 requests, too few to be sure of 95 %); 5 instances: 5.00" in said
    assert "One repeat only: take the figures as rough." in said
    twice = {"blocks": [ALWAYS, block("scaled", 1.0, 3.5, 400)] * 2}
    assert "One repeat only" not in " ".join(autoscale_words.sentences(twice))


def test_what_ways_cost_goes_by_their_instances():
    """At $2 an hour: 5 instances $10, which serve 10 req/s of 10 in time, so a million $10 / 36,000 * 1e6."""
    day = [ALWAYS | {"requests": 400}, block("scaled", 0.5, 2.5, 400) | {"requests": 400}, block("dead", 0.0, 1.0, 9)]
    day[2]["requests"] = 400
    assert autoscale_words.costs({"blocks": day}, 2.0) == {
        "instances": ["5 instances", "scaled", "dead"],
        "in time": ["100 %", "50 %", "0 %"],
        "an hour": ["$10", "$5", "$2"],
        "a million in time": ["$277.80", "$277.80", "n/a"],
    }
