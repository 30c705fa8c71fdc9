"""What models take, kept from one load to the next; on hosts and on GPUs, without a server."""

import json

import pytest

from lab.measure.footprint import Footprint
from lab.run import footprints
from lab.run.footprints import TritonShelf, keep, kind, known, predicted_bytes
from lab.spec import Batching, ModelSpec
from lab.watch.reading import Reading

MIB = 2**20
TORCH = {"/lib/torch.so": 100 * MIB}


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def digits(n, **more):
    return ModelSpec(name=f"digits_{n}", family="digits", **more)


def test_copies_are_of_one_kind_and_what_changes_memory_is_not():
    assert kind(digits(1)) == kind(digits(2, seed=7))
    assert kind(digits(1)) != kind(digits(1, precision="bf16"))
    assert kind(digits(1)) != kind(digits(1, instances=2))
    assert kind(digits(1)) != kind(digits(1, batching=Batching(max_batch_size=64)))


def test_a_kind_is_remembered_with_its_regions_as_its_own():
    assert known(digits(1)) is None
    keep(digits(1), Footprint(30 * MIB, TORCH, {"/dev/shm/x": MIB}))
    assert known(digits(2)) == Footprint(31 * MIB, TORCH)


def test_eight_copies_are_predicted_from_one_and_an_unknown_kind_is_not():
    keep(digits(1), Footprint(30 * MIB, TORCH))
    keep(ModelSpec(name="embedder"), Footprint(50 * MIB, {**TORCH, "/lib/tokenizers.so": 10 * MIB}))
    four = [digits(n) for n in range(4)]
    assert predicted_bytes([*four, ModelSpec(name="embedder")]) == (4 * 30 + 50 + 100 + 10) * MIB
    assert predicted_bytes([*four, ModelSpec(name="null")]) is None
    assert predicted_bytes([]) == 0


def test_two_instances_are_predicted_from_one_until_they_were_seen():
    keep(digits(1), Footprint(30 * MIB, TORCH))
    assert known(digits(1, instances=2)) == Footprint(60 * MIB, TORCH)
    assert predicted_bytes([digits(1, instances=2), digits(2)]) == (3 * 30 + 100) * MIB
    keep(digits(1, instances=2), Footprint(63 * MIB, TORCH))
    assert known(digits(2, instances=2)) == Footprint(63 * MIB, TORCH)
    assert known(digits(1)) == Footprint(30 * MIB, TORCH)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 1}', '{"x": {"own_bytes": "much"}}'])
def test_a_damaged_file_knows_nothing(own_home, text):
    (own_home / "footprints.json").write_text(text.replace('"x"', json.dumps(kind(digits(1)))))
    assert known(digits(1)) is None
    keep(digits(1), Footprint(1, {}))
    assert known(digits(1)) == Footprint(1, {})


class Server:
    pid = 4242

    def __init__(self):
        self.calls = []

    def load(self, spec):
        self.calls.append(("load", spec.name))

    def unload(self, name):
        self.calls.append(("unload", name))


@pytest.fixture
def shelf(monkeypatch):
    """Two digits and a null on a server whose processes hold what `held` says, in MiB."""
    held = {"digits_1": 30, "digits_2": 31, "null": 20}
    pids = {name: [n] for n, name in enumerate(held, start=1)}
    monkeypatch.setattr(footprints.host, "model_processes", lambda pid: pids)
    by_pid = {n: name for name, (n,) in pids.items()}
    monkeypatch.setattr(
        footprints.smaps,
        "footprint",
        lambda pids: Footprint(held[by_pid[pids[0]]] * MIB, TORCH if pids[0] < 3 else {}),
    )
    found = TritonShelf(Server(), [digits(1), digits(2), ModelSpec(name="null")])
    found.held = held
    return found


def test_a_kind_counts_nothing_until_one_was_loaded_and_then_what_it_takes(shelf):
    assert shelf.size_bytes(["digits_1", "digits_2"]) == 0
    shelf.load("digits_1")
    assert shelf.size_bytes(["digits_1"]) == 130 * MIB
    assert shelf.size_bytes(["digits_1", "digits_2"]) == 160 * MIB  # predicted: torch is there already
    shelf.load("digits_2")
    assert shelf.measured_bytes() == 161 * MIB
    assert shelf.size_bytes(["digits_1", "digits_2"]) == 162 * MIB  # the first may yet grow as the second did
    assert shelf.is_known("digits_2")
    assert not shelf.is_known("null")


def test_what_a_model_grew_to_is_its_size_from_then_on(shelf):
    shelf.load("digits_1")
    shelf.held["digits_1"] = 45
    shelf.unload("digits_1")
    assert shelf.measured_bytes() == 0
    assert shelf.size_bytes(["digits_1"]) == 145 * MIB
    assert known(digits(9)) == Footprint(45 * MIB, TORCH)


def test_on_a_gpu_its_memory_counts_as_nvml_tells_it_by_process(monkeypatch):
    told = [
        Reading("gpu:0", "process_memory_bytes:1", 500.0 * MIB),
        Reading("gpu:1", "process_memory_bytes:1", 100.0 * MIB),
        Reading("gpu:0", "process_memory_bytes:9", 7.0 * MIB),
    ]
    monkeypatch.setattr(footprints.host, "model_processes", lambda pid: {"digits_1": [1]})
    monkeypatch.setattr(footprints, "read_gpus", lambda: told)
    monkeypatch.setattr(footprints, "used_bytes", lambda: None)
    shelf = TritonShelf(Server(), [digits(1, device="gpu")])
    shelf.load("digits_1")
    assert shelf.size_bytes(["digits_1"]) == 600 * MIB
    monkeypatch.setattr(footprints, "read_gpus", lambda: [Reading("gpu:0", "process_memory_bytes:1", None, "not here")])
    assert shelf.look("digits_1") is None  # a size that nobody tells is none


def test_where_nvml_tells_no_process_a_model_is_what_the_gpus_hold_more(monkeypatch):
    held = iter([1000.0 * MIB, 1600.0 * MIB])
    monkeypatch.setattr(footprints.host, "model_processes", lambda pid: {"digits_1": [1]})
    monkeypatch.setattr(footprints, "read_gpus", lambda: [Reading("gpu:0", "process_memory_bytes:999", 500.0 * MIB)])
    monkeypatch.setattr(footprints, "used_bytes", lambda: next(held))
    shelf = TritonShelf(Server(), [digits(1, device="gpu"), digits(2, device="gpu")])
    shelf.load("digits_1")
    assert shelf.measured_bytes() == 600 * MIB
    assert shelf.size_bytes(["digits_1", "digits_2"]) == 1200 * MIB
