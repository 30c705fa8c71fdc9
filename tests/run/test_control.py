"""Changes by hand: what fits is applied once, what does not is refused in one line."""

import pytest

from lab.errors import InputError
from lab.run.control import Inbox, checked
from lab.spec import Batching, ClosedLoop, ModelSpec, Poisson, Workload

MODEL = ModelSpec(name="null")
OPEN = Workload(arrival=Poisson(rate_rps=10), duration_s=5)
CLOSED = Workload(arrival=ClosedLoop(concurrency=2), duration_s=5)


def test_a_rate_changes_only_the_rate():
    change = checked({"id": "a", "rate_rps": 40}, MODEL, OPEN, cells=1)
    assert change.workload.arrival == Poisson(rate_rps=40)
    assert change.model == MODEL


def test_batching_is_toggled_on_and_off():
    on = checked({"batching": {"max_batch_size": 8}}, MODEL, OPEN, cells=1)
    assert on.model.batching == Batching(max_batch_size=8)
    assert checked({"batching": None}, on.model, OPEN, cells=1).model.batching is None


def test_a_precision_and_its_quantizer_change_together():
    model = ModelSpec(name="llm", precision="int8", quantizer="smoothquant")
    change = checked({"model": {"precision": "int4", "quantizer": "gptq"}}, model, OPEN, cells=1)
    assert (change.model.precision, change.model.quantizer) == ("int4", "gptq")
    with pytest.raises(InputError, match="quantizer 'smoothquant' with precision 'int4'"):
        checked({"precision": "int4"}, model, OPEN, cells=1)


@pytest.mark.parametrize(
    ("raw", "workload", "cells", "words"),
    [
        ({"rate_rps": 5}, CLOSED, 1, "concurrency"),
        ({"concurrency": 5}, OPEN, 1, "rate_rps"),
        ({"rate_rps": -5}, OPEN, 1, "above 0"),
        ({"rate_rps": "many"}, OPEN, 1, "number"),
        ({"rate_rps": 5}, OPEN, 15, "15 cells"),
        ({"batching": {"max_batch_size": 0}}, OPEN, 1, "max_batch_size 0"),
        ({"colour": "red"}, OPEN, 1, "allowed"),
        ({"model": {"name": "digits"}}, OPEN, 1, "allowed is an object of precision, quantizer"),
        ({"model": "int8"}, OPEN, 1, "allowed is an object of precision, quantizer"),
    ],
)
def test_what_does_not_fit_is_refused(raw, workload, cells, words):
    with pytest.raises(InputError, match=words):
        checked(raw, MODEL, workload, cells=cells)


def test_stop_fits_every_run():
    assert checked({"stop": True}, MODEL, CLOSED, cells=15).field == "stop"


def test_the_inbox_gives_each_whole_line_once(tmp_path):
    inbox = Inbox(tmp_path)
    assert inbox.new() == []
    path = tmp_path / "control.jsonl"
    path.write_text('{"id": "1", "rate_rps": 5}\n{"id": "2", "rate')
    assert inbox.new() == [{"id": "1", "rate_rps": 5}]
    assert inbox.new() == []
    with path.open("a") as file:
        file.write('_rps": 6}\nnot json\n[1]\n{"id": "3", "stop": true}\n')
    assert inbox.new() == [{"id": "2", "rate_rps": 6}, {"id": "3", "stop": True}]
