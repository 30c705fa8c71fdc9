"""From a server's description and the user's wishes to what is sent: on configurations as Triton's JSON has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.errors import InputError
from lab.run.given import Wishes, given_of, of_url, plan
from lab.serve.described import Described, read
from lab.spec import Batching


def config(**more: Any) -> dict[str, Any]:
    """The example of the source material: one FP32 input, one output."""
    return {
        "name": "my_model",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": [{"name": "input_node", "data_type": "TYPE_FP32", "dims": ["1"]}],
        "output": [{"name": "output_node", "data_type": "TYPE_FP32", "dims": ["1"]}],
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
        **more,
    }


def stranger(*inputs: dict[str, Any], **more: Any) -> Described:
    return read(config(input=list(inputs), **more))


IDS = {"name": "ids", "data_type": "TYPE_INT64", "dims": ["-1"]}
MASK = {"name": "mask", "data_type": "TYPE_INT64", "dims": ["-1"], "optional": True}


def test_a_configuration_is_read_whole() -> None:
    queue = {"max_queue_size": 16}
    dynamic = {"max_queue_delay_microseconds": "500", "preferred_batch_size": [4], "default_queue_policy": queue}
    found = read(config(dynamic_batching=dynamic))
    assert found.batching == Batching(
        max_batch_size=8, max_queue_delay_us=500, preferred_batch_sizes=(4,), max_queue_size=16
    )
    assert (found.backend, found.instances, found.decoupled, found.sequences) == ("onnxruntime", 2, False, False)
    assert [t.words() for t in found.inputs] == ["input_node FP32 [1]"]
    decoupled = read(config(model_transaction_policy={"decoupled": True}, sequence_batching={}, max_batch_size=0))
    assert decoupled.decoupled and decoupled.sequences and decoupled.batching is None


def test_the_example_of_the_source_material_needs_no_wish() -> None:
    found = plan(read(config()), Wishes())
    assert found.model == {"name": "my_model", "family": "given", "batching": None}
    assert found.given is not None and found.given.inputs[0].shape == (1, 1)
    assert any("Values of input_node are drawn" in note for note in found.notes)


def test_open_dimensions_are_asked_for_all_at_once() -> None:
    with pytest.raises(InputError) as error:
        given_of(stranger(IDS, {**IDS, "name": "more", "dims": ["-1", "3"]}), Wishes())
    assert "--shape ids:N --shape more:N,3" in str(error.value)


@pytest.mark.parametrize("asked", [(128,), (1, 128)])
def test_a_shape_is_given_with_the_batch_dimension_or_without(asked: tuple[int, ...]) -> None:
    assert given_of(stranger(IDS), Wishes(shapes={"ids": asked})).inputs[0].shape == (1, 128)


def test_without_a_batch_dimension_a_shape_is_all_there_is() -> None:
    assert given_of(stranger(IDS, max_batch_size=0), Wishes(shapes={"ids": (128,)})).inputs[0].shape == (128,)


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (Wishes(shapes={"ids": (2, 3, 4)}), "--shape ids:2,3,4: the model takes ids INT64 [any]"),
        (Wishes(shapes={"idz": (2,)}), 'has no such input; did you mean "ids"?'),
        (Wishes(shapes={"ids": (4,)}, batch=9), "--batch 9: model my_model takes 1 to 8"),
        (Wishes(shapes={"ids": (4,)}, sequence_length=3), "has no sequences"),
        (
            Wishes(shapes={"ids": (2**30,)}),
            "a request of ids [1, 1073741824] is too large; allowed: 134,217,728 values",
        ),
        (Wishes(shapes={"ids": (4,)}, ranges={"ids": (5, 1)}), "ends before it begins"),
        (Wishes(shapes={"ids": (4,)}, ranges={"ids": (0, 1e30)}), "ids is INT64; allowed: from -9.0072e+15 to"),
        (Wishes(shapes={"ids": (4,)}, ranges={"ids": (float("nan"), 1)}), "ids is INT64; allowed"),
    ],
)
def test_a_wish_that_does_not_fit_is_one_line(wishes: Wishes, said: str) -> None:
    with pytest.raises(InputError) as error:
        given_of(stranger(IDS), wishes)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "high", "said"),
    [
        ("TYPE_UINT8", 300, "x is UINT8; allowed: from 0 to 255"),
        ("TYPE_FP16", 1e5, "x is FP16; allowed: from -32752 to 32752"),
        ("TYPE_FP32", float("inf"), "x is FP32; allowed"),
        ("TYPE_STRING", 1, "x is BYTES, which has no range"),
        ("TYPE_BOOL", 1, "x is BOOL, which has no range"),
    ],
)
def test_a_range_beyond_its_datatype_is_refused(kind: str, high: float, said: str) -> None:
    with pytest.raises(InputError) as error:
        given_of(stranger({"name": "x", "data_type": kind, "dims": ["4"]}), Wishes(ranges={"x": (0, high)}))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_fixed_dimension_stays() -> None:
    fixed = {"name": "x", "data_type": "TYPE_FP32", "dims": ["3", "-1"]}
    assert given_of(stranger(fixed), Wishes(shapes={"x": (3, 7)})).inputs[0].shape == (1, 3, 7)
    with pytest.raises(InputError, match=r"--shape x:4,7: the model takes x FP32 \[3, any\]"):
        given_of(stranger(fixed), Wishes(shapes={"x": (4, 7)}))


def test_optional_inputs_are_left_out_unless_asked_for() -> None:
    found = plan(stranger(IDS, MASK), Wishes(shapes={"ids": (4,)}))
    assert found.given is not None and [i.name for i in found.given.inputs] == ["ids"]
    assert any("Optional inputs are left out: mask" in note for note in found.notes)
    both = given_of(stranger(IDS, MASK), Wishes(shapes={"ids": (4,), "mask": (4,)}))
    assert [i.name for i in both.inputs] == ["ids", "mask"]


def test_a_data_file_says_how_long_an_open_dimension_is(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"data": [{"ids": [1, 2, 3, 4, 5], "mask": [1, 1, 1, 1, 1]}]}))
    found = given_of(stranger(IDS, MASK), Wishes(data=str(path)))
    assert [(i.name, i.shape) for i in found.inputs] == [("ids", (1, 5)), ("mask", (1, 5))]


def test_sequences_are_announced_with_a_length() -> None:
    found = plan(stranger({**IDS, "dims": ["4"]}, sequence_batching={}), Wishes())
    assert found.given is not None and found.given.sequence_length == 8
    assert any("Sequences of 8 requests" in note for note in found.notes)


def test_a_model_with_several_responses_needs_grpc() -> None:
    decoupled = stranger({**IDS, "dims": ["4"]}, model_transaction_policy={"decoupled": True})
    assert plan(decoupled, Wishes()).given.decoupled
    with pytest.raises(InputError, match="allowed: grpc://HOST:PORT"):
        plan(decoupled, Wishes(), scheme="http")


def test_the_labs_own_models_are_known_and_a_vllm_backend_too() -> None:
    digits = read(
        config(name="digits", input=[{"name": "IMAGE", "data_type": "TYPE_FP32", "dims": ["64"]}], dynamic_batching={})
    )
    assert plan(digits, Wishes()).model == {"name": "digits", "family": "digits", "batching": {"max_batch_size": 8}} | {
        "batching": plan(digits, Wishes()).model["batching"]
    }
    other = read(config(name="digits", input=[{"name": "IMAGE", "data_type": "TYPE_FP32", "dims": ["65"]}]))
    assert plan(other, Wishes()).model["family"] == "given"
    names = ("text_input", "stream", "sampling_parameters")
    vllm = [{"name": n, "data_type": "TYPE_STRING", "dims": ["1"]} for n in names]
    found = stranger(*vllm, name="vllm_model", max_batch_size=0, model_transaction_policy={"decoupled": True})
    assert plan(found, Wishes()).model == {"name": "vllm_model", "family": "llm"}


@pytest.mark.parametrize(
    ("url", "wishes"),
    [
        ("openai+http://127.0.0.1:1", Wishes(data="prompts.json")),
        ("openai+http://127.0.0.1:1", Wishes(shapes={"ids": (4,)})),
        ("torchserve+http://127.0.0.1:1", Wishes(batch=2)),
        ("replicate+http://127.0.0.1:1", Wishes(ranges={"ids": (0, 1)})),
    ],
)
def test_tensors_are_described_to_a_triton_alone(url: str, wishes: Wishes) -> None:
    with pytest.raises(InputError, match="describe the tensors of a Triton's model"):
        of_url(url, "any", wishes)


def test_sequences_leave_one_process() -> None:
    from lab.run import preflight
    from lab.run.catalogue import single
    from lab.run.gauge import Ceiling, workers_for

    found = plan(stranger({**IDS, "dims": ["4"]}, sequence_batching={}), Wishes())
    asked = {
        "arrival": {"kind": "poisson", "rate_rps": 5000.0},
        "duration_s": 1.0,
        "protocol": "grpc",
        **found.workload,
    }
    experiment = single(found.model, asked)
    assert workers_for(experiment, Ceiling(100.0, 1, "")) == 1
    with pytest.raises(InputError, match="must leave one process"):
        preflight.check(single(found.model, {**asked, "workers": 2}), "grpc://127.0.0.1:8001")
