import pytest

from lab.batch.questions import asked
from lab.batch.table import Row


@pytest.mark.parametrize(
    ("family", "value", "said"),
    [
        ("embedder", "\ud800", "text '\\ud800'; allowed: a text"),
        ("llm", 3, "prompt 3; allowed: a text"),
        ("digits", [1.0] * 63, "allowed: 64 numbers"),
        ("digits", [float("nan")] * 64, "allowed: 64 numbers"),
        ("digits", [True] * 64, "allowed: 64 numbers"),
        ("trees", "no list", "features 'no list'; allowed: 30 numbers"),
    ],
)
def test_a_value_that_the_model_does_not_take_is_its_rows_error(family, value, said):
    found = asked(family, Row(value, "x"))
    assert found.id == "x" and found.value is None and said in found.error


def test_numbers_may_be_written_as_json():
    assert asked("trees", Row(str([0.5] * 30))).value == [0.5] * 30
