"""The exporter against a stand-in for MLflow that writes down what it was told, and against the real one."""

import json
import os
import sqlite3
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.errors import FolderError, InputError
from lab.run import results
from lab.run.folder import RunFolder
from lab.track import mlflow_export
from lab.track.bundle import bundle, metric_name, metrics
from tests.show.synthetic import batching_run
from tests.waiting import until

pytestmark = pytest.mark.processes

RUN = "20261130-010101-batching-done"
FAKE = '''
    """Keeps every call in a JSON file."""
    import json, os
    from pathlib import Path
    from types import SimpleNamespace as NS
    KEPT = Path(os.environ["FAKE_MLFLOW"])
    class MlflowClient:
        def __init__(self, tracking_uri):
            if os.environ.get("FAKE_FAILS"):
                raise RuntimeError(os.environ["FAKE_FAILS"])
            if os.environ.get("FAKE_BUSY_S"):  # as MLflow: a real database, whose lock is waited for so long
                import sqlite3
                db = sqlite3.connect(str(KEPT) + ".db", timeout=float(os.environ["FAKE_BUSY_S"]))
                db.execute("BEGIN IMMEDIATE")
                db.rollback()
            self.db = json.loads(KEPT.read_text()) if KEPT.exists() else {"uri": tracking_uri, "runs": {}}
        def keep(self):
            KEPT.write_text(json.dumps(self.db))
        def get_experiment_by_name(self, name):
            return NS(experiment_id="1") if "experiment" in self.db else None
        def create_experiment(self, name, artifact_location):
            self.db["experiment"] = [name, artifact_location]; self.keep()
            return "1"
        def search_runs(self, ids, filter_string):
            wanted = filter_string.rpartition("= ")[2].strip("'")
            return [NS(info=NS(run_id=k), data=NS(tags=v["tags"])) for k, v in self.db["runs"].items()
                    if v["tags"].get("lab.run") == wanted and not v.get("deleted")]
        def delete_run(self, run_id):
            self.db["runs"][run_id]["deleted"] = True; self.keep()
        def create_run(self, experiment_id, start_time, run_name, tags):
            run_id = f"r{len(self.db['runs'])}"
            self.db["runs"][run_id] = {"name": run_name, "tags": tags, "params": {}, "metrics": [], "artifacts": []}
            self.keep()
            return NS(info=NS(run_id=run_id))
        def log_batch(self, run_id, metrics=(), params=()):
            assert len(metrics) <= 1000 and len(params) <= 100
            run = self.db["runs"][run_id]
            for name, value in params:
                assert name not in run["params"]
                run["params"][name] = value
            run["metrics"] += [list(m) for m in metrics]; self.keep()
        def log_artifact(self, run_id, path):
            assert Path(path).is_file()
            self.db["runs"][run_id]["artifacts"].append(Path(path).name); self.keep()
        def set_tag(self, run_id, name, value):
            if os.environ.get("FAKE_DIES"):
                os._exit(9)
            self.db["runs"][run_id]["tags"][name] = value; self.keep()
        def set_terminated(self, run_id, status, end_time):
            self.db["runs"][run_id]["status"] = status; self.keep()
'''
ENTITIES = """
    def Metric(key, value, timestamp, step): return (key, value, timestamp, step)
    def Param(key, value): return (key, value)
"""


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    own = tmp_path_factory.mktemp("home")
    before = os.environ.get("LAB_HOME")
    os.environ["LAB_HOME"] = str(own)
    batching_run(RUN, duration_s=2.0)
    if before is not None:
        os.environ["LAB_HOME"] = before
    return own


@pytest.fixture
def fake(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LAB_HOME with one run, and an interpreter whose MLflow is the stand-in; where the latter writes."""
    package = tmp_path / "site" / "mlflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(textwrap.dedent(FAKE))
    (package / "entities.py").write_text(textwrap.dedent(ENTITIES))
    python = tmp_path / "python"
    import sys

    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH={package.parent} {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("LAB_HOME", str(shelf))
    monkeypatch.setenv("LAB_MLFLOW_PYTHON", str(python))
    monkeypatch.setenv("FAKE_MLFLOW", str(tmp_path / "kept.json"))
    return tmp_path / "kept.json"


def told(kept: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def test_a_run_is_a_parent_and_its_cells_are_children(fake: Path, shelf: Path) -> None:
    found = mlflow_export.export(RUN, "<p>report</p>")
    assert found.state == "done" and found.mlflow_run == "r0"
    assert mlflow_export.state(RUN) == found
    assert mlflow_export.page(found, 5000) == "http://127.0.0.1:5000/#/experiments/1/runs/r0"
    kept = told(fake)
    assert kept["uri"] == f"sqlite:///{shelf}/mlflow/mlflow.db"
    parent, *children = kept["runs"].values()
    cells = [c for c in results.document(RunFolder.open(RUN))["cells"] if c["role"] == "cell"]
    assert len(children) == len(cells) > 3
    assert all(child["tags"]["mlflow.parentRunId"] == "r0" for child in children)
    assert parent["tags"]["lab.whole"] == "true" and parent["status"] == "FINISHED"
    assert parent["params"]["model.name"] == "digits" and "slo.latency_s" in parent["params"]
    assert {"run.json", "summary.json", "events.jsonl", "requests.parquet", "report.html"} <= set(parent["artifacts"])
    first = {name: value for name, value, _, _ in children[0]["metrics"]}
    assert first["throughput_rps"] == cells[0]["summary"]["throughput_rps"]


def test_the_code_is_in_the_tags(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(shelf))
    folder = RunFolder.open(RUN)
    found = results.document(folder)
    lab = {"commit": "0" * 40, "dirty": False, "version": None}
    made = bundle(folder, {**found, "environment": {**found["environment"], "lab": lab}}, tmp_path)
    tags = made["parent"]["tags"]
    assert (tags["mlflow.source.git.commit"], tags["lab.dirty"]) == ("0" * 40, "false")
    assert not {"lab.version", "lab.changes"} & set(tags)
    changed = {**lab, "dirty": True, "changes": "3f09ab"}
    made = bundle(folder, {**found, "environment": {**found["environment"], "lab": changed}}, tmp_path)
    assert made["parent"]["tags"]["lab.changes"] == "3f09ab"


def test_the_series_has_one_value_a_second_at_its_second(fake: Path) -> None:
    mlflow_export.export(RUN)
    points = [m for m in told(fake)["runs"]["r0"]["metrics"] if m[0].startswith("per_second/")]
    name = points[0][0]
    own = [m for m in points if m[0] == name]
    assert [step for _, _, _, step in own] == sorted({step for _, _, _, step in own})
    assert own[1][2] - own[0][2] == 1000 * (own[1][3] - own[0][3])


def test_a_run_that_is_there_is_not_written_twice(fake: Path) -> None:
    first, again = mlflow_export.export(RUN), mlflow_export.export(RUN)
    assert first.mlflow_run == again.mlflow_run
    assert sum("mlflow.parentRunId" not in run["tags"] for run in told(fake)["runs"].values()) == 1


def test_half_an_export_is_written_anew(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_DIES", "1")
    assert mlflow_export.export(RUN).state == "failed"
    half = len(told(fake)["runs"])
    monkeypatch.delenv("FAKE_DIES")
    assert mlflow_export.export(RUN).state == "done"
    runs = told(fake)["runs"]
    assert len(runs) == 2 * half and sum(bool(run.get("deleted")) for run in runs.values()) == half


def test_a_locked_database_can_be_tried_again(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAILS", "(sqlite3.OperationalError) database is locked\n[SQL: x]")
    found = mlflow_export.export(RUN)
    assert found.state == "failed" and found.again
    assert found.text == "MLflow's database is locked by another process; close it, or try again when it is done."
    assert main(["export", RUN]) == 1
    monkeypatch.setenv("FAKE_FAILS", "no such\ntable: runs")
    assert mlflow_export.export(RUN).text == "MLflow refused: no such table: runs"


@pytest.mark.parametrize(("busy_s", "held_s", "state"), [(0.2, 30.0, "failed"), (30.0, 0.3, "done")])
def test_a_database_that_is_held_costs_the_lab_nothing_and_the_export_a_wait(
    fake: Path, monkeypatch: pytest.MonkeyPatch, busy_s: float, held_s: float, state: str
) -> None:
    """P28: another process holds BEGIN EXCLUSIVE for longer, or shorter, than MLflow waits (20 s there, less here)."""
    monkeypatch.setenv("FAKE_BUSY_S", str(busy_s))
    holder = sqlite3.connect(f"{fake}.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    free = threading.Timer(held_s, holder.rollback)
    free.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            export = pool.submit(mlflow_export.export, RUN)
            until(lambda: (now := mlflow_export.state(RUN)) and now.state == "going", "the export to begin")
            assert results.document(RunFolder.open(RUN))["state"] == "done"  # while it waits, the lab reads on
            found = export.result(60)
        assert found.state == state
        if state == "failed":
            assert found.again and "locked by another process" in found.text and "\n" not in found.text
            holder.rollback()
            assert mlflow_export.export(RUN).state == "done"
    finally:
        free.cancel()
        holder.close()


def test_without_mlflow_the_answer_says_what_to_do(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(shelf))
    monkeypatch.setenv("LAB_MLFLOW_PYTHON", "/no/such/python")
    assert mlflow_export.interpreter() is None
    found = mlflow_export.export(RUN)
    assert found.state == "failed" and "requirements.txt" in found.text
    assert main(["mlflow"]) == 1


def test_only_a_run_that_is_there_can_be_exported(fake: Path) -> None:
    with pytest.raises(FolderError, match="there is no run"):
        mlflow_export.export("20261130-000000-nothing")
    with pytest.raises(FolderError, match="allowed are"):
        mlflow_export.state("../../etc/passwd")
    with pytest.raises(InputError, match="port 0"):
        mlflow_export.serve_ui(0, print)


def test_a_figure_that_was_not_measured_is_left_out_and_so_is_one_that_is_not_finite() -> None:
    found = metrics({"a": None, "b": float("inf"), "c": float("nan"), "d": 2, "e": True, "notes": {"a": "why"}})
    assert found == {"d": 2.0}
    assert metric_name("p99 (ms)") == "p99 _ms_" and metric_name("tok/s") == "tok/s"


def test_everything_in_a_bundle_is_json(fake: Path, tmp_path: Path) -> None:
    run = RunFolder.open(RUN)
    text = json.dumps(bundle(run, results.document(run), tmp_path), allow_nan=False)
    assert all(len(value) <= 500 for value in json.loads(text)["parent"]["params"].values())


def test_the_real_mlflow_keeps_what_it_is_given(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", str(shelf))
    found = mlflow_export.export(RUN)
    assert found.state == "done", found.text
    with sqlite3.connect(shelf / "mlflow" / "mlflow.db") as db:
        (count,) = db.execute("select count(*) from runs").fetchone()
        (name,) = db.execute("select name from runs where run_uuid = ?", (found.mlflow_run,)).fetchone()
    assert name == RUN and count > 4
