"""The page System."""

from pathlib import Path

import pytest

from lab.show.ui import machine, reads
from lab.watch.reading import Reading
from tests.show.pages import open_page

pytestmark = pytest.mark.pages


def test_without_a_server_the_system_page_says_how_to_get_one(empty_home: Path) -> None:
    app = open_page("system")
    assert "No managed Triton lives" in app.info[0].value


def test_the_config_viewer_shows_what_triton_would_read(empty_home: Path) -> None:
    blocks = open_page("system", y_delay="500", y_size="8").code
    code = next(block.value for block in blocks if "max_batch_size" in block.value)
    assert "max_batch_size: 8" in code and "max_queue_delay_microseconds: 500" in code


def test_a_contradiction_is_one_line(empty_home: Path) -> None:
    app = open_page("system", y_size="1", y_delay="500")
    assert not app.exception
    assert len(app.error) == 1 and "max_batch_size 1" in app.error[0].value


def test_what_no_gpu_tells_is_not_available_with_its_reason(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ("utilization_fraction", "power_w", "memory_used_bytes", "temperature_c")
    none = [Reading("gpu:none", field, None, "no NVIDIA driver on this machine") for field in fields]
    monkeypatch.setattr(reads, "read_gpus", lambda: none)
    reads.gpus.clear()
    said = "**GPU** · utilization, power, memory in use and temperature n/a: no NVIDIA driver on this machine"
    assert said in [line.value for line in open_page("system").markdown]
    reads.gpus.clear()


def test_a_gpu_tells_what_it_can() -> None:
    readings = [
        Reading("gpu:0", "utilization_fraction", 0.35),
        Reading("gpu:0", "power_w", 312.4),
        Reading("gpu:0", "memory_used_bytes", None, "no permission to read it"),
        Reading("gpu:1", "power_w", 80.0),
    ]
    assert machine.gpu_lines(readings) == [
        "**gpu:0** · utilization 35 % · power 312 W · memory in use n/a: no permission to read it",
        "**gpu:1** · power 80 W",
    ]
