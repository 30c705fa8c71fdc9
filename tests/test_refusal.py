"""A refusal in one line: the field as the user writes it, the value as it was given, and what is allowed instead."""

import pytest

from lab.errors import InputError
from lab.spec import Experiment, ModelSpec, Workload, parse, set_path


def experiment(**workload):
    arrival = {"kind": "poisson", "rate_rps": 10}
    return parse(
        Experiment,
        {
            "id": "trial",
            "question": "?",
            "hypothesis": "!",
            "model": {"name": "digits", "batching": {"max_batch_size": 8}},
            "workload": {"arrival": arrival, "duration_s": 2} | workload,
            "slo": {"latency_s": 0.02},
        },
    )


CLOSED = {"arrival": {"kind": "closed", "concurrency": 4}}


def refusal(path, value, **workload):
    with pytest.raises(InputError) as caught:
        set_path(experiment(**workload), path, value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("model.instances", 0, "model.instances 0: allowed: a whole number from 1 to 16"),
        ("model.instances", 17, "model.instances 17: allowed: a whole number from 1 to 16"),
        ("model.instances", 1.5, "model.instances 1.5: allowed: a whole number from 1 to 16"),
        ("model.instances", "many", 'model.instances "many": allowed: a whole number from 1 to 16'),
        ("model.instances", None, "model.instances null: allowed: a whole number from 1 to 16"),
        ("model.instances", [2], "model.instances [2]: allowed: a whole number from 1 to 16"),
        ("repeats", float("inf"), "repeats Infinity: allowed: a whole number from 1 to 100"),
        ("workload.seed", -1, "workload.seed -1: allowed: a whole number from 0"),
        ("workload.timeout_s", 0, "workload.timeout_s 0: allowed: a number above 0"),
        ("workload.timeout_s", float("nan"), "workload.timeout_s NaN: allowed: a number above 0"),
        ("workload.duration_s", "", 'workload.duration_s "": allowed: a number above 0 up to 86,400'),
        ("slo.percentile", 1, "slo.percentile 1: allowed: a number above 0 and below 1"),
        ("slo.latency_s", "fast", 'slo.latency_s "fast": allowed: a number above 0, or null'),
        ("workload.stream", "perhaps", 'workload.stream "perhaps": allowed: true or false'),
        ("workload.protocol", "ftp", 'workload.protocol "ftp": allowed: grpc, http, openai, torchserve or replicate'),
        ("model.precision", 8, "model.precision 8: allowed: fp32, bf16, fp16, int8, int8_weight, int4 or as_served"),
        ("model.weights", 5, "model.weights 5: allowed: text, or null"),
        ("workload.sleep_s", 3, "workload.sleep_s 3: allowed: a list, each a number from 0 to 600"),
        ("workload.sleep_s", [1, -2], "workload.sleep_s.1 -2: allowed: a number from 0 to 600"),
        ("workload.arrival.rate_rps", -5, "workload.arrival.rate_rps -5: allowed: a number above 0, or null"),
        (
            "workload.prompt_tokens",
            [1, "x"],
            'workload.prompt_tokens [1, "x"]: allowed: a whole number from 1 to 1,000,000, or two such numbers as '
            "[least, most]",
        ),
        (
            "id",
            "A" * 100,
            f'id "{58 * "A"}…: allowed: a letter and up to 39 more letters, digits and _, in lower case',
        ),
        ("slo", None, "slo null: allowed: an object with latency_s, ttft_s, itl_s, percentile"),
        (
            "workload.arrival",
            5,
            "workload.arrival 5: allowed: an object whose kind is poisson, constant, gamma, closed, trace or steps",
        ),
        ("quick", 3, "quick 3: allowed: an object"),
    ],
)
def test_a_value_that_does_not_fit(path, value, line):
    assert refusal(path, value) == line


def test_what_the_vocabulary_itself_complains_of_stands_as_it_says_it():
    assert refusal("workload.sleep_s", []) == "workload: sleep_s is empty; allowed: one or more seconds"


@pytest.mark.parametrize(
    ("path", "value", "workload", "line"),
    [
        (
            "workload.arrival.concurrency",
            4,
            {},
            'workload.arrival.concurrency: kind "poisson" has no such field, kind "closed" has; set workload.arrival '
            'whole to change its kind, such as workload.arrival={"kind": "closed", "concurrency": 4}',
        ),
        (
            "workload.arrival.rate_rps",
            4,
            CLOSED,
            'workload.arrival.rate_rps: kind "closed" has no such field, kinds "poisson", "constant", "gamma" have; '
            "set workload.arrival whole to change its kind, such as "
            'workload.arrival={"kind": "poisson", "rate_rps": 4}',
        ),
        (
            "workload.arrival.think",
            4,
            CLOSED,
            'workload.arrival.think: there is no such field; did you mean "think_s"?',
        ),
        (
            "workload.arrival.kind",
            "poison",
            {},
            'workload.arrival.kind "poison": there is no such kind; did you mean "poisson"?',
        ),
        (
            "workload.arrival",
            {"rate_rps": 5},
            {},
            "workload.arrival.kind is missing; allowed: poisson, constant, gamma, closed, trace, steps",
        ),
        (
            "workload.arrival",
            {"kind": "closed"},
            {},
            "workload.arrival.concurrency is missing; allowed: a whole number from 1 to 4,096",
        ),
    ],
)
def test_a_field_of_another_kind_is_told_from_one_that_does_not_exist(path, value, workload, line):
    assert refusal(path, value, **workload) == line


def test_a_misspelt_field_is_named_before_the_one_that_it_leaves_missing():
    line = refusal("model.batching", {"max_batch": 4})
    assert line == 'model.batching.max_batch: there is no such field; did you mean "max_batch_size"?'


def test_the_path_begins_at_what_was_parsed():
    with pytest.raises(InputError, match=r"^arrival\.rate_rps 0: allowed: a number above 0, or null$"):
        parse(Workload, {"arrival": {"kind": "constant", "rate_rps": 0}, "duration_s": 1})
    with pytest.raises(InputError, match=r"^ModelSpec 5: allowed: an object with name, "):
        parse(ModelSpec, 5)
