"""A run folder keeps what was written, says what state it is in, and never takes a reader down."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from lab.errors import FolderError
from lab.measure.records import REQUESTS, TELEMETRY
from lab.run import status as status_module
from lab.run.folder import LOG_LIMIT_BYTES, RUN_ID, RunFolder, delete, new_run_id, runs
from lab.run.status import STALE_S, Status, started
from lab.stream import StreamWriter
from tests.waiting import until


@pytest.fixture(autouse=True)
def lab_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def readings(*values: float) -> pa.Table:
    columns = {
        "t_ns": list(range(len(values))),
        "subject": ["host"] * len(values),
        "field": ["cpu_fraction"] * len(values),
        "value": list(values),
        "reason": [None] * len(values),
    }
    return pa.table(columns, schema=TELEMETRY)


def finished(*numbers: int) -> pa.Table:
    zeros = [0] * len(numbers)
    columns = {"block": zeros, "request": list(numbers), "due_ns": zeros, "sent_ns": zeros, "done_ns": zeros}
    given = {**columns, "outcome": zeros}
    return pa.table({name: given.get(name, [None] * len(numbers)) for name in REQUESTS.names}, schema=REQUESTS)


# --- names and life ---


@pytest.mark.parametrize("experiment", ["batching", "null", "a_name_of_the_forty_characters_allowed__"])
def test_a_new_run_id_is_allowed_and_new(experiment: str) -> None:
    first, second = new_run_id(experiment), new_run_id(experiment)
    assert RUN_ID.fullmatch(first)
    assert first != second


@pytest.mark.parametrize(
    "run_id", ["../../etc/passwd", "..", "/etc", "a/b-c-d-e-f", "short", "UPPER-CASE-ID", "", "x" * 61]
)
def test_an_id_that_could_lead_elsewhere_is_refused_by_all_who_take_one(run_id: str) -> None:
    for use in (RunFolder.open, delete, lambda name: RunFolder.create(name, {})):
        with pytest.raises(FolderError, match="allowed are 8 to 60 lower-case letters, digits and dashes"):
            use(run_id)


def test_a_created_run_is_queued_and_gives_its_document_back() -> None:
    created = RunFolder.create("run-00001", {"experiment": {"id": "batching"}})
    opened = RunFolder.open("run-00001")
    assert opened.document == created.document
    assert opened.document["experiment"] == {"id": "batching"}
    assert opened.document["run"] == opened.run_id == "run-00001"
    status = opened.status()
    assert (status.state, status.pid, status.active) == ("queued", os.getpid(), True)


def test_of_two_who_create_one_id_the_second_is_told() -> None:
    RunFolder.create("run-00001", {"winner": True})
    with pytest.raises(FolderError, match="exists already"):
        RunFolder.create("run-00001", {"winner": False})
    assert RunFolder.open("run-00001").document["winner"] is True
    assert [path.name for path in RunFolder.open("run-00001").path.parent.iterdir()] == ["run-00001"]


def test_a_status_is_replaced_whole_and_unknown_states_are_refused() -> None:
    run = RunFolder.create("run-00001", {})
    run.set_status("running", phase="block 3", progress=0.25, message="x")
    run.set_status("draining")
    seen = RunFolder.open("run-00001").status()
    assert (seen.state, seen.phase, seen.progress, seen.message) == ("draining", "draining", None, "")
    for state in ("interrupted", "finished"):  # interrupted is for readers to find out
        with pytest.raises(ValueError, match="allowed to write"):
            run.set_status(state)


# --- interrupted ---

OWN_A_RUN = """
import sys, time
from lab.run.folder import RunFolder
run = RunFolder.create("run-00001", {})
run.set_status("running", phase="block 2", progress=0.5)
print("owned", flush=True)
time.sleep(60)
"""


@pytest.mark.processes
def test_kill_9_of_the_owner_is_soon_seen_as_interrupted_even_before_it_is_reaped() -> None:
    assert STALE_S < 5
    with subprocess.Popen([sys.executable, "-c", OWN_A_RUN], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        run = RunFolder.open("run-00001")
        assert run.status().state == "running"
        owner.send_signal(signal.SIGKILL)
        state = until(lambda: (found := run.status().state) != "running" and found)
        assert owner.returncode is None  # still a zombie: nobody has waited for it
        assert state == "interrupted"
        assert str(owner.pid) in run.status().message
        assert json.loads((run.path / "status.json").read_text())["state"] == "running"  # readers write nothing
        assert runs()[0].state == "interrupted"
        delete("run-00001")
    assert runs() == []


def made_stale(run: RunFolder, **changes: object) -> Status:
    path = run.path / "status.json"
    value = json.loads(path.read_text())
    value["heartbeat_ns"] -= int((STALE_S + 1) * 1e9)
    path.write_text(json.dumps({**value, **changes}))
    return run.status()


def test_a_silent_owner_that_lives_still_runs() -> None:
    run = RunFolder.create("run-00001", {})
    status = made_stale(run)
    assert status.state == "queued"
    assert status.heartbeat_age_s is not None and STALE_S + 0.99 < status.heartbeat_age_s < STALE_S + 60


def test_a_pid_that_is_now_anothers_means_interrupted() -> None:
    run = RunFolder.create("run-00001", {})
    assert made_stale(run, pid_started=12345).state == "interrupted"


def test_a_fresh_heartbeat_counts_though_the_pid_is_not_to_be_seen() -> None:
    run = RunFolder.create("run-00001", {})
    path = run.path / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 2**22 + 1}))
    assert run.status().state == "queued"


def test_a_boot_since_means_interrupted_whatever_the_pid() -> None:
    run = RunFolder.create("run-00001", {})
    path = run.path / "status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "another"}))
    assert run.status().state == "interrupted"
    assert run.status().heartbeat_age_s is None


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
def test_an_end_stays_an_end(state: str) -> None:
    run = RunFolder.create("run-00001", {})
    run.set_status(state)
    assert made_stale(run, pid_started=12345).state == state


def test_a_process_name_with_a_parenthesis_does_not_spoil_its_start_time() -> None:
    libc = ctypes.CDLL(None)
    before = started(os.getpid())
    name = Path("/proc/self/comm").read_text().strip().encode()
    libc.prctl(15, b"a) Z 1 (b", 0, 0, 0)  # PR_SET_NAME
    try:
        assert started(os.getpid()) == before is not None
    finally:
        libc.prctl(15, name, 0, 0, 0)
    assert started(2**22 + 1) is None


# --- streams, events, summary, log ---


def test_streams_are_read_while_they_are_written() -> None:
    run = RunFolder.create("run-00001", {})
    reader = RunFolder.open("run-00001")
    tail = reader.tail("telemetry")
    assert reader.read("telemetry").num_rows == 0
    run.append("telemetry", readings(1.0, 2.0))
    assert tail.new()["value"].to_pylist() == [1.0, 2.0]
    run.append("telemetry", readings(3.0))
    assert tail.new()["value"].to_pylist() == [3.0]
    assert reader.read("telemetry")["value"].to_pylist() == [1.0, 2.0, 3.0]


def test_requests_are_those_of_all_workers() -> None:
    run = RunFolder.create("run-00001", {})
    tail = run.tail("requests")
    with StreamWriter(run.path / "requests-0.arrows", REQUESTS) as writer:
        writer.write(finished(0, 2))
    assert tail.new()["request"].to_pylist() == [0, 2]
    with StreamWriter(run.path / "requests-1.arrows", REQUESTS) as writer:
        writer.write(finished(1, 3))
    assert tail.new()["request"].to_pylist() == [1, 3]
    assert run.read("requests")["request"].to_pylist() == [0, 2, 1, 3]


def test_events_keep_their_order_and_fields_and_a_torn_line_waits() -> None:
    run = RunFolder.create("run-00001", {})
    before = time.perf_counter_ns()
    run.event("phase", phase="warm-up")
    run.event("change", field="rate_rps", to=20, t_ns=7)
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"kind": "died"')
    first, second = RunFolder.open("run-00001").events()
    assert (first["kind"], first["phase"]) == ("phase", "warm-up")
    assert before <= first["t_ns"] <= time.perf_counter_ns()
    assert second == {"kind": "change", "field": "rate_rps", "to": 20, "t_ns": 7}


def test_a_summary_is_none_until_written_and_refuses_nan() -> None:
    run = RunFolder.create("run-00001", {})
    assert run.summary is None
    run.write_summary({"latency_p50_s": None, "ok": 3})
    assert RunFolder.open("run-00001").summary == {"latency_p50_s": None, "ok": 3}
    with pytest.raises(ValueError, match="JSON"):
        run.write_summary({"latency_p50_s": float("nan")})


def test_the_log_keeps_its_newest_lines_within_its_bound() -> None:
    run = RunFolder.create("run-00001", {})
    for number in range(2_500):
        run.log(f"line {number} {'x' * 1000}")
    path = run.path / "log.txt"
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= LOG_LIMIT_BYTES
    assert " line 2499 " in lines[-1]
    numbers = [int(line.split()[2]) for line in lines]
    assert numbers == list(range(numbers[0], 2500))  # whole lines, none missing in between


# --- what is damaged, what is many, what is full ---


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("run.json", "{", "run.json: damaged"),
        ("run.json", "[]", "holds list, expected an object"),
        ("run.json", None, "run.json: cannot be read"),
        ("run.json", '{"schema_version": "9"}', "schema version '9'; this lab reads '2'"),
        ("status.json", "", "status.json: damaged"),
        ("status.json", '{"state": "done"}', "lacks phase, progress"),
        ("status.json", None, "status.json: cannot be read"),
    ],
)
def test_a_damaged_folder_is_listed_with_one_line_and_can_be_deleted(file: str, content: str | None, says: str) -> None:
    RunFolder.create("run-whole", {}).set_status("done")
    path = RunFolder.create("run-damaged", {}).path
    (path / file).unlink() if content is None else (path / file).write_text(content)
    listed = {info.run_id: info for info in runs()}
    assert listed["run-whole"].state == "done"
    assert listed["run-damaged"].state == "damaged"
    assert says in listed["run-damaged"].message
    assert "\n" not in listed["run-damaged"].message
    delete("run-damaged")
    assert [info.run_id for info in runs()] == ["run-whole"]


def test_what_is_not_there_is_said_in_one_line() -> None:
    for use in (RunFolder.open, delete):
        with pytest.raises(FolderError, match="there is no run 'run-00001'"):
            use("run-00001")


@pytest.mark.parametrize("name", ["batching", "lora", "kv_cache"])
def test_the_name_of_a_recording_leads_to_its_run_id_and_to_its_player(name: str) -> None:
    with pytest.raises(FolderError, match=f"`python -m lab cassette play {name}`") as refused:
        RunFolder.open(name)
    run_id = str(refused.value).partition("its run id, ")[2].partition(",")[0]
    assert RunFolder.open(run_id).document["experiment"]["id"] == name


def test_a_word_too_short_for_an_id_is_no_run() -> None:
    with pytest.raises(FolderError, match=r"there is no run 'nosuch': allowed are 8 to 60 .*`python -m lab runs`"):
        RunFolder.open("nosuch")


def test_a_run_that_goes_on_is_not_deleted() -> None:
    RunFolder.create("run-00001", {}).set_status("running")
    with pytest.raises(FolderError, match="is running; stop it"):
        delete("run-00001")


def test_200_runs_are_listed_newest_first_and_fast() -> None:
    cells = [{"factors": {"a": n}, "model": {"name": "digits"}, "workload": {"seed": 0}} for n in range(15)]
    for number in range(200):
        utc = f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}+00:00"
        RunFolder.create(f"run-{199 - number:05d}", {"cells": cells, "created_utc": utc}).set_status("done")
    seconds = []
    for _ in range(6):  # the fastest is what it takes where nothing else runs
        begin = time.perf_counter()
        listed = runs()
        seconds.append(time.perf_counter() - begin)
    assert [info.run_id for info in listed] == [f"run-{n:05d}" for n in range(200)]
    assert min(seconds) < 2  # seconds, as the page that lists them may take


@pytest.fixture
def small_disk(lab_home: Path) -> Path:
    """LAB_HOME on a disk of 4 MiB; needs root."""
    lab_home.mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", lab_home], capture_output=True, text=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"a small disk can't be mounted here: {mount.stderr.strip()}")
    yield lab_home
    subprocess.run(["umount", "-l", lab_home], check=True)


def test_a_full_disk_ends_in_a_clear_state_with_earlier_rows_readable(small_disk: Path) -> None:
    run = RunFolder.create("run-00001", {})
    run.append("telemetry", readings(1.0))
    run.event("phase", phase="running")
    written = 1
    with pytest.raises(FolderError, match=r"telemetry\.arrows: No space left on device.*make room") as caught:
        while True:
            run.append("telemetry", readings(*[2.0] * 1000))
            written += 1000
    with pytest.raises(OSError, match="No space"), (small_disk / "somebody-else").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass
        file.write(bytes(4096))
    with pytest.raises(FolderError, match=r"status\.json: .*No space left"):
        run.set_status("running", phase="x" * 8000)
    with pytest.raises(FolderError, match=r"events\.jsonl"):
        for _ in range(1000):
            run.event("phase", text="x" * 5000)
    run.log("x" * 10_000)  # no error
    run.write_summary({"note": "y" * 100_000})  # what the runner does at the end, on the disk as it is
    run.set_status("failed", message=str(caught.value))
    run.close()

    opened = RunFolder.open("run-00001")
    assert opened.status().state == "failed"
    assert "No space left" in opened.status().message
    assert opened.read("telemetry").num_rows == written
    assert opened.events()[0]["phase"] == "running"
    assert opened.summary == {"note": "y" * 100_000}
    (small_disk / "somebody-else").unlink()
    run.event("phase", phase="room again")
    assert opened.events()[-1]["phase"] == "room again"


WRITE_UNTIL_KILLED = """
import sys
import pyarrow as pa
from lab.measure.records import TELEMETRY
from lab.run.folder import RunFolder
run = RunFolder.create("run-00001", {})
run.set_status("running")
for n in range(10**9):
    row = {"t_ns": [n], "subject": ["host"], "field": ["f" * 3000], "value": [1.0], "reason": [None]}
    run.append("telemetry", pa.table(row, schema=TELEMETRY))
    run.event("phase", n=n)
    run.set_status("running", progress=0.5)
    print(n, flush=True)
"""


@pytest.mark.processes
def test_kill_9_in_the_midst_of_writing_keeps_every_row_and_event() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITE_UNTIL_KILLED], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        for _ in range(100):
            owner.stdout.readline()
        owner.send_signal(signal.SIGKILL)
        told = [99, *(int(line) for line in owner.stdout.read().split())][-1]
    run = RunFolder.open("run-00001")
    rows = run.read("telemetry")["t_ns"].to_pylist()
    events = [event["n"] for event in run.events()]
    assert rows == list(range(len(rows)))
    assert events == list(range(len(events)))
    assert {len(rows) - 1, len(events) - 1} <= {told, told + 1}
    assert run.status().progress == 0.5


@pytest.mark.processes
def test_readers_never_meet_half_a_status() -> None:
    with subprocess.Popen([sys.executable, "-c", WRITE_UNTIL_KILLED], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        run = RunFolder.open("run-00001")
        states = {run.status().state for _ in range(500)}
        owner.kill()
    assert states == {"running"}


def test_the_boot_is_known_here() -> None:
    assert status_module._boot_id() != "unknown"
