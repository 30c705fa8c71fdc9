"""What commands print of runs: a table that fits a terminal, and what offered rates are."""

from typing import Any

import pytest

from lab.commands.runs import WIDTH, lines
from lab.run.folder import RunInfo
from lab.run.text import as_drawn

BEGUN = "2026-12-01T03:00:46+00:00"


def info(run_id: str, state: str = "done", **document: Any) -> RunInfo:
    return RunInfo(run_id, state, BEGUN, document=document)


def of(experiment: str, model: str) -> dict[str, Any]:
    return {"id": experiment, "model": {"name": model}}


def test_each_run_is_a_line_with_what_it_is_of() -> None:
    quick = info("20261201-030046-batching-024e", experiment=of("batching", "digits"), quick=True)
    whole = info("20261201-030533-kv-cache-fd7f", "interrupted", experiment=of("kv_cache", "llm"), quick=False)
    header, *rows = lines([quick, whole, info("run-damaged", "damaged")])
    assert header.split() == ["run", "experiment", "model", "depth", "state", "begun", "(UTC)"]
    assert rows[0].split() == [quick.run_id, "batching", "digits", "quick", "done", "2026-12-01", "03:00"]
    assert rows[1].split() == [whole.run_id, "kv_cache", "llm", "whole", "interrupted", "2026-12-01", "03:00"]
    assert rows[2].split() == ["run-damaged", "damaged", "2026-12-01", "03:00"]


def test_no_line_is_wider_than_a_terminal_and_no_id_is_cut() -> None:
    ids = ["r" * 60, "20261201-030046-llm-batching-024e", "r" * 41]
    found = [info(i, "interrupted", experiment=of("e" * 40, "m" * 40), quick=True) for i in ids]
    printed = lines(found)
    assert max(map(len, printed)) <= WIDTH
    assert all(any(line.split()[0] == run_id for line in printed) for run_id in ids)


def drawn_of(*cells: tuple[float | None, float | None], problems: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "cells": [{"summary": {"offered_rps": offered}, "asked_rps": asked} for offered, asked in cells],
        "problems": [{"code": code} for code in problems],
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (drawn_of((45.5, 51.8), (418.0, 414.0)), "45.5 req/s drawn of 51.8 req/s asked and 418 req/s drawn of 414"),
        (drawn_of((45.5, 51.8), (55.0, 51.8)), "45.5 to 55.0 req/s drawn of 51.8 req/s asked."),
        (drawn_of(*((n, 100.0 + n) for n in range(1, 8))), "the furthest off 1.00 req/s drawn of 101 req/s asked."),
    ],
)
def test_offered_is_said_to_be_drawn(document: dict[str, Any], said: str) -> None:
    assert said in as_drawn(document)


@pytest.mark.parametrize(
    "document",
    [
        drawn_of((51.8, 51.8)),
        drawn_of((3140.0, None), (None, 51.8)),  # users who wait; a block of which nothing is known
        {"cells": [{"summary": {"offered_rps": 5.0}}], "problems": []},  # kept by an older lab
        drawn_of((45.5, 51.8), problems=("changed",)),
    ],
)
def test_where_nothing_was_drawn_otherwise_nothing_is_said(document: dict[str, Any]) -> None:
    assert as_drawn(document) == ""
