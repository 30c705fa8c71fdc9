"""Formats in words, what their speed is to be seen with, and which of them no other one beats."""

import pytest

from lab.measure.formats import (
    change_answers,
    distinct,
    format_label,
    frontier,
    is_baseline,
    price,
    quality_phrase,
    without_kernel,
)
from lab.measure.quality import WERE_4_BIT, Measure, Quality
from lab.spec import ClosedLoop, Experiment, ModelSpec, Slo, Workload


def llm(**fields):
    return ModelSpec(name="llm", **fields)


@pytest.mark.parametrize(
    ("fields", "label"),
    [
        ({}, "bf16"),
        ({"precision": "int8"}, "int8"),
        ({"precision": "int8", "quantizer": "smoothquant"}, "int8 SmoothQuant"),
        ({"precision": "int8_weight"}, "int8 weights"),
        ({"precision": "int4"}, "int4 RTN"),
        ({"precision": "int4", "quantizer": "awq", "group_size": 64}, "int4 AWQ, group size 64"),
        ({"kv_cache_precision": "int8"}, "bf16, KV cache in int8"),
        ({"kv_cache_precision": "bf16"}, "bf16"),
    ],
)
def test_a_format_in_words(fields, label):
    assert format_label(llm(**fields)) == label


def test_each_format_once_in_order_of_appearance():
    models = [llm(), llm(precision="int8"), llm(scheduler="static"), llm(precision="int8", max_batch_size=2)]
    assert [format_label(m) for m in distinct(models)] == ["bf16", "int8"]


def test_the_baseline_of_a_family():
    assert is_baseline(llm())
    assert is_baseline(ModelSpec(name="digits"))
    assert not is_baseline(llm(precision="fp32"))
    assert not is_baseline(llm(kv_cache_precision="int8"))
    assert not is_baseline(ModelSpec(name="digits", precision="bf16"))


@pytest.mark.parametrize(
    ("fields", "multiplies_bytes", "why"),
    [
        ({"name": "digits", "precision": "int8", "device": "gpu"}, True, "as float32"),
        ({"name": "embedder", "precision": "int8"}, False, "VNNI"),
        ({"name": "embedder", "precision": "int8"}, True, None),
        ({"name": "embedder", "precision": "int8"}, None, None),  # it is not known
        ({"name": "digits", "precision": "bf16", "device": "gpu"}, False, None),
        ({"name": "llm", "precision": "int8", "device": "gpu"}, False, None),  # its engine says so
    ],
)
def test_a_format_without_a_kernel_here_says_why_it_is_no_faster(fields, multiplies_bytes, why):
    said = without_kernel(ModelSpec(**fields), multiplies_bytes)
    assert said is None if why is None else why in said and said.startswith(f"{fields['name']} in int8 ")


def experiment(**factors):
    return Experiment(
        id="trial",
        question="?",
        hypothesis="!",
        model=llm(),
        workload=Workload(arrival=ClosedLoop(concurrency=1), duration_s=1),
        slo=Slo(ttft_s=1),
        factors=factors,
    )


def test_formats_change_answers_and_settings_do_not():
    assert change_answers(experiment(model=({"precision": "bf16"}, {"precision": "int8"})))
    assert change_answers(experiment(**{"model.kv_cache_precision": ("bf16", "int8")}))
    assert not change_answers(experiment(**{"model.kv_cache": (True, False)}))


def quality(loss_low, verdict, *, is_baseline=False):
    perplexity = Measure(
        "perplexity", "perplexity", 12.31, 11.0, 13.5, 40, "passages", 12.28, 0.0024, loss_low, 0.006, verdict
    )
    return Quality("int8", "bf16", is_baseline, (perplexity,), (), (), 60.0)


def test_a_speed_is_told_with_memory_and_quality():
    """412 of 824 MiB are half."""
    mib = 2**20
    assert price(quality(-0.001, "no measurable loss"), 412 * mib, 824 * mib) == (
        ", in 0.50× the peak memory (412 MiB against 824 MiB) and with no measurable loss of quality "
        "(perplexity 12.31 against 12.28)"
    )
    assert price(quality(0.001, "loss of 0.24 ± 0.20 %"), None, None) == (
        ", at a price in quality: perplexity loss of 0.24 ± 0.20 % (perplexity 12.31 against 12.28)"
    )
    assert price(None, 412 * mib, 824 * mib).endswith("; its quality was not evaluated")


def test_the_frontier_is_what_no_other_beats_in_everything():
    """(speed, -size, -loss): the second is slower, larger and no better than the first; the last two trade."""
    points = [(10, -1, 0), (8, -2, 0), (12, -3, 0), (11, -0.5, -1)]
    assert frontier(points) == [True, False, True, True]
    assert frontier([(1, 1), (1, 1)]) == [True, True]


def test_that_the_weights_were_4_bit_before_is_said_beside_every_figure_of_4_bit():
    told = Measure("perplexity", "perplexity", 30.7, 29.0, 32.0, 64, "passages", 25.4, 0.21, 0.19, 0.23)
    again = Quality("int4 RTN", "bf16", False, (told,), (), (WERE_4_BIT,), 1.0)
    assert "(perplexity 30.70 against 25.40, on weights that were 4 bit before)" in quality_phrase(again)
    assert "4 bit before" in price(again, None, None)
    assert "4 bit" not in quality_phrase(Quality("int8", "bf16", False, (told,), (), (), 1.0))
