"""Requests for a model of which only names, datatypes and shapes are known."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import InferInput, service_pb2

from lab.errors import InputError
from lab.load.given import MOST, as_bf16, pool, read_data, read_shapes, requests
from lab.load.targets.tensors import BF16, Sequenced, array, datatype, raw
from lab.load.targets.triton_grpc import infer_request
from lab.load.targets.triton_http import infer_request as http_request
from lab.spec import DATATYPES, Given, GivenInput


def given(*inputs: tuple[str, str, tuple[int, ...]], **more: Any) -> Given:
    return Given(inputs=tuple(GivenInput(name=n, datatype=d, shape=s) for n, d, s in inputs), **more)


def test_every_datatype_is_drawn_and_travels_as_tritonclient_has_it() -> None:
    asked = given(*((f"IN_{kind}", kind, (2, 3)) for kind in DATATYPES))
    request = requests(asked, 0, 1)[0]
    message = service_pb2.ModelInferRequest.FromString(infer_request("any", request))
    for tensor, content in zip(message.inputs, message.raw_input_contents, strict=True):
        values = request[tensor.name]
        assert (tensor.datatype, list(tensor.shape)) == (tensor.name.removeprefix("IN_"), [2, 3])
        if tensor.datatype == "BF16":  # tritonclient wants another package for it
            assert content == values["bf16"].tobytes()
            values = (values["bf16"].astype(np.uint32) << 16).view(np.float32)
        else:
            own = InferInput(tensor.name, [2, 3], tensor.datatype)
            own.set_data_from_numpy(values)
            assert content == own._get_content()
        back = array(tensor.name, tensor.datatype, [2, 3], content)
        assert (back == values).all()


def test_bfloat16_is_the_nearest_one() -> None:
    """1 is 3F80 and 2.5 is 4020, exactly; pi's upper half is 4049; 1 + 2^-8 lies in the middle of 3F80 and 3F81."""
    values = as_bf16(np.array([1.0, -2.5, np.pi, 1 + 2**-8, 1 + 2**-9]))
    assert datatype(values.dtype) == "BF16" and values.dtype == BF16
    assert [hex(v) for v in values["bf16"]] == ["0x3f80", "0xc020", "0x4049", "0x3f81", "0x3f80"]


def test_no_two_requests_are_equal_and_a_seed_gives_them_again() -> None:
    asked = given(("X", "FP32", (1, 8)), ("T", "BYTES", (1, 1)))
    made = requests(asked, 3, 200)
    assert len({raw(r["X"]) for r in made}) == len({raw(r["T"]) for r in made}) == 200
    again = requests(asked, 3, 10)
    assert all((a["X"] == b["X"]).all() and (a["T"] == b["T"]).all() for a, b in zip(made, again, strict=False))
    assert (requests(asked, 4, 1)[0]["X"] != made[0]["X"]).any()


def test_values_lie_in_the_range_that_was_asked_for() -> None:
    of = GivenInput(name="ids", datatype="INT64", shape=(1, 500), low=5, high=7)
    assert set(requests(Given(inputs=(of,)), 0, 1)[0]["ids"].ravel()) == {5, 6, 7}
    floats = GivenInput(name="x", datatype="FP32", shape=(1, 500), low=-1, high=1)
    values = requests(Given(inputs=(floats,)), 0, 1)[0]["x"]
    assert -1 <= values.min() < -0.9 and 0.9 < values.max() <= 1


def test_large_requests_are_prepared_in_smaller_numbers() -> None:
    assert pool(given(("X", "FP32", (1, 4)))) == MOST
    image = pool(given(("X", "FP32", (1, 3, 224, 224))))
    assert 10 < image * 3 * 224 * 224 * 8 / 2**20 < 65
    assert pool(given(("X", "FP32", (1, 3, 224, 224)), sequence_length=10)) % 10 == 0


def test_sequences_take_turns_and_each_has_its_id_start_and_end() -> None:
    made = requests(given(("X", "FP32", (1,)), sequence_length=3), 0, 48)
    assert all(isinstance(r, Sequenced) for r in made)
    by_id: dict[int, list[dict[str, Any]]] = {}
    for request in made:
        assert isinstance(request, Sequenced)
        by_id.setdefault(request.parameters["sequence_id"], []).append(request.parameters)
    assert sorted(by_id) == list(range(1, 17))
    for steps in by_id.values():
        assert [(s["sequence_start"], s["sequence_end"]) for s in steps] == [
            (True, False),
            (False, False),
            (False, True),
        ]
    message = service_pb2.ModelInferRequest.FromString(infer_request("m", made[0]))
    assert message.parameters["sequence_id"].int64_param == 1 and message.parameters["sequence_start"].bool_param
    headers, body = http_request(made[0])
    head = json.loads(body[: int(headers["Inference-Header-Content-Length"])])
    assert head["parameters"]["sequence_id"] == 1 and head["parameters"]["sequence_end"] is False


def written(folder: Path, what: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "data.json"
    path.write_text(what if isinstance(what, str) else json.dumps(what))
    return path


X = GivenInput(name="X", datatype="FP32", shape=(1, 3))
N = GivenInput(name="N", datatype="INT8", shape=(1, 2))
T = GivenInput(name="T", datatype="BYTES", shape=(1, 2))


def test_a_data_file_is_read_as_perf_analyzer_reads_it(tmp_path: Path) -> None:
    raw_x = base64.b64encode(np.array([7, 8, 9], np.float32).tobytes()).decode()
    path = written(
        tmp_path,
        {
            "data": [
                {"X": [1, 2, 3], "N": [4, 5], "T": ["a", "é"]},
                {"X": {"content": [[4, 5, 6]], "shape": [3]}, "N": {"content": [1, 2]}, "T": {"content": ["b", "c"]}},
                {"X": {"b64": raw_x}, "N": [[0, -128]], "T": ["", "d"]},
            ]
        },
    )
    asked = Given(inputs=(X, N, T), data=str(path))
    found = requests(asked, 0, 5)
    assert [r["X"].tolist() for r in found] == [[[1, 2, 3]], [[4, 5, 6]], [[7, 8, 9]], [[1, 2, 3]], [[4, 5, 6]]]
    assert found[0]["T"].tolist() == [[b"a", "é".encode()]] and found[2]["N"].tolist() == [[0, -128]]
    assert found[0]["X"].dtype == np.float32 and found[0]["N"].dtype == np.int8
    assert read_shapes(path, ["X", "N", "Z"]) == {"X": (3,), "N": (2,)}


def test_lists_in_a_data_file_are_sequences(tmp_path: Path) -> None:
    path = written(tmp_path, {"data": [[{"X": [1, 1, 1]}, {"X": [2, 2, 2]}], [{"X": [3, 3, 3]}]]})
    found = requests(Given(inputs=(X,), data=str(path), sequence_length=8), 0, 4)
    assert [r.parameters["sequence_id"] for r in found[:3]] == [1, 2, 3]
    second = next(r for r in found if r.parameters["sequence_id"] == 2)
    assert second["X"].tolist() == [[3, 3, 3]] and second.parameters["sequence_end"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"data": [{"X": [1, 2]}]}, "request 1, X: 2 values; its shape [1, 3] takes 3"),
        (
            {"data": [{"X": [1, 2, 3]}, {"X": {"content": [1], "shape": [1, 1, 1]}}]},
            "request 2, X: shape [1, 1, 1] has",
        ),
        ({"data": [{"Y": [1, 2, 3]}]}, "the model has no input 'Y'; allowed: X"),
        ({"data": [{}]}, "input 'X' is missing"),
        ({"data": [{"X": [1, "two", 3]}]}, 'X: "two" is no value of FP32'),
        ({"data": [{"X": [1, None, 3]}]}, "X: null is no value of FP32"),
        ({"data": [{"X": {"b64": "AAAA"}}]}, "3 bytes; FP32 of shape [1, 3] takes 12"),
        ({"data": [{"X": {"b64": "?"}}]}, "b64 holds no base64"),
        ({"data": [{"X": [1, [2], {}]}]}, "X: {} is no value of FP32"),
        ({"data": [{"X": [1, 2, 10**400]}]}, "does not fit FP32; allowed: up to 3.40282e+38"),
        ({"data": [[]]}, "the sequence after request 0 is empty"),
        ({"data": [[{"X": [1, 2, 3]}], []]}, "the sequence after request 1 is empty"),
        ({"data": [3]}, "3 is no request"),
        ({"data": []}, "one request or more"),
        ("{", "is no JSON"),
    ],
)
def test_a_data_file_that_does_not_fit_is_one_line(tmp_path: Path, what: Any, said: str) -> None:
    with pytest.raises(InputError) as error:
        read_data(written(tmp_path, what), (X,))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_no_number_of_json_is_one_of_a_float(tmp_path: Path) -> None:
    (row,) = read_data(written(tmp_path, '{"data": [{"X": [NaN, -Infinity, 0]}]}'), (X,))[0]
    assert np.isnan(row["X"][0, 0]) and np.isneginf(row["X"][0, 1])


def test_a_number_beyond_its_datatype_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, {"data": [{"N": [1, 300]}]})
    with pytest.raises(InputError, match=r"300 does not fit INT8; allowed: -128 to 127"):
        read_data(path, (N,))
    for bad in ("NaN", "Infinity", "1.5", "1e400"):
        with pytest.raises(InputError, match="does not fit INT8"):
            read_data(written(tmp_path / bad, f'{{"data": [{{"N": [1, {bad}]}}]}}'), (N,))
    with pytest.raises(InputError, match=r"cannot be read: No such file"):
        read_data(tmp_path / "none.json", (N,))
