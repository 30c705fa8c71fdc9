"""Stays and memory over a run whose course is written down."""

import numpy as np
import pyarrow as pa
import pytest

from lab.measure.records import TELEMETRY
from lab.measure.tenancy import Held, Stay, held, is_on_gpu, stays, total

S = 1_000_000_000


def event(kind, at_s, model, seconds, **more):
    return {"kind": kind, "t_ns": int(at_s * S), "model": model, "seconds": seconds, **more}


EVENTS = [
    event("model_loaded", 10, "a", 2.0),
    event("model_loaded", 12, "b", 1.0),
    event("model_unloaded", 20, "a", 1.5, why="evicted"),
    event("model_loaded", 21, "c", 1.0),
]


def readings(rows):
    """(t_s, subject, field, value, reason)."""
    t, *rest = zip(*rows, strict=True)
    columns = [[int(s * S) for s in t], *rest]
    return pa.table({f.name: pa.array(c, f.type) for f, c in zip(TELEMETRY, columns, strict=True)}, schema=TELEMETRY)


def memory(*rows):
    return readings([(t, f"model:{name}", "memory_bytes", value, None) for t, name, value in rows])


def test_a_stay_runs_from_its_load_to_its_unload():
    assert stays(EVENTS, 0) == [
        Stay("a", 8.0, 10.0, 18.5, 20.0, "evicted"),
        Stay("b", 11.0, 12.0),
        Stay("c", 20.0, 21.0),
    ]


def test_the_sum_holds_what_is_there_and_forgets_what_went():
    """a (100) from 10 to 19, b (50) from 12 on; one look every 2 s."""
    looks = memory(*((t, "a", 100.0) for t in range(10, 20, 2)), *((t, "b", 50.0) for t in range(12, 26, 2)))
    t_s, whole = total(looks, 0, period_s=1.0)
    at = dict(zip(t_s.tolist(), whole.tolist(), strict=True))
    assert (at[10], at[11], at[12], at[18], at[20], at[24]) == (100, 100, 150, 150, 50, 50)


def test_nothing_was_read():
    t_s, whole = total(TELEMETRY.empty_table(), 0)
    assert (len(t_s), len(whole)) == (0, 0)
    assert held(TELEMETRY.empty_table(), []) == []


def test_base_peak_and_now_of_each_model():
    looks = memory((10, "a", 100.0), (12, "a", 130.0), (14, "a", 120.0), (13, "b", 50.0), (14, "b", 55.0))
    found = held(looks, EVENTS[:3])
    assert found == [Held("a", 100.0, 130.0, 0.0), Held("b", 50.0, 55.0, 55.0)]


def test_what_could_not_be_read_has_its_reason():
    looks = readings([(10, "model:a", "memory_bytes", None, "no permission")])
    assert held(looks, []) == [Held("a", None, None, None, "no permission")]
    assert np.array_equal(total(looks, 0)[0], [])


@pytest.mark.parametrize("subject", ["server", "host", "client"])
def test_other_subjects_are_not_models(subject):
    assert held(readings([(10, subject, "memory_bytes", 1.0, None)]), []) == []


def test_models_on_gpus_are_told_by_what_they_have_there():
    """a on two GPUs (100 + 7), b on one and told of no more at 14; what their processes hold on the host is no part."""
    looks = readings(
        [
            (10, "model:a", "memory_bytes", 900.0, None),
            (10, "model:a", "gpu_memory_bytes:0", 100.0, None),
            (10, "model:a", "gpu_memory_bytes:1", 7.0, None),
            (12, "model:a", "gpu_memory_bytes:0", 110.0, None),
            (12, "model:a", "gpu_memory_bytes:1", 7.0, None),
            (12, "model:b", "gpu_memory_bytes:0", 50.0, None),
            (14, "model:b", "gpu_memory_bytes:0", None, "the driver does not tell"),
        ]
    )
    assert is_on_gpu(looks)
    assert not is_on_gpu(memory((10, "a", 100.0)))
    assert held(looks, []) == [Held("a", 107.0, 117.0, 117.0), Held("b", 50.0, 50.0, 50.0)]
    t_s, whole = total(looks, 0, period_s=1.0)
    at = dict(zip(t_s.tolist(), whole.tolist(), strict=True))
    assert (at[10], at[12]) == (107, 167)


def test_a_gpu_that_does_not_tell_is_not_replaced_by_the_host():
    looks = readings([(10, "model:a", "memory_bytes", 9.0, None), (10, "model:a", "gpu_memory_bytes:0", None, "na")])
    assert held(looks, []) == [Held("a", None, None, None, "na")]
    assert len(total(looks, 0)[0]) == 0
