"""Experiments that compare devices, on machines with and without a GPU."""

import pytest

from lab.errors import InputError
from lab.run import catalogue, devices, preflight
from lab.serve import installation
from lab.spec import set_path


@pytest.fixture
def engines():
    return catalogue.experiment("engines_cpu_gpu")


def test_without_a_gpu_its_side_is_left_out_and_said(engines, monkeypatch):
    monkeypatch.setattr(installation, "gpus", lambda: 0)
    kept, missing = devices.without_missing(engines)
    assert [level["name"] for level in kept.factors["model"]] == ["trees", "network", "digits"]
    (left_out,) = missing
    assert [level["name"] for level in left_out["levels"]] == ["network", "digits"]
    assert left_out["text"].startswith("Not measured: ")
    assert left_out["text"].endswith(", as this machine has no NVIDIA GPU.")


def test_with_a_gpu_everything_is_measured(engines, monkeypatch):
    monkeypatch.setattr(installation, "gpus", lambda: 1)
    assert devices.without_missing(engines) == (engines, [])


def test_who_asks_for_a_gpu_alone_is_refused_as_ever(monkeypatch):
    monkeypatch.setattr(installation, "gpus", lambda: 0)
    only = set_path(catalogue.experiment("batching"), "model.device", "gpu")
    kept, missing = devices.without_missing(only)
    assert (kept, missing) == (only, [])
    with pytest.raises(InputError, match="this machine has no NVIDIA GPU"):
        preflight.check(kept)


def test_trees_never_go_to_a_gpu(engines, monkeypatch):
    monkeypatch.setattr(installation, "gpus", lambda: 1)
    with pytest.raises(InputError, match="device gpu with family trees, which scikit-learn computes on CPUs only"):
        preflight.check(
            set_path(engines, "factors", {"model": [{"name": "trees", "device": "gpu"}, {"name": "trees"}]})
        )
