"""What the served models answer: right, and the same alone as in company (P5)."""

import json
import os
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from lab.run.equality import TOLERANCE
from lab.serve import python_env, weights
from lab.spec import Batching, ModelSpec
from tests.waiting import until

pytestmark = pytest.mark.triton

TOGETHER = Batching(max_batch_size=16, max_queue_delay_us=10_000_000)
"""Holds requests for 10 s or until 16 rows are there: those that are sent together run together."""

TEXTS = [
    "a cat",
    "A kitten sits on the mat, purring loudly, and looks at the rain that has been falling on the garden all day.",
    "Stock markets fell.",
    "",
    "Grüße, 世界! " * 300,
    *(f"sentence number {number}" + " and so on" * number for number in range(11)),
]


def infer(server, model, rows, name, output):
    array = np.asarray(rows)
    kind = "BYTES" if array.dtype == object else "FP32"
    tensor = triton.InferInput(name, array.shape, kind)
    tensor.set_data_from_numpy(array)
    return server.client.infer(model, [tensor], client_timeout=60).as_numpy(output)


def at_once(server, model, parts, name, output):
    """The answers to `parts`, sent by a thread each at the same time."""
    answers = [None] * len(parts)

    def one(position):
        answers[position] = infer(server, model, parts[position], name, output)

    threads = [threading.Thread(target=one, args=(position,)) for position in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def executions(server, model, rows):
    """Executions that `rows` rows took; waits until all are counted, since Triton answers before it counts."""

    def counted():
        stats = server.client.get_inference_statistics(model).model_stats[0]
        return stats.execution_count if stats.inference_count >= rows else None

    return until(counted)


def digits():
    """Held-out images and labels, by the rule that digits_training.py states."""
    from sklearn.datasets import load_digits

    data = load_digits()
    held_out = np.arange(len(data.target)) % 4 == 3
    return data.data[held_out].astype(np.float32), data.target[held_out]


@pytest.fixture
def load(triton_server):
    """Loads a spec and gives the server; the model is gone after the test."""
    loaded = []

    def one(spec):
        weights.prepare(spec)
        triton_server.load(spec)
        loaded.append(spec.name)
        return triton_server

    yield one
    for name in loaded:
        triton_server.unload(name)


# --- digits -----------------------------------------------------------------------------------------------------


def test_digits_are_recognised_as_well_as_the_training_says(load):
    images, labels = digits()
    spec = ModelSpec(name="d", family="digits", batching=Batching(max_batch_size=1024))
    server = load(spec)
    report = json.loads((weights.folder(spec) / "training.json").read_text())
    right = infer(server, "d", images, "IMAGE", "LOGITS").argmax(1) == labels
    assert report["held_out_images"] == len(labels) == 449
    assert right.mean() == pytest.approx(report["held_out_accuracy_fraction"], abs=1e-6)
    assert right.mean() > 0.95


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("int8", 0)])
def test_digits_answer_the_same_alone_and_in_one_batch_of_unequal_parts(load, precision, tolerance):
    """In int8 to the last bit: sums of whole numbers are exact in any order."""
    images, _ = digits()
    server = load(ModelSpec(name="d", family="digits", batching=TOGETHER, precision=precision))
    sizes = [1, 1, 5, 2, 1, 6]
    parts = np.split(images[: sum(sizes)], np.cumsum(sizes)[:-1])
    answers = at_once(server, "d", parts, "IMAGE", "LOGITS")
    assert executions(server, "d", sum(sizes)) == 1
    server.load(ModelSpec(name="d", family="digits", precision=precision))
    for part, answer in zip(parts, answers, strict=True):
        alone = np.vstack([infer(server, "d", row[None], "IMAGE", "LOGITS") for row in part])
        np.testing.assert_allclose(answer, alone, atol=tolerance, rtol=0)


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_another_arithmetic_gives_nearly_the_same_answers(load, precision):
    images, labels = digits()
    server = load(ModelSpec(name="d", family="digits", batching=Batching(max_batch_size=1024)))
    exact = infer(server, "d", images, "IMAGE", "LOGITS")
    server.load(ModelSpec(name="d", family="digits", batching=Batching(max_batch_size=1024), precision=precision))
    rough = infer(server, "d", images, "IMAGE", "LOGITS")
    apart = np.abs(rough - exact).max()
    assert 1e-3 < apart < 2.0  # logits run to about ±20; either has 8 bits
    assert (rough.argmax(1) == labels).mean() == pytest.approx((exact.argmax(1) == labels).mean(), abs=0.01)


# --- embedder ---------------------------------------------------------------------------------------------------


def texts(lines):
    return np.array([[line.encode()] for line in lines], dtype=object)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("int8", TOLERANCE["int8"])])
def test_texts_of_unlike_length_share_a_batch_and_answer_as_if_alone(load, precision, tolerance):
    server = load(ModelSpec(name="e", family="embedder", batching=TOGETHER, precision=precision))
    assert len(TEXTS) == 16
    answers = np.vstack(at_once(server, "e", [texts([line]) for line in TEXTS], "TEXT", "EMBEDDING"))
    assert executions(server, "e", len(TEXTS)) == 1
    server.load(ModelSpec(name="e", family="embedder", precision=precision))
    alone = np.vstack([infer(server, "e", texts([line]), "TEXT", "EMBEDDING") for line in TEXTS])
    np.testing.assert_allclose(answers, alone, atol=tolerance)
    np.testing.assert_allclose(np.linalg.norm(answers, axis=1), 1.0, atol=1e-5)


def test_embeddings_are_those_of_transformers(load):
    import torch
    from transformers import AutoModel, AutoTokenizer

    spec = ModelSpec(name="e", family="embedder", batching=Batching(max_batch_size=16))
    ours = infer(load(spec), "e", texts(TEXTS), "TEXT", "EMBEDDING")
    folder = weights.folder(spec)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    network = AutoModel.from_pretrained(folder, local_files_only=True).eval()
    with torch.inference_mode():
        for line, vector in zip(TEXTS, ours, strict=True):
            tokens = tokenizer([line], truncation=True, max_length=256, return_tensors="pt")
            theirs = torch.nn.functional.normalize(network(**tokens).last_hidden_state.mean(1))[0].numpy()
            np.testing.assert_allclose(vector, theirs, atol=1e-5)


@pytest.mark.parametrize(("precision", "least"), [("bf16", 0.995), ("int8", 0.98)])
def test_rounded_embeddings_point_the_same_way(load, precision, least):
    server = load(ModelSpec(name="e", family="embedder", batching=Batching(max_batch_size=16)))
    exact = infer(server, "e", texts(TEXTS), "TEXT", "EMBEDDING")
    server.load(ModelSpec(name="e", family="embedder", batching=Batching(max_batch_size=16), precision=precision))
    rough = infer(server, "e", texts(TEXTS), "TEXT", "EMBEDDING")
    cosine = (exact * rough).sum(1)
    assert cosine.min() > least
    assert np.abs(exact - rough).max() > 1e-5


# --- sleeper and null -------------------------------------------------------------------------------------------


def test_a_batch_sleeps_as_long_as_its_longest_member(load):
    server = load(
        ModelSpec(name="s", family="sleeper", batching=Batching(max_batch_size=3, max_queue_delay_us=10_000_000))
    )
    parts = [np.array([[seconds]], np.float32) for seconds in (0.4, 0.5, 0.5)]
    slept = np.ravel(at_once(server, "s", parts, "SLEEP_S", "SLEPT_S"))
    assert slept.min() == slept.max() >= 0.5
    assert slept.max() < 1.4  # one after the other would take that
    assert infer(server, "s", np.zeros((3, 1), np.float32), "SLEEP_S", "BATCH").tolist() == [[3]] * 3


def test_the_null_model_gives_back_what_it_got(load):
    server = load(ModelSpec(name="n", family="null", batching=Batching(max_batch_size=8)))
    rows = np.array([[1.5], [-2.0], [3e30]], np.float32)
    assert infer(server, "n", rows, "INPUT", "OUTPUT").tolist() == rows.tolist()


def test_instances_work_at_the_same_time(load):
    server = load(ModelSpec(name="s", family="sleeper", instances=3))
    parts = [np.ones((1, 1), np.float32)] * 3
    began = time.perf_counter()
    at_once(server, "s", parts, "SLEEP_S", "SLEPT_S")
    assert time.perf_counter() - began < 2.9  # one after the other takes 3


def test_models_see_the_numpy_that_triton_was_built_for_and_the_labs_packages(triton_installed):
    """With numpy 2 every input would arrive as copies of its first element, and no output would arrive at all."""
    code = "import numpy, psutil; print(numpy.__version__, numpy.ones(3).sum(), psutil.__file__)"
    python = python_env.prepare() / "python3"
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, cwd="/").stdout
    import psutil

    assert said.split() == ["1.26.4", "3.0", psutil.__file__]
    assert Path(os.path.realpath(python)).exists()


@pytest.mark.parametrize("family", ["trees", "network"])
def test_a_table_is_learnt_and_answered_the_same_alone_as_in_company(load, family):
    """Nine of ten held-out tumours at least; scikit-learn's own trees get 97 %."""
    from sklearn.datasets import load_breast_cancer

    server = load(ModelSpec(name=family, batching=TOGETHER))
    data = load_breast_cancer()
    held_out = np.arange(len(data.target)) % 4 == 3
    features, labels = data.data[held_out].astype(np.float32), data.target[held_out]
    together = at_once(server, family, np.split(features[:16], 16), "FEATURES", "PROBABILITY")
    batch = np.concatenate(
        [infer(server, family, features[i : i + 16], "FEATURES", "PROBABILITY") for i in (0, 16, 32)]
    )
    assert np.allclose(np.concatenate(together), batch[:16], atol=1e-5)
    assert np.mean((batch[:, 0] > 0.5) == labels[:48]) >= 0.9
