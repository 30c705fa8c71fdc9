"""The order of blocks: compared levels side by side, forwards then backwards, few reloads."""

import itertools

import pytest

from experiments.batching import EXPERIMENT
from lab.errors import InputError
from lab.measure.factorial import is_factorial
from lab.run.catalogue import experiment
from lab.run.plan import cell_blocks, level_blocks, load_label, settle, with_rate
from lab.spec import Batching, ClosedLoop, Experiment, Judge, ModelSpec, Poisson, Reference, Slo, Workload

ON = Batching(max_batch_size=8)


def trial(repeats=2):
    return Experiment(
        id="trial",
        question="?",
        hypothesis="!",
        model=ModelSpec(name="null"),
        workload=Workload(arrival=Poisson(saturation_fraction=0.5), duration_s=2, seed=3),
        slo=Slo(latency_s=0.02),
        factors={"workload.arrival.saturation_fraction": (0.1, 0.8), "model.batching": (None, ON)},
        repeats=repeats,
        reference=Reference(concurrency=4, duration_s=1, warmup_s=0.2),
        judge=Judge(factor="model.batching"),
    )


def test_levels_alternate_a_b_b_a():
    order = [
        (b.repeat, b.workload.arrival.saturation_fraction, b.model.batching is not None) for b in cell_blocks(trial())
    ]
    assert order == [
        (0, 0.1, False), (0, 0.1, True),
        (0, 0.8, True), (0, 0.8, False),
        (1, 0.1, False), (1, 0.1, True),
        (1, 0.8, True), (1, 0.8, False),
    ]  # fmt: skip


def test_every_cell_runs_once_a_repeat():
    blocks = cell_blocks(EXPERIMENT)
    assert sorted((b.cell, b.repeat) for b in blocks) == [(c, r) for c in range(15) for r in range(3)]


def test_the_language_models_factorial_switches_its_cache_too():
    settled = experiment("factorial_llm").when_quick()
    assert {path.rpartition(".")[2] for path in settled.factors} == {"scheduler", "precision", "kv_cache", "instances"}
    assert len(settled.cells()) == 16 and is_factorial(settled.factors)
    assert {(cell.model.family, cell.model.kv_cache) for cell in settled.cells()} == {("llm", True), ("llm", False)}


def test_a_reload_is_needed_less_often_than_once_a_block():
    models = [b.model for b in cell_blocks(EXPERIMENT)]
    reloads = sum(a != b for a, b in itertools.pairwise(models))
    assert reloads == 45 - 9  # 9 groups of 5 levels: each group starts with the level the last one ended with


def test_saturation_runs_each_judged_level_once_in_a_closed_loop():
    blocks = level_blocks(trial())
    assert [b.model.batching for b in blocks] == [None, ON]
    assert all(b.workload.arrival == ClosedLoop(concurrency=4) for b in blocks)
    assert all((b.workload.duration_s, b.workload.warmup_s) == (1, 0.2) for b in blocks)


def test_a_fraction_becomes_a_rate_of_the_measured_saturation():
    block = with_rate(cell_blocks(trial())[0], 1500.0)
    assert block.workload.arrival == Poisson(rate_rps=150)


def test_levels_of_a_repeat_share_requests_and_repeats_do_not():
    seeds = {(b.repeat, with_rate(b, 100.0).workload.seed) for b in cell_blocks(trial())}
    assert seeds == {(0, 3), (1, 1003)}


def test_quick_then_settings_apply_in_this_order():
    settled = settle(EXPERIMENT, [("workload.duration_s", 4), ("model.name", "embedder")], quick=True)
    assert (settled.repeats, settled.workload.duration_s, settled.model.family) == (1, 4, "embedder")


def test_setting_a_factor_replaces_its_levels():
    settled = settle(
        trial(), [("model.batching", None), ("workload.arrival.saturation_fraction", [0.3, 0.6])], quick=False
    )
    assert [c.workload.arrival.saturation_fraction for c in settled.cells()] == [0.3, 0.6]
    assert {c.model.batching for c in settled.cells()} == {None}


def test_a_setting_that_every_level_would_overrule_is_refused_with_what_to_set_instead():
    formats = ("factors", {"model": [{"precision": "fp32"}, {"precision": "bf16"}]})
    whole = [formats, ("judge", None), ("model.name", "embedder")]
    with pytest.raises(InputError, match=r"model.precision is set by every level of factor model; .* 'model=\["):
        settle(EXPERIMENT, [*whole, ("model.precision", "bf16")], quick=False)
    own = [("model", [{"precision": "bf16"}]), ("model.instances", 2)]
    settled = settle(EXPERIMENT, [*whole, *own], quick=False)
    assert [(c.model.precision, c.model.instances) for c in settled.cells()] == [("bf16", 2)]


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match='"workload"'):
        settle(trial(), [("workloads.duration_s", 1)], quick=False)


def test_factors_that_are_set_whole_replace_those_of_the_file():
    whole = ("factors", {"model.batching": [None]})
    assert settle(EXPERIMENT, [whole], quick=False).factors == {"model.batching": (None,)}
    on = settle(EXPERIMENT, [whole, ("model.batching", {"max_batch_size": 8})], quick=False)
    assert on.factors == {"model.batching": ({"max_batch_size": 8},)}
    with pytest.raises(InputError, match="factors 5"):
        settle(EXPERIMENT, [("factors", 5)], quick=False)


def test_a_load_is_said_by_what_was_set_of_it():
    settings = [("workload.arrival", {"kind": "poisson", "rate_rps": 0.2})]
    (block,) = cell_blocks(settle(trial(), [("factors", {}), ("judge", None), *settings], quick=False))[:1]
    said = load_label(with_rate(block, None).workload)
    assert "0.2" in said and "None" not in said and "poisson" not in said and "=" not in said
