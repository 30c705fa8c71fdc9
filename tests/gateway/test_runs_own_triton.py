"""A Triton that a run has started for itself is nobody else's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lab.errors import ServerError
from lab.gateway import keeping, serve
from lab.gateway.core import Gateway
from lab.gateway.serve import Wishes
from lab.serve import record
from lab.serve.process import born
from lab.serve.record import ServerRecord
from lab.spec import ModelSpec
from lab.track.routes import Routes

RUN = "20261130-000000-batching-0000"


@pytest.fixture(params=[True, False], ids=["a run's", "everybody's"])
def of_run(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server that is recorded, which is this process here, is a run's."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    log = tmp_path / "runs" / RUN / "triton.log" if request.param else tmp_path / "triton.log"
    started = born(os.getpid())
    assert started is not None
    assert record.write(ServerRecord(os.getpid(), started, 1, 2, 3, str(tmp_path), str(log), "own"))
    return bool(request.param)


@pytest.mark.parametrize("models", [[], [ModelSpec(name="null")]], ids=["none named", "one named"])
def test_gateway_uses_no_runs_triton(of_run: bool, models: list[ModelSpec]) -> None:
    if of_run:
        with pytest.raises(ServerError, match=f"run {RUN} measures with a Triton of its own"):
            keeping.Kept(models, Routes())
    else:
        assert keeping.Kept(models, Routes()).server.grpc_url.endswith(":2")


def test_gateway_for_other_servers_does_without(of_run: bool) -> None:
    if of_run:
        with serve._kept(Wishes(urls=["grpc://127.0.0.1:1"]), Routes()) as kept:
            assert kept is None


def test_routes_to_the_labs_triton_do_not_lead_there(of_run: bool) -> None:
    gateway = Gateway(Routes())
    gateway._find_lab()
    assert gateway._lab == (None if of_run else "grpc://127.0.0.1:2")
