"""A model whose adapters are merged is served as several: a full copy of the base for each adapter.

To requests it is one model of which each names an adapter; here it becomes the name of the copy.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lab.measure.resources import MODEL
from lab.spec import ModelSpec, set_paths


def served_as(model: ModelSpec) -> list[ModelSpec]:
    """The models that Triton holds for `model`: itself, or NAME_1_ADAPTER and so on where several are merged."""
    if not model.merge_adapters or len(model.adapters) == 1:
        return [model]
    return [
        set_paths(
            model,
            [("name", _called(model, number, name)), ("family", model.family), ("adapters", [entry])],
        )
        for number, (name, entry) in enumerate(zip(model.adapter_names, model.adapters, strict=True), start=1)
    ]


def _called(model: ModelSpec, number: int, adapter: str) -> str:
    return re.sub("[^a-z0-9_]", "_", f"{model.name}_{number}_{adapter}".lower())[:40]


def summed(telemetry: pa.Table, names: Sequence[str], name: str) -> pa.Table:
    """Telemetry in which the models `names` are one, called `name`: what all of them show at one time is added up. A
    time at which one of them was not read is left out."""
    subjects = pa.array([f"{MODEL}{own}" for own in names])
    own = telemetry.filter(pc.and_(pc.is_in(telemetry["subject"], subjects), pc.is_valid(telemetry["value"])))
    grouped = own.group_by(["t_ns", "field"]).aggregate([("value", "sum"), ("value", "count")])
    whole = grouped.filter(pc.equal(grouped["value_count"], len(names)))
    added = pa.table(
        {
            "t_ns": whole["t_ns"],
            "subject": pa.array([f"{MODEL}{name}"] * whole.num_rows, pa.string()),
            "field": whole["field"],
            "value": whole["value_sum"],
            "reason": pa.nulls(whole.num_rows, pa.string()),
        }
    ).cast(telemetry.schema)
    return pa.concat_tables([telemetry, added]).sort_by("t_ns")
