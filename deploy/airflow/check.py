"""The DAG of this folder in the Airflow that runs this file; see scripts/test-airflow. Exit status 1 when it is not as
it should be. With --without-items the night has nothing to read, and must fail. One night a database: a second
dag.test() of a DAG with a deadline meets what the first left there (Airflow 3.3). Uses nothing of the lab but its
command."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

ITEMS = {
    "cup": "a cup of hot black coffee in the morning",
    "mug": "a mug of hot black coffee in the morning",
    "dog": "the dog runs after a ball in the park",
    "hound": "the hound runs after a ball in the park",
}


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    import nightly_recommendations
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(Path(nightly_recommendations.__file__)))
    expect("imports without an error", bag.import_errors, {})
    dag = bag.dags["nightly_recommendations"]
    expect("tasks", sorted(dag.task_ids), ["neighbours", "vectors"])
    expect("neighbours waits for vectors", dag.get_task("neighbours").upstream_task_ids, {"vectors"})
    for task in dag.tasks:
        expect(f"retries of {task.task_id}", task.retries, 3)
        expect(f"limit of a try of {task.task_id}", task.execution_timeout, timedelta(hours=2))
    deadlines = dag.deadline if isinstance(dag.deadline, list) else [dag.deadline]
    expect("deadline", [alert.interval for alert in deadlines], [timedelta(hours=4)])

    for task in dag.tasks:
        task.retries = 0  # dag.test() would wait minutes for each
    dag.deadline = (
        None  # dag.test() of Airflow 3.3 cannot look one up when a night succeeds; a scheduler's database can
    )
    data = Path(os.environ["LAB_DATA"])
    data.mkdir(parents=True)
    if "--without-items" in sys.argv:
        expect("a night without its items fails", str(dag.test().state), "failed")
        return 0
    lines = [json.dumps({"id": id, "text": text}) + "\n" for id, text in ITEMS.items()]
    (data / "items.jsonl").write_text("".join(lines))
    expect("a night succeeds", str(dag.test().state), "success")
    (similar,) = data.glob("*/similar.jsonl")
    nearest = {row["id"]: row["neighbour_ids"][0] for row in map(json.loads, similar.read_text().splitlines())}
    expect("nearest", nearest, {"cup": "mug", "mug": "cup", "dog": "hound", "hound": "dog"})
    return 0


def expect(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        print(f"FAILED {what}: {found!r}; wanted {wanted!r}", file=sys.stderr)
        raise SystemExit(1)
    print(f"ok {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
