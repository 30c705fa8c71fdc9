"""Price rows: what is read, what is refused and in which words, and how old a price is."""

from datetime import date

import pytest

from lab.errors import InputError
from lab.measure import prices
from lab.measure.prices import FIELDS, Price

TODAY = date(2026, 11, 30)
ROW = {
    "provider": "lambda",
    "region": "any",
    "accelerator": "H100-80GB",
    "count": "8",
    "commitment": "on_demand",
    "usd_per_hour": "31.92",
    "source": "price page, read by hand",
    "as_of": "2026-09-25",
    "certainty": "high",
}


def table(*rows: dict[str, str], header: tuple[str, ...] = FIELDS) -> str:
    return "\n".join([",".join(header), *(",".join(row.get(name, "") for name in header) for row in rows)])


def quoted(**changes: str) -> str:
    row = {**ROW, "source": '"price page, read by hand"', **changes}
    return table(row, header=(*FIELDS, *(name for name in changes if name not in FIELDS)))


def one(**changes: str) -> Price:
    return prices.read(quoted(**changes), today=TODAY)[0]


def test_a_row_is_read_with_its_source_date_and_certainty() -> None:
    price = one()
    assert (price.provider, price.count, price.usd_per_hour) == ("lambda", 8, 31.92)
    assert (price.source, price.as_of, price.certainty) == ("price page, read by hand", "2026-09-25", "high")
    assert price.id == "lambda-any-h100-80gb-x8-on-demand"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("usd_per_hour", "", "prices row 1: usd_per_hour is missing"),
        ("provider", " ", "prices row 1: provider is missing"),
        ("source", "", "prices row 1: source is missing"),
        ("usd_per_hour", "-1", 'usd_per_hour "-1": allowed: a plain number above 0, in USD'),
        ("usd_per_hour", "0", 'usd_per_hour "0"'),
        ("usd_per_hour", "nan", 'usd_per_hour "nan"'),
        ("usd_per_hour", "inf", 'usd_per_hour "inf"'),
        ("usd_per_hour", "1e999", 'usd_per_hour "1e999"'),
        ("usd_per_hour", "€3.99", 'usd_per_hour "€3.99"'),
        ("usd_per_hour", "1_000", 'usd_per_hour "1_000"'),
        ("currency", "EUR", 'prices row 1: currency "EUR": allowed: USD'),
        ("count", "0", 'count "0": allowed: a whole number from 1 to 1024'),
        ("count", "2.5", 'count "2.5"'),
        ("commitment", "handshake", 'commitment "handshake"'),
        ("as_of", "2026-12-01", 'as_of "2026-12-01": allowed: a date up to today, 2026-11-30'),
        ("as_of", "2027", 'as_of "2027": allowed: a date up to today'),
        ("as_of", "2026-02-30", 'as_of "2026-02-30": allowed: a date such as'),
        ("as_of", "yesterday", 'as_of "yesterday"'),
        ("certainty", "sure", 'certainty "sure": allowed: high, medium, low'),
        ("source", "x" * 301, "source"),
    ],
)
def test_a_row_that_cannot_be_right_is_refused_in_one_line(field: str, value: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        one(**{field: value})
    assert said in str(refused.value)
    assert str(refused.value).startswith("prices row 1: ")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 200


def test_the_refusal_names_the_row() -> None:
    with pytest.raises(InputError, match=r'^prices row 2: usd_per_hour "-4"'):
        prices.checked([ROW, {**ROW, "provider": "aws", "usd_per_hour": -4}], today=TODAY)


def test_one_machine_is_priced_once() -> None:
    with pytest.raises(InputError, match=r"^prices row 3: .* are those of row 1 \(lambda-any-h100-80gb-x8-on-demand\)"):
        prices.checked([ROW, {**ROW, "provider": "aws"}, {**ROW, "usd_per_hour": "30"}], today=TODAY)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column 'provider' is missing"),
        (table(header=FIELDS[:-1]), "column 'certainty' is missing"),
        (table(header=(*FIELDS, "eur_per_hour")), "column 'eur_per_hour': there is no such field; did you mean"),
        (table(header=(*FIELDS, "provider")), "stands there twice"),
        (table(ROW), "holds more than the 9 fields"),  # a comma in the source that nobody quoted
        ("# serving lab prices, format 2\n" + quoted(), "format 2': this lab reads 'serving lab prices, format 1'"),
        (quoted().replace('hand"', "hand"), "not a CSV table"),
    ],
)
def test_a_file_that_is_no_price_list_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        prices.read(text, today=TODAY)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_what_is_written_is_read_back_equal() -> None:
    found = prices.checked([ROW, {**ROW, "provider": 'quote"s, and commas', "as_of": "2026-03"}], today=TODAY)
    assert prices.read(prices.written(found), today=TODAY) == found


def test_a_month_or_a_year_is_as_old_as_its_first_day() -> None:
    assert one(as_of="2026-03").first_day == date(2026, 3, 1)
    assert one(as_of="2025").first_day == date(2025, 1, 1)


@pytest.mark.parametrize(
    ("as_of", "stale"), [("2026-11-30", False), ("2026-09-01", False), ("2026-08-31", True), ("2026", True)]
)
def test_a_price_is_stale_after_90_days(as_of: str, stale: bool) -> None:
    assert one(as_of=as_of).is_stale(TODAY) is stale  # 1 September is 90 days before


@pytest.mark.parametrize(
    ("commitment", "billing"),
    [
        ("on_demand", "hour"),
        ("on_demand_median", "hour"),
        ("on_demand_per_second", "second"),
        ("spot", "spot"),
        ("1yr_ec2_savings_plan_no_upfront", "committed"),
        ("3yr_cud", "committed"),
        ("capacity_block", "committed"),
        ("reserved", "committed"),
    ],
)
def test_the_commitment_says_what_is_paid(commitment: str, billing: str) -> None:
    assert one(commitment=commitment).billing == billing


def test_an_id_that_is_not_there_names_the_nearest() -> None:
    found = prices.checked([ROW], today=TODAY)
    assert prices.find(found, "lambda-any-h100-80gb-x8-on-demand") is found[0]
    with pytest.raises(InputError, match='did you mean "lambda-any-h100-80gb-x8-on-demand"'):
        prices.find(found, "lambda-any-h100-x8-on-demand")
    with pytest.raises(InputError, match="`python -m lab prices` lists them"):
        prices.find(found, "zzz")
