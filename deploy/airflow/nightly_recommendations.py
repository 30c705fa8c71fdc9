"""Airflow (3.1 or newer): every night the items become vectors, and the vectors each item's nearest neighbours.

    LAB_PROJECT   the lab's folder, whose .venv runs it        LAB_DATA   where items.jsonl lies and the nights go
    LAB_HOME      the lab's own, where the default will not do

Put this file (or a link to it) into the DAGs folder. A step that is tried again goes on where it was stopped, since
`lab batch` and `lab neighbours` keep what is whole; one that was done is not done again. items.jsonl stays as it is
until the night is done: a try that finds it changed is refused. A try that takes too long is killed, and the lab's
Triton dies with it. What Airflow 2 called an SLA is a DeadlineAlert: it tells, and ends nothing.
"""

from __future__ import annotations

import logging
import os
import subprocess
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

PROJECT = Path(os.environ.get("LAB_PROJECT", str(Path(__file__).resolve().parents[2])))
PYTHON = Path(os.environ.get("LAB_PYTHON", str(PROJECT / ".venv" / "bin" / "python")))
DATA = Path(os.environ.get("LAB_DATA", str(PROJECT / ".lab" / "recommendations")))
DEADLINE = timedelta(hours=4)
TRY = timedelta(hours=2)


async def late(**told: Any) -> None:
    """Called by Airflow's triggerer when a night is not done in time: put your pager here."""
    logging.getLogger(__name__).error("the night's recommendations are not done after %s: %s", DEADLINE, told)


def lab(*words: str) -> None:
    """One command of the lab; what it says stands in the task's log. A status other than 0 fails the try."""
    subprocess.run([str(PYTHON), "-m", "lab", *words], cwd=PROJECT, check=True)


@dag(
    dag_id="nightly_recommendations",
    schedule="30 2 * * *",
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(minutes=5),
        "retry_exponential_backoff": True,
        "execution_timeout": TRY,
    },
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=DEADLINE, callback=AsyncCallback(late)
    ),
    tags=["serving-lab"],
)
def nightly_recommendations() -> None:
    @task
    def vectors(run_id: str | None = None) -> str:
        night = DATA / "".join(letter if letter.isalnum() else "-" for letter in str(run_id))
        out = night / "vectors.parquet"
        lab("batch", "--model", "embedder", "--in", str(DATA / "items.jsonl"), "--out", str(out))
        return str(out)

    @task
    def neighbours(source: str) -> str:
        out = Path(source).with_name("similar.jsonl")
        lab("neighbours", "--in", source, "--out", str(out), "--top", "10")
        return str(out)

    neighbours(vectors())


nightly_recommendations()
