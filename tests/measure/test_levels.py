"""Truth: what a level of a model sets, by hand."""

import numpy as np
import pytest

from lab.measure.levels import same, unique
from lab.measure.records import OK, Requests, Window
from lab.measure.summary import summarize
from lab.measure.verdict import CellResult, verdict
from lab.measure.words import level_label
from lab.spec import Batching, ClosedLoop, Experiment, Judge, ModelSpec, Slo, Workload

S = 1_000_000_000
BY_PAGE, BY_HAND = {"precision": "bf16", "quantizer": "rtn"}, {"precision": "bf16"}


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        (BY_PAGE, BY_HAND, True),
        (BY_HAND, {"kv_cache": True, "group_size": 32, **BY_HAND}, True),
        ({"model": BY_PAGE, "workload.models": 2}, {"model": BY_HAND, "workload.models": 2}, True),
        ({"adapters": ["tea"], "merge_adapters": False}, {"adapters": ["tea"]}, True),
        (BY_HAND, {"precision": "bf16", "quantizer": "gptq"}, False),
        (BY_HAND, {"precision": "bf16", "kv_cache": False}, False),
        (BY_HAND, {"precision": "bf16", "group_size": 64}, False),
        (Batching(max_batch_size=32), {"max_batch_size": 32}, True),
        (Batching(max_batch_size=32), {"max_batch_size": 8}, False),
        (Batching(max_batch_size=8), None, False),
    ],
)
def test_a_field_at_its_default_is_a_field_left_out(a, b, alike):
    assert same(a, b) is same(b, a) is alike
    assert len(unique([a, b])) == (1 if alike else 2)


def test_a_level_that_a_page_wrote_whole_is_the_baseline_that_a_file_wrote_short():
    """Rates put in: 10 answers a second, and 20."""

    def cell(level, rate):
        due = np.arange(0, 11 * S, S // rate)
        requests = Requests(due, due, due + S // 100, np.full(len(due), OK, np.uint8))
        window = Window(0, S, 11 * S)
        return CellResult(
            {"model": level}, [(requests, window)], [summarize(requests, window=window, planned=len(due), slo=None)]
        )

    int4 = {"precision": "int4", "quantizer": "rtn"}
    design = Experiment(
        id="quantization",
        question="?",
        hypothesis="!",
        model=ModelSpec(name="llm"),
        workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=11),
        slo=Slo(latency_s=1.0),
        factors={"model": (BY_PAGE, int4)},
        judge=Judge(factor="model", baseline=BY_HAND, primary="throughput_rps", metrics=("throughput_rps",)),
    )
    found = verdict(design, [cell(BY_PAGE, 10), cell(int4, 20)], [])
    assert "was not measured" not in found.text
    assert [round(e["ratio"], 1) for e in found.effects if e["level"] == int4] == [2.0]
    assert level_label("model", BY_HAND, among=[BY_PAGE, int4]) == "bf16"
