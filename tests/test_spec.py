"""The vocabulary refuses what it does not know, in one line, and changes keep what was left to the default."""

import pytest

from lab.errors import InputError
from lab.run.plan import settle
from lab.spec import (
    Batching,
    Cell,
    ClosedLoop,
    Constant,
    Experiment,
    Judge,
    ModelSpec,
    Poisson,
    Slo,
    Workload,
    parse,
    parse_setting,
    set_path,
)


def experiment(**changes):
    fields = {
        "id": "trial",
        "question": "?",
        "hypothesis": "!",
        "model": ModelSpec(name="digits"),
        "workload": Workload(arrival=Poisson(rate_rps=10), duration_s=2),
        "slo": Slo(latency_s=0.02),
    }
    return Experiment(**{**fields, **changes})


def refusal(kind, data):
    with pytest.raises(InputError) as caught:
        parse(kind, data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_unknown_field_names_the_nearest_one():
    message = refusal(ModelSpec, {"name": "digits", "precison": "fp32"})
    assert "precison" in message
    assert '"precision"' in message


def test_unknown_field_deep_inside_names_the_nearest_one():
    message = refusal(Workload, {"arrival": {"kind": "poisson", "rate_rp": 3}, "duration_s": 1})
    assert "rate_rp" in message
    assert '"rate_rps"' in message


def test_unknown_model_names_the_nearest_one():
    assert '"embedder"' in refusal(ModelSpec, {"name": "embeder"})


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "null", "precision": "bf16"}, ("'bf16'", "family null", "allowed: fp32")),
        ({"name": "digits", "precision": "int4"}, ("'int4'", "family digits", "allowed: fp32, bf16, int8")),
        ({"name": "llm", "precision": "fp16"}, ("'fp16'", "'cpu'", "allowed: bf16, or device gpu")),
        ({"name": "llm", "precision": "int8", "quantizer": "gptq"}, ("'gptq'", "'int8'", "allowed: rtn, smoothquant")),
        ({"name": "llm", "quantizer": "awq"}, ("'awq'", "'bf16'", "allowed: rtn")),
        ({"name": "llm", "kv_cache": False, "kv_cache_precision": "int8"}, ("'int8'", "kv_cache false")),
        ({"name": "digits", "group_size": 64}, ("group_size 64", "only family llm")),
    ],
)
def test_a_precision_that_does_not_fit_is_refused_with_both_values_named(fields, named):
    message = refusal(ModelSpec, fields)
    for words in named:
        assert words in message


def test_batch_size_zero_is_refused_because_triton_would_ignore_batching():
    message = refusal(Batching, {"max_batch_size": 0})
    assert "max_batch_size 0" in message
    assert "1 to 1024" in message


def test_preferred_above_maximum_names_both_numbers():
    message = refusal(Batching, {"max_batch_size": 4, "preferred_batch_sizes": [8]})
    assert "8" in message
    assert "4" in message


def test_warmup_that_leaves_nothing_is_refused():
    message = refusal(Workload, {"arrival": {"kind": "poisson", "rate_rps": 1}, "duration_s": 5, "warmup_s": 5})
    assert "warmup_s 5" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1])
def test_a_rate_is_a_positive_number(value):
    assert "rate_rps" in refusal(Workload, {"arrival": {"kind": "poisson", "rate_rps": value}, "duration_s": 5})


def test_an_open_loop_has_exactly_one_rate():
    refusal(Poisson, {})
    refusal(Poisson, {"rate_rps": 1, "saturation_fraction": 0.5})


def test_family_follows_a_new_name_unless_it_was_given():
    assert set_path(ModelSpec(name="digits"), "name", "embedder").family == "embedder"
    copy = ModelSpec(name="digits_b", family="digits")
    assert set_path(copy, "name", "digits_c").family == "digits"


def test_setting_one_kind_of_rate_replaces_the_other():
    workload = Workload(arrival=Poisson(saturation_fraction=0.8), duration_s=2)
    arrival = set_path(workload, "arrival.rate_rps", 40).arrival
    assert (arrival.rate_rps, arrival.saturation_fraction) == (40, None)


def test_setting_a_field_keeps_the_arrivals_kind():
    workload = Workload(arrival=Constant(rate_rps=10), duration_s=2)
    assert set_path(workload, "duration_s", 3).arrival == Constant(rate_rps=10)


@pytest.mark.parametrize("model", [ModelSpec(name="digits"), ModelSpec(name="digits", seed=3)])
def test_a_path_through_a_value_without_fields_is_refused(model):
    with pytest.raises(InputError, match="seed"):
        set_path(model, "seed.value", 1)


def test_cells_are_every_combination_with_the_last_factor_fastest():
    trial = experiment(
        factors={
            "workload.arrival.rate_rps": (10, 20),
            "model.batching": (None, Batching(max_batch_size=8)),
        }
    )
    cells = trial.cells()
    assert [(c.workload.arrival.rate_rps, c.model.batching) for c in cells] == [
        (10, None),
        (10, Batching(max_batch_size=8)),
        (20, None),
        (20, Batching(max_batch_size=8)),
    ]


def test_a_level_of_the_whole_model_sets_some_of_its_fields_and_keeps_the_others():
    trial = experiment(
        model=ModelSpec(name="llm", max_batch_size=4),
        factors={"model": ({"precision": "bf16"}, {"precision": "int4", "quantizer": "gptq"})},
    )
    models = [cell.model for cell in trial.cells()]
    assert [(m.precision, m.quantizer, m.max_batch_size) for m in models] == [("bf16", "rtn", 4), ("int4", "gptq", 4)]
    assert trial.cells()[1].factors == {"model": {"precision": "int4", "quantizer": "gptq"}}


def test_fields_of_a_level_are_checked_together_when_the_file_is_imported():
    llm = ModelSpec(name="llm")
    with pytest.raises(InputError, match="quantizer 'gptq' with precision 'bf16'"):
        experiment(model=llm, factors={"model": ({"precision": "bf16", "quantizer": "gptq"},)})
    with pytest.raises(InputError, match='did you mean "precision"'):
        experiment(model=llm, factors={"model": ({"precisoin": "bf16"},)})


def test_an_experiment_without_factors_has_one_cell():
    cells = experiment().cells()
    assert len(cells) == 1
    assert cells[0].factors == {}


def test_a_factor_path_that_does_not_exist_fails_when_the_file_is_imported():
    with pytest.raises(InputError, match="did you mean"):
        experiment(factors={"model.batchin": (None,)})


def test_a_level_that_does_not_fit_fails_when_the_file_is_imported():
    with pytest.raises(InputError, match="instances"):
        experiment(factors={"model.instances": (1, 0)})


@pytest.mark.parametrize(
    ("quick", "words"),
    [
        ({"workload.duration": 1}, '"duration_s"'),
        ({"repeats": 0}, "repeats 0"),
        ({"workload.duration_s": 1}, "warmup_s 1"),  # sound alone, not with what it leaves as it was
        ({"workload.arrival.concurrency": 4}, '"closed" has'),
    ],
)
def test_what_quick_sets_fails_when_the_file_is_imported(quick, words):
    workload = Workload(arrival=Poisson(rate_rps=10), duration_s=4, warmup_s=1)
    with pytest.raises(InputError, match=r"^quick: ") as caught:
        experiment(workload=workload, quick=quick)
    assert words in str(caught.value)


def test_quick_sets_one_field_after_the_other():
    workload = Workload(arrival=Poisson(rate_rps=10), duration_s=4, warmup_s=1)
    trial = experiment(workload=workload, quick={"workload.warmup_s": 0, "workload.duration_s": 1})
    assert trial.when_quick().workload.duration_s == 1
    assert trial.workload.duration_s == 4


def test_a_setting_need_not_fit_a_quick_run_that_nobody_asked_for():
    workload = Workload(arrival=Poisson(rate_rps=10), duration_s=4, warmup_s=1)
    trial = experiment(workload=workload, quick={"workload.duration_s": 2})
    assert settle(trial, [("workload.warmup_s", 3)], quick=False).workload.warmup_s == 3
    with pytest.raises(InputError, match="warmup_s 3"):
        settle(trial, [("workload.warmup_s", 3)], quick=True)


def test_the_judged_factor_must_be_a_factor():
    with pytest.raises(ValueError, match=r"model\.batching"):
        experiment(factors={"model.instances": (1, 2)}, judge=Judge(factor="model.batching"))


def test_a_fraction_of_saturation_needs_a_reference():
    with pytest.raises(ValueError, match="reference"):
        experiment(workload=Workload(arrival=Poisson(saturation_fraction=0.5), duration_s=2))


def test_a_cell_survives_the_trip_through_json():
    cell = experiment(factors={"model.batching": (Batching(max_batch_size=8),)}).cells()[0]
    assert parse(Cell, cell.model_dump(mode="json")) == cell


def test_every_shipped_experiment_survives_the_trip_through_json():
    from lab.run import catalogue

    for name in catalogue.names():
        shipped = catalogue.experiment(name)
        assert parse(Experiment, shipped.model_dump(mode="json")) == shipped


def test_settings_are_json_where_they_parse_as_json():
    assert parse_setting("a.b=3") == ("a.b", 3)
    assert parse_setting("a.b=null") == ("a.b", None)
    assert parse_setting("model.name=embedder") == ("model.name", "embedder")
    with pytest.raises(InputError, match="PATH=VALUE"):
        parse_setting("workload.duration_s")


def test_values_can_not_be_changed_in_place():
    loop = ClosedLoop(concurrency=4)
    with pytest.raises(ValueError, match="frozen"):
        loop.concurrency = 5


def test_a_factor_that_is_no_field_is_named_before_the_judge_that_named_it_right() -> None:
    with pytest.raises(InputError, match=r'model\.batchin.*did you mean "batching"'):
        experiment(
            factors={"model.batchin": [None]},
            judge=Judge(factor="model.batching", baseline=None, primary="throughput_rps", metrics=("throughput_rps",)),
        )
