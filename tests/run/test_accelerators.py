"""The accelerators on disk: the lab's own rows, the user's file in their place, and files that are none."""

from pathlib import Path

import pytest

from lab.errors import InputError
from lab.run import accelerators


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def test_the_lab_brings_rows_each_with_a_source_and_a_date() -> None:
    found = accelerators.catalogue()
    assert {"T4", "A100-80GB", "H100-80GB", "B200-180GB"} <= {row.name for row in found}
    assert accelerators.find("H100-80GB").bandwidth_gb_s == 3350
    assert accelerators.find("CPU-EPYC-7763-64c").memory_bytes is None


def test_the_users_own_file_stands_in_their_place(own_home: Path) -> None:
    header = accelerators.SHIPPED.read_text().splitlines()[1]
    (own_home / "accelerators.csv").write_text(f"{header}\nMine,10,100,20,40,,me,2026-11-01,low\n")
    assert [row.name for row in accelerators.catalogue()] == ["Mine"]
    with pytest.raises(InputError, match="accelerator 'T4': there is none"):
        accelerators.find("T4")


@pytest.mark.parametrize("data", [b"", b"name\n\xff", b"name,memory_gib\nx,1\n", b"a" * 2_000_000])
def test_a_file_that_is_no_catalogue_is_one_line_with_a_way_out(data: bytes, own_home: Path) -> None:
    (own_home / "accelerators.csv").write_bytes(data)
    with pytest.raises(InputError, match="mend the file, or delete it for the lab's own rows") as told:
        accelerators.catalogue()
    assert "\n" not in str(told.value) and str(own_home) in str(told.value)
