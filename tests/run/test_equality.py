"""Answers are compared with the baseline's, and a level that computes something else is named."""

import numpy as np

from lab.run.equality import TOLERANCE, compare_answers
from lab.run.plan import Block
from lab.spec import ClosedLoop, ModelSpec, Workload

WORKLOAD = Workload(arrival=ClosedLoop(concurrency=1), duration_s=1)


def blocks(*levels):
    return [Block("saturation", i, 0, ModelSpec(name="digits"), WORKLOAD, level) for i, level in enumerate(levels)]


def answers(*values):
    return [{"LOGITS": np.array([[value, 1.0]], dtype=np.float32)} for value in values]


def test_differences_within_the_tolerance_are_equal():
    found = compare_answers(blocks("a", "off"), [answers(1.0, 2.0), answers(1.0, 2.00005)], "off")
    assert [level["equal"] for level in found["levels"]] == [True, True]
    assert found["tolerance"] == TOLERANCE["fp32"]


def test_a_level_that_answers_something_else_is_named_and_the_baseline_is_not():
    found = compare_answers(blocks("a", "off", "b"), [answers(1.0), answers(1.0), answers(1.5)], "off")
    assert [(level["level"], level["equal"]) for level in found["levels"]] == [("a", True), ("off", True), ("b", False)]
    assert found["levels"][2]["max_abs_difference"] == 0.5


def test_without_the_baseline_among_the_levels_the_first_stands_in():
    found = compare_answers(blocks("a", "b"), [answers(1.0), answers(3.0)], None)
    assert [level["equal"] for level in found["levels"]] == [True, False]


def test_how_a_sleeper_ran_is_no_answer():
    alone = [{"SLEPT_S": np.array([[0.0101]], np.float32), "BATCH": np.array([[1]], np.int32)}]
    joined = [{"SLEPT_S": np.array([[0.0125]], np.float32), "BATCH": np.array([[8]], np.int32)}]
    assert compare_answers(blocks("off", "on"), [alone, joined], "off")["levels"][1]["equal"] is True


def test_no_speed_up_is_told_where_answers_differ():
    from experiments.batching import EXPERIMENT
    from lab.run.results import _unequal

    level = {"max_batch_size": 32, "max_queue_delay_us": 500}
    told = _unequal(
        EXPERIMENT,
        {
            "tolerance": 1e-4,
            "levels": [
                {"level": None, "equal": True, "max_abs_difference": 0.0},
                {"level": level, "equal": False, "max_abs_difference": 0.5},
            ],
        },
    )
    assert told.startswith("No verdict: batching on, 0.5 ms delay gives other answers than batching off (up to 0.5")
