"""Answers are compared with the baseline's, and a level that computes something else is named."""

import numpy as np

from lab.measure.answers import all_equal, unequal
from lab.run.equality import TOLERANCE, compare_answers, in_fp32
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
    from lab.run.judged import unequal_answers

    level = {"max_batch_size": 32, "max_queue_delay_us": 500}
    told = unequal_answers(
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


def texts(*values):
    return [{"text_output": np.array([value], dtype=object)} for value in values]


def llm_blocks(*levels, **fields):
    model = ModelSpec(name="llm", **fields)
    return [Block("saturation", i, 0, model, WORKLOAD, level) for i, level in enumerate(levels)]


def test_texts_are_equal_or_not_and_those_that_differ_are_counted():
    found = compare_answers(llm_blocks(False, True), [texts("a", "b", "c"), texts("a", "x", "y")], False)
    assert [(level["differing"], level["equal"]) for level in found["levels"]] == [(0, True), (2, False)]
    assert found["tolerance"] is None
    assert (
        unequal(found, "model.kv_cache", False)
        == "KV cache on gives other answers than KV cache off (2 of 3 texts differ)"
    )
    assert all_equal(found) is None


def test_texts_that_differ_in_bf16_are_asked_for_again_in_fp32():
    blocks = llm_blocks(False, True)
    differing = compare_answers(blocks, [texts("a"), texts("b")], False)
    assert in_fp32(blocks[0].model, differing) == ModelSpec(name="llm", precision="fp32")
    same = compare_answers(blocks, [texts("a"), texts("a")], False)
    assert in_fp32(blocks[0].model, same) is None
    exact = llm_blocks(False, True, precision="fp32")
    assert in_fp32(exact[0].model, compare_answers(exact, [texts("a"), texts("b")], False)) is None


def test_equal_in_fp32_says_what_the_served_precision_did():
    found = compare_answers(llm_blocks(False, True, precision="fp32"), [texts("a", "b"), texts("a", "b")], False)
    told = all_equal({**found, "served": {"precision": "bf16", "differing": 1}})
    assert told is not None
    assert "the same texts in fp32" in told
    assert "in bf16 1 of 2" in told
