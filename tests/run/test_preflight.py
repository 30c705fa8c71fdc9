"""What is refused before there is a run, and what is not looked at because another machine serves."""

import pytest

from lab.errors import InputError, ServerError
from lab.run import catalogue, preflight
from lab.run.catalogue import single
from lab.run.plan import settle
from lab.serve import installation, record

OPEN = {"arrival": {"kind": "poisson", "rate_rps": 5}, "duration_s": 1}


@pytest.fixture(autouse=True)
def this_machine(monkeypatch):
    """It could run a Triton, runs none, and has no GPU."""
    monkeypatch.setattr(installation, "gpus", lambda: 0)
    monkeypatch.setattr(installation, "missing", list)
    monkeypatch.setattr(record, "read", lambda: None)


def experiment(model=None, *settings, **workload):
    return single({"name": "digits"} if model is None else model, OPEN | workload, settings)


@pytest.mark.parametrize("name", catalogue.names())
@pytest.mark.parametrize("quick", [True, False])
def test_every_shipped_experiment_may_start(name, quick):
    preflight.check(settle(catalogue.experiment(name), [], quick=quick))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (experiment({"name": "digits", "device": "gpu"}), "device gpu of digits: this machine has no NVIDIA GPU"),
        (
            experiment(None, 'neighbours=[{"name": "embedder", "device": "gpu"}]'),
            "device gpu of embedder: this machine has no NVIDIA GPU",
        ),
        (
            experiment(None, 'factors={"model.device": ["gpu"]}'),
            "device gpu of digits: this machine has no NVIDIA GPU",
        ),
        (
            experiment({"name": "digits", "batching": {"max_batch_size": 1, "max_queue_delay_us": 500}}),
            "max_queue_delay_us 500 with max_batch_size 1",
        ),
        (experiment({"name": "llm", "weights": "/no/such/folder"}), "model.weights /no/such/folder"),
        (experiment(arrival={"kind": "trace", "path": "/no/such/file"}), "arrival.path '/no/such/file'"),
        (experiment(arrival={"kind": "constant", "rate_rps": 2e6}), "rate_rps 2e+06"),
        (experiment(protocol="openai"), "workload.protocol openai"),
        (
            settle(catalogue.experiment("batching"), [("judge.primary", "goodput")], quick=True),
            'did you mean "goodput_rps"',
        ),
        (
            experiment({"name": "llm", "max_request_tokens": 256}, prompt_tokens=[8, 200], output_tokens=64),
            "prompt_tokens 200 and output_tokens 64 are more than model.max_request_tokens 256",
        ),
    ],
)
def test_what_cannot_work_here_is_refused(refused, words):
    with pytest.raises(InputError) as caught:
        preflight.check(refused)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("model", "workload", "words"),
    [
        (
            "digits",
            {"prompt_tokens": 64},
            "workload.prompt_tokens 64 is given for family digits; only family llm has it",
        ),
        ("embedder", {"output_tokens": [8, 16]}, "workload.output_tokens [8, 16] is given for family embedder"),
        ("null", {"stream": True}, "workload.stream true is given for family null; only family llm has it"),
        ("llm", {"sleep_s": [0.01]}, "workload.sleep_s [0.01] is given for family llm; only family sleeper has it"),
        ("sleeper", {"protocol": "openai"}, "workload.protocol openai is given for family sleeper"),
        ("llm", {"served_model": "m"}, 'workload.served_model "m" is given with protocol grpc'),
    ],
)
def test_a_field_that_the_family_cannot_use_is_refused_where_it_is_given(model, workload, words):
    """Even at its default's value: who writes it down expects it to do something."""
    with pytest.raises(InputError) as caught:
        preflight.check(experiment({"name": model}, **workload))
    assert words in str(caught.value)


@pytest.mark.parametrize("model", ["digits", "embedder", "llm", "sleeper", "null"])
def test_fields_that_are_left_to_their_defaults_are_no_matter(model):
    preflight.check(experiment({"name": model}))


@pytest.mark.parametrize("field", ["ttft_s", "itl_s"])
def test_a_limit_on_tokens_is_refused_where_answers_have_none(field):
    with pytest.raises(
        InputError, match=rf"slo\.{field} 0\.5 is given for family digits, whose answers have no tokens"
    ):
        preflight.check(experiment(None, f"slo.{field}=0.5"))


def test_a_request_that_fills_its_slot_to_the_last_token_may_start():
    preflight.check(experiment({"name": "llm", "max_request_tokens": 264}, prompt_tokens=[8, 200], output_tokens=64))


def test_with_a_gpu_its_use_may_start(monkeypatch):
    monkeypatch.setattr(installation, "gpus", lambda: 1)
    preflight.check(experiment({"name": "digits", "device": "gpu"}))


def test_a_machine_that_runs_no_triton_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(installation, "missing", lambda: [("glibc 2.35", "a newer distribution")])
    with pytest.raises(ServerError, match=r"glibc 2\.35: a newer distribution"):
        preflight.check(experiment())


def test_of_somebody_elses_server_neither_machine_nor_models_are_looked_at(monkeypatch):
    monkeypatch.setattr(installation, "missing", lambda: [("glibc 2.35", "a newer distribution")])
    preflight.check(experiment({"name": "digits", "device": "gpu"}), url="grpc://10.0.0.1:8001")
    preflight.check(experiment({"name": "llm"}, protocol="openai"), url="OpenAI+http://10.0.0.1:8000/v1")
    with pytest.raises(InputError, match="protocol grpc"):
        preflight.check(experiment(), url="openai+http://10.0.0.1:8000/v1")
