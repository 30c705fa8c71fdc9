"""The catalogue on disk: the lab's own rows, the user's in their place, and files that are no price list."""

from datetime import date
from pathlib import Path

import pytest

from lab.errors import InputError
from lab.measure.prices import written
from lab.run import prices


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    return tmp_path


def test_the_lab_brings_prices_each_with_a_source_and_a_date() -> None:
    found = prices.catalogue()
    assert len(found) > 50
    assert len({price.provider for price in found}) >= 8
    assert any(price.accelerator.startswith("CPU") for price in found)


def test_the_lab_s_own_rows_stay_right_as_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "today", lambda: date(2031, 1, 1))
    assert all(price.is_stale(date(2031, 1, 1)) for price in prices.catalogue())


def test_an_edited_row_is_in_force_until_it_is_forgotten() -> None:
    rows = [dict(vars(price)) for price in prices.catalogue()]
    rows[0]["usd_per_hour"] = 99.5
    prices.replace(rows)
    assert prices.catalogue()[0].usd_per_hour == 99.5
    prices.forget()
    prices.forget()
    assert prices.catalogue()[0].usd_per_hour != 99.5


def test_a_refused_edit_changes_nothing(own_home: Path) -> None:
    rows = [dict(vars(price)) for price in prices.catalogue()]
    rows[3]["usd_per_hour"] = None
    with pytest.raises(InputError, match="prices row 4: usd_per_hour is missing"):
        prices.replace(rows)
    assert list(own_home.iterdir()) == []


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"x" * (2 << 20) + b"y", b"", b"a,b\n1,2\n", b"\x00\x01"])
def test_an_import_that_is_no_price_list_changes_nothing(data: bytes, own_home: Path) -> None:
    with pytest.raises(InputError) as refused:
        prices.take_in(data)
    assert "\n" not in str(refused.value)
    assert list(own_home.iterdir()) == []


def test_an_empty_catalogue_is_none() -> None:
    header = written([]).encode()
    with pytest.raises(InputError, match="no rows"):
        prices.take_in(header)


def test_a_file_of_the_user_without_rows_is_refused_and_named(own_home: Path) -> None:
    (own_home / "prices.csv").write_text(written([]))
    with pytest.raises(InputError, match=r"prices\.csv: prices: no rows; .*delete it"):
        prices.catalogue()


def test_a_file_with_a_byte_order_mark_is_read() -> None:
    three = prices.catalogue()[:3]
    assert prices.take_in(b"\xef\xbb\xbf" + written(three).encode()) == three
    assert prices.catalogue() == three


def test_a_damaged_file_of_the_user_is_named(own_home: Path) -> None:
    (own_home / "prices.csv").write_text("provider\nme\n")
    with pytest.raises(InputError, match=r"prices\.csv: prices: column 'region' is missing.*delete it"):
        prices.catalogue()


def test_who_only_reads_the_table_needs_no_folder_of_his_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_HOME", "/dev/null/none")
    found = prices.catalogue()
    assert found
    with pytest.raises(InputError, match="LAB_HOME /dev/null/none"):
        prices.take_in(written(found).encode())
