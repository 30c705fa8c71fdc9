"""One model that is served as several: their names, and their memory as one."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lab.errors import InputError, RunError
from lab.measure.footprint import Footprint
from lab.measure.records import TELEMETRY
from lab.run import lora
from lab.run.copies import served_as, summed
from lab.serve import repository
from lab.spec import ModelSpec


def test_merged_adapters_are_a_model_each() -> None:
    spec = ModelSpec(name="llm", adapters=("tea", "Big-One=/somewhere"), merge_adapters=True, precision="int8")
    first, second = served_as(spec)
    assert [first.name, second.name] == ["llm_1_tea", "llm_2_big_one"]
    assert [first.adapters, second.adapters] == [("tea",), ("Big-One=/somewhere",)]
    assert {(own.family, own.precision, own.merge_adapters) for own in (first, second)} == {("llm", "int8", True)}
    assert served_as(first) == [first]
    repository.check(first)
    with pytest.raises(InputError, match="merge_adapters with 2 adapters is as many models; allowed: one adapter"):
        repository.check(spec)
    shared = ModelSpec(name="llm", adapters=("tea", "json"))
    assert served_as(shared) == [shared]


def test_memory_of_several_is_added_up_where_all_were_read() -> None:
    rows = [
        (1, "model:a", "memory_bytes", 10.0, None),
        (1, "model:b", "memory_bytes", 5.0, None),
        (2, "model:a", "memory_bytes", 20.0, None),
        (2, "model:b", "memory_bytes", None, "gone"),
        (3, "model:a", "cpu_fraction", 0.5, None),
        (3, "model:b", "cpu_fraction", 0.25, None),
        (3, "model:other", "cpu_fraction", 1.0, None),
    ]
    table = pa.table(
        {name: list(column) for name, column in zip(TELEMETRY.names, zip(*rows, strict=True), strict=True)},
        schema=TELEMETRY,
    )
    found = [row for row in summed(table, ["a", "b"], "both").to_pylist() if row["subject"] == "model:both"]
    assert [(row["t_ns"], row["field"], row["value"]) for row in found] == [
        (1, "memory_bytes", 15.0),
        (3, "cpu_fraction", 0.75),
    ]


def test_copies_that_would_not_fit_beside_each_other_are_refused_after_the_first(monkeypatch) -> None:
    """Ten of 300 MiB of their own: nine more are 2,700 MiB."""
    first = Footprint(300 * 2**20, {"/lib/torch.so": 100 * 2**20})
    monkeypatch.setattr(lora, "spare_bytes", lambda: 2800.0 * 2**20)
    lora._check_room(first, 10)
    monkeypatch.setattr(lora, "spare_bytes", lambda: 2000.0 * 2**20)
    with pytest.raises(RunError, match=r"9 more full copies take 2.6 GiB, and 2.0 GiB of this machine's memory can be"):
        lora._check_room(first, 10)
