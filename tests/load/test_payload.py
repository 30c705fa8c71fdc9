"""P23 on the client's side: unique, seeded inputs, equal for equal seeds."""

import json
import subprocess
import sys

import numpy as np
import pytest

from lab.load.payload import addressed, held_out_digits, requests_for, sentences
from lab.spec import ClosedLoop, ModelSpec, Workload

FAMILIES = ("digits", "embedder", "trees", "network", "sleeper", "null")


def workload(seed: int = 0, **more: object) -> Workload:
    return Workload.model_validate(
        {"arrival": ClosedLoop(concurrency=1).model_dump(), "duration_s": 1, "seed": seed, **more}
    )


def as_bytes(requests: list[dict[str, np.ndarray]]) -> list[bytes]:
    return [b"".join(bytes(a.item()) if a.dtype == object else a.tobytes() for a in r.values()) for r in requests]


@pytest.mark.parametrize(
    ("family", "name", "shape", "dtype"),
    [
        ("digits", "IMAGE", (1, 64), np.float32),
        ("embedder", "TEXT", (1, 1), object),
        ("trees", "FEATURES", (1, 30), np.float32),
        ("network", "FEATURES", (1, 30), np.float32),
        ("sleeper", "SLEEP_S", (1, 1), np.float32),
        ("null", "INPUT", (1, 1), np.float32),
    ],
)
def test_requests_have_the_models_tensors(family: str, name: str, shape: tuple[int, ...], dtype: type) -> None:
    for request in requests_for(ModelSpec(name=family), workload(), 3):
        assert list(request) == [name]
        assert request[name].shape == shape
        assert request[name].dtype == dtype


@pytest.mark.parametrize("family", ["digits", "embedder", "trees", "null"])
def test_no_two_requests_are_equal(family: str) -> None:
    assert len(set(as_bytes(requests_for(ModelSpec(name=family), workload(), 5000)))) == 5000


@pytest.mark.parametrize("family", [*FAMILIES, "llm"])
def test_requests_follow_the_seed_alone(family: str) -> None:
    varied = {"sleep_s": [0.01, 0.02, 0.03], "prompt_tokens": (5, 50), "output_tokens": (5, 50)}
    many = as_bytes(requests_for(ModelSpec(name=family), workload(4, **varied), 200))
    assert as_bytes(requests_for(ModelSpec(name="other", family=family), workload(4, **varied), 50)) == many[:50]
    assert as_bytes(requests_for(ModelSpec(name=family), workload(5, **varied), 200)) != many


def test_models_are_addressed_by_their_shares_and_seed() -> None:
    """Zipf's law over three: 6/11, 3/11 and 2/11 of 11,000, each within five standard deviations."""
    to = addressed([1, 1 / 2, 1 / 3], 7, 11_000)
    counts = np.bincount(to, minlength=3)
    assert np.all(np.abs(counts - [6000, 3000, 2000]) < 5 * np.sqrt(11_000 / 4))
    assert np.array_equal(addressed([6, 3, 2], 7, 11_000), to)  # in any unit
    assert not np.array_equal(addressed([6, 3, 2], 8, 11_000), to)


def asked_for(requests: list[dict[str, np.ndarray]]) -> list[int]:
    return [json.loads(request["sampling_parameters"].item())["max_tokens"] for request in requests]


def test_a_language_model_is_asked_by_the_names_of_the_vllm_backend() -> None:
    request = requests_for(ModelSpec(name="llm"), workload(output_tokens=9), 1)[0]
    assert {name: (array.shape, array.dtype) for name, array in request.items()} == {
        "text_input": ((1,), object),
        "sampling_parameters": ((1,), object),
        **dict.fromkeys(("stream", "exclude_input_in_output", "return_finish_reason"), ((1,), bool)),
        **dict.fromkeys(("return_num_input_tokens", "return_num_output_tokens"), ((1,), bool)),
    }
    sampling = {"max_tokens": 9, "temperature": 0.0, "ignore_eos": True}
    assert json.loads(request["sampling_parameters"].item()) == sampling
    assert all(request[name].item() is True for name in request if request[name].dtype == bool)
    whole = requests_for(ModelSpec(name="llm"), workload(stream=False), 1)[0]
    assert whole["stream"].item() is False


def test_lengths_are_drawn_evenly_and_apart_from_each_other() -> None:
    requests = requests_for(ModelSpec(name="llm"), workload(prompt_tokens=(4, 8), output_tokens=(4, 8)), 1000)
    answers = asked_for(requests)
    words = [len(request["text_input"].item().split()) for request in requests]  # 0.75 a token: 3 to 6
    assert sorted(set(answers)) == [4, 5, 6, 7, 8]
    assert sorted(set(words)) == [3, 4, 5, 6]
    assert min(answers.count(n) for n in range(4, 9)) > 150
    assert abs(np.corrcoef(answers, words)[0, 1]) < 0.1


def test_answers_lengths_leave_prompts_as_they_are() -> None:  # cells of an experiment on them see equal prompts
    short, long = (requests_for(ModelSpec(name="llm"), workload(output_tokens=n), 20) for n in (8, 256))
    assert [r["text_input"].item() for r in short] == [r["text_input"].item() for r in long]
    assert (asked_for(short), asked_for(long)) == ([8] * 20, [256] * 20)


def test_digits_are_the_images_that_training_leaves_out() -> None:
    from sklearn.datasets import load_digits

    images = load_digits().data.astype(np.float32)
    held_out = images[np.arange(len(images)) % 4 == 3]  # as lab/serve/models/digits_training.py says
    assert np.array_equal(held_out_digits(), held_out)
    for request in requests_for(ModelSpec(name="digits"), workload(), 100):
        assert np.abs(held_out - request["IMAGE"]).max(axis=1).min() <= 0.05 + 1e-5


def test_sleeps_are_drawn_evenly_from_the_list() -> None:
    requests = requests_for(ModelSpec(name="sleeper"), workload(sleep_s=[0.01, 0.1]), 2000)
    drawn = [round(float(request["SLEEP_S"][0, 0]), 6) for request in requests]
    assert set(drawn) == {0.01, 0.1}
    assert drawn.count(0.1) == pytest.approx(1000, abs=100)


def test_sentences_are_prose_of_many_lengths() -> None:
    words = [len(sentence.split()) for sentence in sentences()]
    assert len(words) > 1000
    low, middle, high = np.percentile(words, [10, 50, 90])
    assert high > 1.5 * middle > 1.5 * 1.5 * low
    assert not any("\n" in sentence or "***" in sentence for sentence in sentences())


@pytest.mark.processes
def test_a_worker_starts_without_the_heavy_packages() -> None:
    code = (
        "import sys, lab.load.worker; from lab.load.payload import held_out_digits; held_out_digits();"
        "heavy = ('torch', 'streamlit', 'sklearn', 'transformers', 'tokenizers', 'plotly');"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
