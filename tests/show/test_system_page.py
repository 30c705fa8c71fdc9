"""The page System."""

from pathlib import Path

import pytest

from lab.errors import ModelError
from lab.serve.health import ModelState
from lab.show.ui import machine, reads
from lab.watch.reading import Reading
from tests.show.pages import load_run, open_page

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


class Attached:
    """A server with one model whose process died, and one that serves."""

    pid, grpc_url, http_url, metrics_url = 1, "127.0.0.1:1", "127.0.0.1:2", None
    client = property(lambda self: self)
    broken, refuses = True, False

    def close(self) -> None: ...

    def states(self) -> list[ModelState]:
        broken = ModelState("digits", not self.broken, "0 of its 1 processes live; load it again")
        return [broken, ModelState("sleeper", True, None)]

    def config(self, name: str) -> dict[str, str]:
        return {"name": name}

    def load_again(self, name: str) -> None:
        assert name == "digits"
        if self.refuses:
            raise ModelError("model digits did not load: no memory")
        self.broken = False


@pytest.fixture
def attached(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Attached:
    found = Attached()
    monkeypatch.setattr(machine.Server, "attach", lambda: found)
    return found


def test_a_model_that_is_not_healthy_is_loaded_again_by_a_button(attached: Attached) -> None:
    app = open_page("system")
    assert [b.key for b in app.button if str(b.key).startswith("load_again")] == ["load_again_digits"]
    app.button(key="load_again_digits").click().run()
    assert not app.exception and not attached.broken
    assert not [b for b in app.button if str(b.key).startswith("load_again")]


def test_a_model_that_does_not_load_again_says_why(attached: Attached) -> None:
    attached.refuses = True
    app = open_page("system")
    app.button(key="load_again_digits").click().run()
    assert [e.value for e in app.error] == ["model digits did not load: no memory"]
    assert app.button(key="load_again_digits")


def test_nothing_is_loaded_again_beside_a_measurement(attached: Attached) -> None:
    load_run()
    assert open_page("system").button(key="load_again_digits").disabled
