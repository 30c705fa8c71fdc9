"""Files of traces: taken away when they are whole, and none of an earlier while among them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from lab.errors import ServerError
from lab.serve import traces
from lab.serve.traces import Traces


class Client:
    """Triton's, whose level is what it was told; `on_off` happens when it is switched off, as Triton then writes."""

    def __init__(self, on_off: Callable[[], None] = lambda: None, dead: bool = False) -> None:
        self.levels: list[str] = []
        self.on_off, self.dead = on_off, dead

    def update_trace_settings(self, *, model_name: str, settings: dict[str, list[str]]) -> None:
        if self.dead:
            raise InferenceServerException("connection refused")
        self.levels += settings["trace_level"]
        if self.levels[-1] == "OFF":
            self.on_off()


def of(client: Client, folder: Path) -> Traces:
    server: Any = SimpleNamespace(client=client, managed=SimpleNamespace(log=str(folder / "triton.log")))
    return Traces(server, "digits")


def test_files_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    def write() -> None:
        for number in (0, 1, 10, 2):
            (tmp_path / f"triton.trace.{number}").write_text(f'[{{"id":{number}}}]')

    kept = of(Client(write), tmp_path)
    kept.begin()
    assert kept.end(tmp_path / "traces-3")
    assert [path.name for path in sorted((tmp_path / "traces-3").iterdir())] == [
        "triton.trace.0",
        "triton.trace.1",
        "triton.trace.10",
        "triton.trace.2",
    ]
    assert traces.files(tmp_path / "triton.log") == []


def test_what_was_left_behind_belongs_to_nobody(tmp_path: Path) -> None:
    """Written after an earlier block's files were taken: its numbers would be those of this block's requests."""
    (tmp_path / "triton.trace.7").write_text("[]")
    (tmp_path / "triton.trace.keep").write_text("no trace file of Triton's")
    kept = of(Client(), tmp_path)
    kept.begin()
    assert kept.end(tmp_path / "traces-0") and not (tmp_path / "traces-0").exists()
    assert (tmp_path / "triton.trace.keep").exists()


def test_a_file_that_is_still_being_written_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "triton.trace.0"
    file.write_text("[")
    half = threading.Event()

    def rest() -> None:
        half.wait(60)
        for piece in ('{"id":1}', ',{"id":2}', "]"):
            time.sleep(0.03)
            with file.open("a") as out:
                out.write(piece)

    writer = threading.Thread(target=rest)
    kept = of(Client(half.set), tmp_path)
    writer.start()
    assert kept.end(tmp_path / "traces-0")
    writer.join()
    assert (tmp_path / "traces-0" / "triton.trace.0").read_text() == '[{"id":1},{"id":2}]'


def test_a_file_that_stays_half_is_taken_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "WRITE_LIMIT_S", 0.1)
    (tmp_path / "triton.trace.0").write_text('[{"id":1},')
    assert not of(Client(), tmp_path).end(tmp_path / "traces-0")
    assert (tmp_path / "traces-0" / "triton.trace.0").exists()


def test_a_server_that_died_has_written_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "triton.trace.0").write_text('[{"id":1}')
    kept = of(Client(dead=True), tmp_path)
    assert not kept.end(tmp_path / "traces-0") and (tmp_path / "traces-0" / "triton.trace.0").exists()
    with pytest.raises(ServerError, match="model digits cannot be traced: connection refused"):
        kept.begin()
