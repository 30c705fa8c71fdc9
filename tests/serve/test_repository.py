"""A spec becomes the configuration that Triton reads, and what contradicts itself becomes nothing (P1, P2, P3)."""

import os

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from lab.errors import InputError
from lab.serve import repository
from lab.spec import FAMILIES, Batching, ModelSpec


def read(text: str) -> pb.ModelConfig:
    return text_format.Parse(text, pb.ModelConfig())


BY_HAND = """
name: "quick"
backend: "python"
max_batch_size: 32
input { name: "IMAGE" data_type: TYPE_FP32 dims: 64 }
output { name: "LOGITS" data_type: TYPE_FP32 dims: 10 }
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching {
  preferred_batch_size: 8
  preferred_batch_size: 16
  max_queue_delay_microseconds: 2000
  default_queue_policy { max_queue_size: 64 }
}
parameters { key: "family" value { string_value: "digits" } }
parameters { key: "precision" value { string_value: "bf16" } }
parameters { key: "seed" value { string_value: "7" } }
"""


LLM_BY_HAND = """
name: "writer"
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true }
input { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "return_finish_reason" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
output { name: "finish_reason" data_type: TYPE_STRING dims: -1 }
output { name: "num_input_tokens" data_type: TYPE_UINT32 dims: -1 }
output { name: "num_output_tokens" data_type: TYPE_UINT32 dims: -1 }
instance_group { count: 1 kind: KIND_CPU }
parameters { key: "family" value { string_value: "llm" } }
parameters { key: "precision" value { string_value: "bf16" } }
parameters { key: "seed" value { string_value: "0" } }
parameters { key: "quantizer" value { string_value: "rtn" } }
parameters { key: "group_size" value { string_value: "32" } }
parameters { key: "kv_cache_precision" value { string_value: "null" } }
parameters { key: "scheduler" value { string_value: "static" } }
parameters { key: "kv_cache" value { string_value: "true" } }
parameters { key: "max_adapters" value { string_value: "16" } }
parameters { key: "max_batch_size" value { string_value: "4" } }
parameters { key: "max_request_tokens" value { string_value: "500" } }
parameters { key: "max_tokens_in_cache" value { string_value: "1000" } }
parameters { key: "stream_interval" value { string_value: "2" } }
parameters { key: "threads" value { string_value: "null" } }
"""


def test_a_language_model_answers_in_many_responses_and_has_its_engines_options_in_the_file():
    spec = ModelSpec(
        name="writer",
        family="llm",
        scheduler="static",
        max_batch_size=4,
        max_request_tokens=500,
        max_tokens_in_cache=1000,
        stream_interval=2,
    )
    assert read(repository.config_pbtxt(spec)) == read(LLM_BY_HAND)


def test_every_field_of_a_spec_is_in_the_file():
    batching = Batching(max_batch_size=32, max_queue_delay_us=2000, preferred_batch_sizes=(8, 16), max_queue_size=64)
    spec = ModelSpec(name="quick", family="digits", batching=batching, precision="bf16", instances=2, seed=7)
    assert read(repository.config_pbtxt(spec)) == read(BY_HAND)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "llm"])
def test_without_batching_requests_keep_their_shape_and_run_alone(family):
    off = read(repository.config_pbtxt(ModelSpec(name=family)))
    on = read(repository.config_pbtxt(ModelSpec(name=family, batching=Batching(max_batch_size=8))))
    assert off.max_batch_size == 1  # 0 would take the batch dimension away from the client's shapes
    assert not off.HasField("dynamic_batching")
    assert on.HasField("dynamic_batching")
    assert list(off.input) == list(on.input)
    assert list(off.output) == list(on.output)


def test_zero_delay_is_dynamic_batching_not_none():
    """An empty dynamic_batching block is easily lost by a writer that drops default values."""
    text = repository.config_pbtxt(ModelSpec(name="null", batching=Batching(max_batch_size=8)))
    assert "dynamic_batching" in text


def test_a_gpu_model_asks_for_a_gpu():
    spec = ModelSpec(name="digits", device="gpu")
    assert read(repository.config_pbtxt(spec)).instance_group[0].kind == pb.ModelInstanceGroup.KIND_GPU


batchings = st.builds(
    lambda size, delay, preferred, queue: Batching(
        max_batch_size=size,
        max_queue_delay_us=delay,
        preferred_batch_sizes=tuple(p for p in preferred if p <= size),
        max_queue_size=queue,
    ),
    st.integers(2, 1024),
    st.integers(0, 10_000_000),
    st.lists(st.integers(1, 1024), max_size=4),
    st.none() | st.integers(1, 10_000),
)


@given(batching=st.none() | batchings, instances=st.integers(1, 16), seed=st.integers(0, 2**63))
def test_no_value_is_lost_on_the_way(batching, instances, seed):
    message = read(repository.config_pbtxt(ModelSpec(name="digits", batching=batching, instances=instances, seed=seed)))
    assert message.instance_group[0].count == instances
    assert message.parameters["seed"].string_value == str(seed)
    if batching is not None:
        dynamic = message.dynamic_batching
        assert message.max_batch_size == batching.max_batch_size
        assert dynamic.max_queue_delay_microseconds == batching.max_queue_delay_us
        assert tuple(dynamic.preferred_batch_size) == batching.preferred_batch_sizes
        assert dynamic.default_queue_policy.max_queue_size == (batching.max_queue_size or 0)


def unchecked(**fields) -> ModelSpec:
    """A spec that never met pydantic's own checks."""
    defaults = {"max_queue_delay_us": 0, "preferred_batch_sizes": (), "max_queue_size": None}
    return ModelSpec(name="digits").model_copy(update={"batching": Batching.model_construct(**{**defaults, **fields})})


@pytest.mark.parametrize(
    ("spec", "values"),
    [
        (unchecked(max_batch_size=0), ["dynamic batching", "max_batch_size 0"]),
        (unchecked(max_batch_size=4, preferred_batch_sizes=(8,)), ["holds 8", "max_batch_size 4"]),
        (
            ModelSpec(name="digits", batching=Batching(max_batch_size=1, max_queue_delay_us=500)),
            ["max_queue_delay_us 500", "max_batch_size 1"],
        ),
        (ModelSpec(name="null", device="gpu"), ["gpu", "null"]),
        (
            ModelSpec(name="llm", max_tokens_in_cache=1000),
            ["max_tokens_in_cache 1000", "max_request_tokens 1024"],
        ),
        (
            ModelSpec(name="llm", max_tokens_in_cache=2049, max_batch_size=2),
            ["max_tokens_in_cache 2049", "max_batch_size 2", "2048"],
        ),
    ],
)
def test_a_contradiction_is_refused_with_both_values_named(spec, values, tmp_path):
    for refuse in (repository.check, repository.config_pbtxt, lambda spec: repository.write_model(spec, tmp_path)):
        with pytest.raises(InputError) as told:
            refuse(spec)
        line = str(told.value)
        assert all(value in line for value in values), line
        assert "allowed:" in line
        assert "\n" not in line
    assert list(tmp_path.iterdir()) == []


def test_a_model_folder_is_complete(tmp_path):
    folder = repository.write_model(ModelSpec(name="quick", family="null"), tmp_path)
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert files == ["quick", "quick/1", "quick/1/model.py", "quick/config.pbtxt"]
    assert read((folder / "config.pbtxt").read_text()).name == "quick"
    assert "class TritonPythonModel" in (folder / "1" / "model.py").read_text()


def test_a_model_of_several_modules_has_them_beside_it_with_their_times(tmp_path, monkeypatch):
    """Python, and numba, compile a module anew whose time has changed: at each toggle, if copies had their own."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "llm.py").write_text("from .engine import Engine\nimport json\n")
    (code / "engine.py").write_text("def load():\n    from .kernels import run\n")
    (code / "kernels.py").write_text("import numpy\n")
    (code / "stranger.py").write_text("")
    os.utime(code / "kernels.py", (1_000_000_000, 1_000_000_000))
    monkeypatch.setattr(repository, "MODELS", code)
    version = repository.write_model(ModelSpec(name="llm"), tmp_path / "repository") / "1"
    assert {path.name for path in version.glob("*.py")} == {"model.py", "engine.py", "kernels.py"}
    assert (version / "kernels.py").stat().st_mtime == 1_000_000_000


def test_weights_are_linked_by_seed_and_the_link_goes_with_them(tmp_path):
    link = tmp_path / "m" / "1" / "weights"
    targets = []
    for seed in (0, 1):
        repository.write_model(ModelSpec(name="m", family="digits", seed=seed), tmp_path)
        targets.append(link.readlink())
    assert targets[0] != targets[1]
    repository.write_model(ModelSpec(name="m", family="null"), tmp_path)
    assert not os.path.lexists(link)


def test_a_reader_never_sees_half_a_configuration(tmp_path):
    """It is replaced, not written over: who has begun to read the old one reads on in that."""
    spec = ModelSpec(name="null")
    folder = repository.write_model(spec, tmp_path)
    before = (folder / "config.pbtxt").read_text()
    with (folder / "config.pbtxt").open() as reader:
        repository.write_model(spec.model_copy(update={"batching": Batching(max_batch_size=8)}), tmp_path)
        assert reader.read() == before
    assert (folder / "config.pbtxt").read_text() == repository.config_pbtxt(
        spec.model_copy(update={"batching": Batching(max_batch_size=8)})
    )
