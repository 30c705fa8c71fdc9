"""Files to register."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    (folder / "inner").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a" * 1000)
    (folder / "inner" / "b.json").write_text("{}")
    return folder
