"""P23 on the client's side: unique, seeded inputs, equal for equal seeds."""

import subprocess
import sys

import numpy as np
import pytest

from lab.load.payload import held_out_digits, requests_for, sentences
from lab.spec import ClosedLoop, ModelSpec, Workload

FAMILIES = ("digits", "embedder", "sleeper", "null")


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
        ("sleeper", "SLEEP_S", (1, 1), np.float32),
        ("null", "INPUT", (1, 1), np.float32),
    ],
)
def test_requests_have_the_models_tensors(family: str, name: str, shape: tuple[int, ...], dtype: type) -> None:
    for request in requests_for(ModelSpec(name=family), workload(), 3):
        assert list(request) == [name]
        assert request[name].shape == shape
        assert request[name].dtype == dtype


@pytest.mark.parametrize("family", ["digits", "embedder", "null"])
def test_no_two_requests_are_equal(family: str) -> None:
    assert len(set(as_bytes(requests_for(ModelSpec(name=family), workload(), 5000)))) == 5000


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_follow_the_seed_alone(family: str) -> None:
    varied = {"sleep_s": [0.01, 0.02, 0.03]}
    many = as_bytes(requests_for(ModelSpec(name=family), workload(4, **varied), 200))
    assert as_bytes(requests_for(ModelSpec(name="other", family=family), workload(4, **varied), 50)) == many[:50]
    assert as_bytes(requests_for(ModelSpec(name=family), workload(5, **varied), 200)) != many


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


def test_a_worker_starts_without_the_heavy_packages() -> None:
    code = (
        "import sys, lab.load.worker; from lab.load.payload import held_out_digits; held_out_digits();"
        "print([m for m in ('torch', 'streamlit', 'sklearn', 'transformers', 'plotly') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
