"""A worker as a real process: its stages, its answers, its end; a forked one; what the page cache keeps; a limit."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lab.serve import scratch
from lab.serve.cold import limit, packed, page_cache
from lab.serve.cold.http import BadRequest, tensors
from lab.serve.cold.line import Failed
from lab.serve.cold.starter import Starter
from lab.spec import ModelSpec, Start
from tests.waiting import until

pytestmark = pytest.mark.processes

MIB = 2**20
NULL = ModelSpec(name="null")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def starter(home: Path) -> Iterator[Starter]:
    with Starter(NULL, Start(), log=home / "starts.log") as made:
        made.prepare()
        yield made


GOOD = ({"name": "INPUT", "shape": [1, 1], "datatype": "FP32", "data": [3.5]},)


def infer(port: int, name: str = "null", inputs: Sequence[Any] = GOOD) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    asked = {"inputs": list(inputs)}
    connection.request("POST", f"/v2/models/{name}/infer", json.dumps(asked))
    answer = connection.getresponse()
    return {"status": answer.status, **json.loads(answer.read())}


def test_a_start_is_stages_in_order_on_the_owners_clock_and_then_answers(starter: Starter) -> None:
    starter.forget()
    worker = starter.start()
    try:
        names = [stage.name for stage in worker.stages]
        assert names == ["process", "import_model", "import_model", "convert", "runtime", "warm_up"]
        stamps = [stamp for stage in worker.stages for stamp in (stage.begin_ns, stage.end_ns)]
        assert stamps == sorted(stamps) and stamps[0] == worker.asked_ns and stamps[-1] <= worker.ready_ns
        told = infer(worker.port)
        assert told["status"] == 200 and told["outputs"][0]["shape"] == [1, 1]
        assert infer(worker.port, "other")["status"] == 404
        assert worker.alive()
    finally:
        worker.stop()
    assert not worker.alive()


def test_a_worker_that_is_killed_is_known_at_once_with_how(starter: Starter) -> None:
    worker = starter.start()
    os.kill(worker.pid, signal.SIGKILL)
    until(lambda: not worker.alive(), "the worker's end")
    assert "signal 9" in worker.why_ended() or until(lambda: "signal 9" in worker.why_ended())
    worker.stop()


def test_one_that_cannot_load_says_why_and_is_gone(starter: Starter) -> None:
    broken = starter._place / "null" / "1" / "model.py"
    broken.write_text("raise RuntimeError('no such model today')\n")
    with pytest.raises(Failed, match=r"null did not come up: RuntimeError: no such model today, after import_model"):
        starter.start()


def test_a_fork_of_a_parent_answers_and_both_end_with_their_owner(home: Path) -> None:
    with Starter(NULL, Start(zygote=True), log=home / "starts.log") as made:
        made.prepare()
        parent = made.zygote_pid
        assert parent is not None
        first, second = made.start(), made.start()
        assert infer(first.port)["status"] == infer(second.port)["status"] == 200
        assert first.pid != second.pid and Path(f"/proc/{first.pid}/stat").read_text().split()[3] == str(parent)
        first.stop()
        until(lambda: not _lives(first.pid), "the fork's end")
        assert infer(second.port)["status"] == 200
    until(lambda: not _lives(parent) and not _lives(second.pid), "the parent's end")


OWNER = """
import sys, time
from pathlib import Path
from lab.serve.cold.starter import Starter
from lab.spec import ModelSpec, Start
starter = Starter(ModelSpec(name="null"), Start(zygote=True), log=Path(sys.argv[1]))
starter.prepare()
worker = starter.start()  # held: a worker whose connection is dropped ends
print(worker.pid, starter.zygote_pid, flush=True)
time.sleep(60)
"""


def test_whoever_is_killed_takes_its_workers_and_their_parent_along(home: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(home / "starts.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) == 2 and all(map(_lives, pids))
        owner.kill()
    until(lambda: not any(map(_lives, pids)), "the end of what a killed process had started")
    (left,) = scratch.find()
    assert left.name.startswith("lab-cold-")
    with Starter(NULL, Start(), log=home / "starts.log"):  # the next one removes what that one could not
        assert not left.exists()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_the_page_cache_forgets_and_that_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(4 * MIB))
    page_cache.warm([path])
    if page_cache.resident_bytes([path]) is None:
        pytest.skip("this kernel does not tell what it keeps")
    assert page_cache.resident_bytes([path]) == 4 * MIB
    page_cache.drop([path])
    left = page_cache.resident_bytes([path])
    assert left is not None
    if left == 4 * MIB:
        pytest.skip("this file system keeps its pages in memory (tmpfs)")
    assert left == 0
    empty = tmp_path / "empty"
    empty.touch()
    assert page_cache.resident_bytes([empty]) == 0


def test_packed_weights_are_those_that_were_written(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    weights = SimpleNamespace(
        arena=random.integers(0, 2**32, 100_000, np.uint32),
        matrices=random.integers(0, 100, (3, 4, 4)),
        norms=random.random((5, 64), np.float32),
        cos=random.random((8, 16), np.float32),
        sin=random.random((8, 16), np.float32),
    )
    place = tmp_path / "packed"
    assert not packed.is_kept(place)
    packed.write(place, weights)
    assert packed.is_kept(place)
    again = packed.mapped(place)
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(again, vars(weights).values(), strict=True))
    assert again[0].flags.writeable and again[0].flags.c_contiguous  # as what the kernels were compiled for
    packed.write(place, weights)  # who comes second finds it there
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


LIMITED = """
import sys
from lab.serve.cold import limit
held = bytearray(8 << 20)
limit.apply(int(sys.argv[1]), None)
within = bytearray(int(sys.argv[2]))
print(len(within))
"""


def allocated(limit_bytes: int, wanted_bytes: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(limit_bytes), str(wanted_bytes)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_process_may_take_its_limit_and_no_more() -> None:
    assert allocated(400 * MIB, 200 * MIB).stdout.strip() == str(200 * MIB)
    beyond = allocated(400 * MIB, 600 * MIB)
    assert beyond.returncode != 0 and "MemoryError" in beyond.stderr
    below = allocated(1 * MIB, 1)
    assert "MemoryError: the imports alone hold" in below.stderr


def test_a_cgroup_is_made_with_its_limit_where_it_may_be(tmp_path: Path) -> None:
    assert limit.enforcer(tmp_path) == "rlimit"
    (tmp_path / "cgroup.subtree_control").write_text("cpu io")
    assert limit.enforcer(tmp_path) == "rlimit"
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory")
    assert limit.enforcer(tmp_path) == "cgroup"
    group = limit.make_group(123 * MIB, tmp_path)
    assert (group / "memory.max").read_text() == str(123 * MIB)
    assert (group / "memory.oom.group").read_text() == "1"
    assert not limit.was_exceeded(group)
    (group / "memory.events").write_text("oom 1\noom_kill 0\n")
    assert not limit.was_exceeded(group)
    (group / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert limit.was_exceeded(group)


def test_only_a_worker_has_a_group_and_a_start_that_fails_takes_it_along(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    gone: list[Path] = []

    def make(limit_bytes: int) -> Path:
        made.append(home / f"group{len(made)}")
        made[-1].mkdir()
        return made[-1]

    monkeypatch.setattr(limit, "enforcer", lambda: "cgroup")
    monkeypatch.setattr(limit, "make_group", make)
    monkeypatch.setattr(limit, "remove_group", gone.append)
    with Starter(NULL, Start(compile_cache=True), log=home / "starts.log", memory_limit_bytes=MIB) as starter:
        starter.prepare()  # a start fills the cache: a compiler may take what it takes
        assert made == []
        (starter._place / "null" / "1" / "model.py").write_text("raise RuntimeError('not today')\n")
        with pytest.raises(Failed, match="not today"):
            starter.start()
    assert len(made) == 1 and gone == made


def test_requests_of_the_v2_protocol_are_read_and_what_is_none_is_told() -> None:
    raw = b"".join(len(text).to_bytes(4, "little") + text for text in (b"a", "ü".encode()))
    head = json.dumps(
        {
            "inputs": [
                {"name": "X", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}},
                {"name": "T", "shape": [2, 1], "datatype": "BYTES", "parameters": {"binary_data_size": len(raw)}},
                {"name": "Y", "shape": [1, 1], "datatype": "INT32", "data": [7]},
            ]
        }
    ).encode()
    wanted = {"X": ("FP32", 2), "T": ("BYTES", 1), "Y": ("INT32", 1)}
    found = tensors(head + np.array([1.5, -2], "<f4").tobytes() + raw, len(head), wanted)
    assert found["X"].tolist() == [[1.5, -2.0]] and found["T"].tolist() == [[b"a"], ["ü".encode()]]
    assert found["Y"].dtype == np.int32 and found["Y"].tolist() == [[7]]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "no request of the v2 protocol"),
        ("[]", "allowed: a JSON object"),
        ('{"inputs": "X"}', "inputs: allowed: a list"),
        ('{"inputs": [["X"]]}', "inputs: allowed: a list"),
        ('{"inputs": []}', "inputs none; allowed: X"),
        ('{"inputs": [{"name": "Z"}]}', "inputs Z; allowed: X"),
        ('{"inputs": [{"name": "X"}, {"name": "X"}]}', "inputs X, X; allowed: X"),
        ('{"inputs": [{"name": "X", "datatype": "INT32"}]}', "input X: datatype INT32; allowed: FP32"),
        ('{"inputs": [{"name": "X", "datatype": "FP32", "shape": [3]}]}', r"input X: shape .3.; allowed: .N, 2."),
        ('{"inputs": [{"name": "X", "datatype": "FP32", "shape": [0, 2], "data": []}]}', "N from 1 on"),
        ('{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2]}]}', "an input without data"),
        ('{"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 2], "data": [1]}]}', "cannot reshape"),
    ],
)
def test_wrong_inputs_are_told_with_what_is_allowed(body: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        tensors(body.encode(), len(body), {"X": ("FP32", 2)})


def test_a_wrong_request_is_answered_400_and_the_worker_goes_on(starter: Starter) -> None:
    worker = starter.start()
    try:
        assert infer(worker.port, inputs=[])["status"] == 400
        assert infer(worker.port, inputs=[{"name": "other", "shape": [1, 1]}])["status"] == 400
        assert infer(worker.port)["status"] == 200
    finally:
        worker.stop()
