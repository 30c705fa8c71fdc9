import numpy as np
import pytest

from lab.batch.questions import answers, asked
from lab.batch.table import Row


@pytest.mark.parametrize(
    ("family", "value", "said"),
    [
        ("embedder", "\ud800", "text '\\ud800'; allowed: a text"),
        ("llm", 3, "prompt 3; allowed: a text"),
        ("digits", [1.0] * 63, "allowed: 64 numbers"),
        ("digits", [float("nan")] * 64, "allowed: 64 numbers"),
        ("digits", [True] * 64, "allowed: 64 numbers"),
        ("trees", [10**400] + [0] * 29, "allowed: 30 numbers"),
        ("trees", [1e39] + [0.0] * 29, "allowed: 30 numbers"),
        ("embedder", None, "text null; allowed: a text"),
        ("trees", "no list", "features 'no list'; allowed: 30 numbers"),
    ],
)
def test_a_value_that_the_model_does_not_take_is_its_rows_error(family, value, said):
    found = asked(family, Row(value, "x"))
    assert found.id == "x" and found.value is None and said in found.error


def test_numbers_may_be_written_as_json():
    assert asked("trees", Row(str([0.5] * 30))).value == [0.5] * 30


@pytest.mark.parametrize(("family", "width", "place"), [("digits", 10, 7), ("trees", 1, 0), ("embedder", 3, 2)])
def test_an_answer_that_is_no_number_is_an_error_of_its_row(family, width, place):
    output = np.zeros((3, width), np.float32)
    output[1, place], output[2, place] = np.nan, 1
    first, second, third = answers(family, output.tobytes(), 3)
    assert second == {"error": "the model answered NaN or infinity"}
    assert set(first) == set(third) == {"answer"}
    assert np.all(np.array(third["answer"]) == (7 if family == "digits" else output[2]))
