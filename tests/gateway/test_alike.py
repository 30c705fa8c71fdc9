"""Responses that are read by comparing bytes say what protobuf says of them, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from lab.gateway.alike import Alike

TEXTS = ["", " the", "Grüße", "🙂", '"\\\n', "x" * 100, "x" * 123]


def message(text: str, tokens: int = 1, *, id: str = "", finish: str = "None", more: str = "") -> Any:
    found = service_pb2.ModelStreamInferResponse(error_message=more)
    found.infer_response.model_name, found.infer_response.id = "llm", id
    outputs = {"text_output": text.encode(), "finish_reason": finish.encode()}
    contents = [len(raw).to_bytes(4, "little") + raw for raw in outputs.values()] + [np.uint32(tokens).tobytes()]
    for name in (*outputs, "num_output_tokens"):
        found.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
    found.infer_response.raw_output_contents.extend(contents)
    found.infer_response.parameters["triton_final_response"].bool_param = False
    return found


def known(found: Any, tokens: int = 1) -> Alike | None:
    return Alike.of(found.SerializeToString(), found.infer_response, tokens)


@pytest.mark.parametrize("id", ["", "0123456789abcdef", "x" * 90])  # the length of the whole takes one byte, or two
@pytest.mark.parametrize("learnt", TEXTS)
def test_texts_are_those_of_protobuf(learnt: str, id: str) -> None:
    alike = known(message(learnt, id=id))
    assert alike is not None and alike.tokens == 1
    for text in TEXTS:
        data = message(text, id=id).SerializeToString()
        content = service_pb2.ModelStreamInferResponse.FromString(data).infer_response.raw_output_contents[0]
        assert alike.text(data) == content[4:].decode() == text


def test_what_differs_in_anything_else_is_left_to_protobuf() -> None:
    alike = known(message(" the", id="a"))
    assert alike is not None
    final = service_pb2.ModelStreamInferResponse()
    final.infer_response.parameters["triton_final_response"].bool_param = True
    others = [
        message(" the", 2, id="a"),
        message(" the", id="b"),
        message(" the", id="a", finish="length"),
        message(" the", id="a", more="out of luck"),
        message("x" * 124, id="a"),  # its length takes two bytes
        message("x" * 300, id="a"),
        final,
        service_pb2.ModelStreamInferResponse(),
    ]
    for other in others:
        assert alike.text(other.SerializeToString()) is None
    whole = message(" the", id="a").SerializeToString()
    for end in range(len(whole)):
        assert alike.text(whole[:end]) is None
    with pytest.raises(ValueError, match="utf-8"):
        alike.text(whole.replace(b" the", b"\xff\xfe\xfd\xfc"))


def test_messages_that_cannot_be_known() -> None:
    other_first = message(" the")
    other_first.infer_response.outputs[0].name = "finish_reason"
    final = service_pb2.ModelStreamInferResponse()
    final.infer_response.parameters["triton_final_response"].bool_param = True
    for found in (other_first, message("x" * 300), final, message(" the", more="out of luck")):
        assert known(found) is None
