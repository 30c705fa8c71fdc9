"""The command against a real Triton: killed, resumed, done before; and a night's recommendations end to end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lab.batch import job, neighbours
from lab.home import home
from lab.load.payload import held_out_digits
from lab.serve import record
from lab.spec import Batching, ModelSpec
from tests.waiting import until

DIGITS = ModelSpec(name="digits", batching=Batching(max_batch_size=64))
ROWS = 3000


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("batch") / "in.jsonl"
    digits = held_out_digits()
    with path.open("w") as file:
        for i in range(ROWS):
            row = {"id": i, "image": digits[i % len(digits)].tolist()}
            file.write(json.dumps(row) + "\n" if i != 7 else "{}\n")
    return path


@pytest.mark.triton
def test_a_job_that_is_killed_ends_as_if_it_had_not_been(triton_server, images, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "OTHER_ROWS", 100)
    triton_server.load(DIGITS)  # so it is used, and no other is started
    straight = tmp_path / "straight.jsonl"
    result = job.run(job.Job(DIGITS, images, straight), lambda progress: None)
    assert (result.rows, result.errors, result.asked) == (ROWS, 1, ROWS)
    answers = [json.loads(line) for line in straight.read_text().splitlines()]
    assert [answer["row"] for answer in answers] == list(range(ROWS))
    logits = triton_server_logits(triton_server, held_out_digits())
    assert [answer["answer"] for answer in answers if answer["row"] != 7] == [
        int(logits[i % len(logits)].argmax()) for i in range(ROWS) if i != 7
    ]
    killed = tmp_path / "killed.jsonl"
    parts = killed.with_name("killed.jsonl.parts")
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(images), str(killed)], env=dict(os.environ))
    until(lambda: (parts / "00000003.arrow").exists())
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = job.run(job.Job(DIGITS, images, killed), lambda progress: None)
    assert again.asked < ROWS
    assert killed.read_bytes() == straight.read_bytes()
    assert job.run(job.Job(DIGITS, images, killed), lambda progress: None).was_done


@pytest.mark.triton
def test_items_become_vectors_become_neighbours_beside_a_server_that_stays_as_it_is(triton_server, tmp_path):
    """The lab's Triton serves another configuration, so the job has a server of its own, which nobody finds."""
    triton_server.load(DIGITS)
    others, before = (triton_server.config("digits"), triton_server.states()), record.read()
    items = tmp_path / "items.jsonl"
    texts = {
        "cup": "a cup of hot black coffee in the morning",
        "mug": "a mug of hot black coffee in the morning",
        "dog": "the dog runs after a ball in the park",
        "hound": "the hound runs after a ball in the park",
        "long": "a cup of coffee " * 500,
        "row of 5 MB": "the dog runs " * (5 * 2**20 // 13),
    }
    items.write_text("".join(json.dumps({"id": id, "text": text}) + "\n" for id, text in texts.items()) + "{broken\n")
    embedder = ModelSpec(name="embedder", batching=Batching(max_batch_size=64))
    vectors, similar = tmp_path / "vectors.parquet", tmp_path / "similar.jsonl"
    seen = set()
    result = job.run(job.Job(embedder, items, vectors), lambda progress: seen.add(record.read()))
    assert (result.rows, result.errors, result.cut) == (7, 1, 2)
    table = pq.read_table(vectors)
    assert table["tokens_cut"].to_pylist()[:4] == [0, 0, 0, 0]
    assert table["tokens_cut"][4].as_py() == 4 * 500 + 2 - 256
    assert seen == {before}
    assert (triton_server.config("digits"), triton_server.states()) == others
    assert not list((home() / "batch").glob("*"))
    neighbours.run(neighbours.Job(vectors, similar, top=2), lambda progress: None)
    found = {row["id"]: row["neighbour_ids"] for row in map(json.loads, similar.read_text().splitlines())}
    assert {found[id][0] for id in ("cup", "mug")} == {"cup", "mug"}
    assert {found[id][0] for id in ("dog", "hound")} == {"dog", "hound"}
    exact = np.array(table["answer"].to_pylist()[:6])
    cosine = exact @ exact.T - 2 * np.eye(6)
    assert found["long"] == [list(texts)[n] for n in np.argsort(-cosine[4])[:2]]


KILLED = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from lab.batch import job, parts
from lab.spec import Batching, ModelSpec
job.OTHER_ROWS = 100
add, count = parts.Parts.add, iter(range(4))

def held(self, part):  # goes no further, so that it is killed here however late that is
    add(self, part)
    if next(count) == 3:
        time.sleep(600)

parts.Parts.add = held
spec = ModelSpec(name="digits", batching=Batching(max_batch_size=64))
job.run(job.Job(spec, Path(sys.argv[1]), Path(sys.argv[2])), lambda progress: None)
"""


def triton_server_logits(server, images):
    """By tritonclient, an image at a time."""
    import tritonclient.grpc as triton

    logits = []
    for image in images:
        tensor = triton.InferInput("IMAGE", [1, 64], "FP32")
        tensor.set_data_from_numpy(image[None].astype(np.float32))
        logits.append(server.client.infer("digits", [tensor]).as_numpy("LOGITS")[0])
    return logits
