"""The page System."""

from pathlib import Path

import pytest

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
