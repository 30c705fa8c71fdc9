"""Memory predicted from SmolLM2-135M's config by paper arithmetic, and set against what a process shows.

SmolLM2: 30 layers of 576 × 960 + 576 × 576 + 3 × 576 × 1536 = 3,538,944 weights, an embedding of 49152 × 576 that is
the head as well, and 61 norms of 576.
"""

import pytest

from lab.measure.ledger import MIB, cache_precision, kv_bytes_per_token, predict
from lab.measure.reconcile import Measured, reconcile
from lab.spec import ClosedLoop, ModelSpec, Poisson, Workload

SMOLLM2 = {
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LAYERS, EMBEDDING, NORMS = 106_168_320, 28_311_552, 35_136
ROWS = 30 * (960 + 576 + 2 * 1536 + 576)


def ledger(workload=None, **spec):
    return predict(SMOLLM2, ModelSpec(name="llm", **spec), workload)


def rows(workload=None, **spec):
    return {row.name: row.size_bytes for row in ledger(workload, **spec).rows}


def test_weights_are_those_of_the_published_file():
    """134,515,008 parameters; model.safetensors of bf16 holds 269,030,016 bytes of them. The engine keeps its norms in
    float32."""
    assert LAYERS + EMBEDDING + NORMS == 134_515_008
    assert rows()["weights"] == 269_030_016 + 2 * NORMS
    assert rows(precision="fp32")["weights"] == 2 * 269_030_016
    assert rows()["scales"] == rows(precision="fp32")["scales"] == 0


def test_weights_of_a_model_whose_output_matrix_is_its_own():
    untied = predict({**SMOLLM2, "tie_word_embeddings": False}, ModelSpec(name="llm"))
    assert untied["weights"].size_bytes == 269_030_016 + 2 * NORMS + 2 * EMBEDDING


@pytest.mark.parametrize("precision", ["int8", "int8_weight"])
def test_eight_bits_have_a_scale_a_row(precision):
    found = rows(precision=precision)
    assert found["weights"] == LAYERS + EMBEDDING + 4 * NORMS
    assert found["scales"] == 4 * (ROWS + 49_152)


def test_four_bits_are_not_an_eighth_of_thirty_two():
    """A scale for 32 weights is a bit a weight, and the embedding keeps 8 bits: 95 MB where an eighth were 67."""
    found = rows(precision="int4")
    assert found["weights"] == LAYERS / 2 + EMBEDDING + 4 * NORMS
    assert found["scales"] == 4 * (LAYERS / 32 + 49_152)
    assert found["zero-points"] == 0
    eighth = rows(precision="fp32")["weights"] / 8
    assert (found["weights"] + found["scales"]) / eighth == pytest.approx(1.4125, abs=0.0005)


def test_four_bits_on_a_gpu_fill_rows_up():
    """576 columns take 1024 and 1536 take 2048: (960 + 576 + 3072) × 1024 + 576 × 2048 in each of 30 layers. A group
    has a scale and a zero of 2 bytes each, and a norm is bfloat16."""
    found, filled = rows(precision="int4", device="gpu"), 30 * (4_608 * 1_024 + 576 * 2_048)
    assert found["weights"] == filled / 2 + EMBEDDING + 2 * NORMS
    assert found["scales"] == 4 * (filled / 32 + 49_152)
    odd = rows(precision="int4", device="gpu", group_size=48)  # which torch computes with the weights as they are
    assert odd["weights"] == LAYERS / 2 + EMBEDDING + 2 * NORMS


def test_larger_groups_have_fewer_scales():
    assert rows(precision="int4", group_size=64)["scales"] == 4 * (LAYERS / 64 + 49_152)


def test_a_token_in_the_cache_counts_key_heads_not_query_heads():
    """23,040 bytes (shared/MODELS.md); nine heads would make it three times that."""
    assert kv_bytes_per_token(SMOLLM2, "bf16") == 23_040
    all_heads = {**SMOLLM2, "num_key_value_heads": 9}
    assert kv_bytes_per_token(all_heads, "bf16") == 3 * 23_040
    unnamed = {k: v for k, v in SMOLLM2.items() if k != "num_key_value_heads"}
    assert kv_bytes_per_token(unnamed, "bf16") == 3 * 23_040


def test_a_cache_of_eight_bits_has_a_scale_for_each_head():
    """2 × 30 × 3 heads × (64 bytes and a scale of 4): 0.53 of bf16, not a half."""
    assert kv_bytes_per_token(SMOLLM2, "int8") == 180 * 68


@pytest.mark.parametrize(
    ("spec", "precision"),
    [
        ({"precision": "fp32"}, "fp32"),
        ({"precision": "int4"}, "bf16"),
        ({"precision": "int8", "kv_cache_precision": "int8"}, "int8"),
        ({"precision": "fp32", "kv_cache_precision": "bf16"}, "bf16"),
    ],
)
def test_the_cache_has_a_precision_of_its_own(spec, precision):
    assert cache_precision(ModelSpec(name="llm", **spec)) == precision


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ({"max_batch_size": 8, "max_request_tokens": 1024}, 8 * 1024),
        ({"max_batch_size": 8, "max_request_tokens": 100_000}, 8 * 8192),
        ({"scheduler": "one", "max_request_tokens": 1024}, 1024),
        ({"kv_cache": False}, 0),
    ],
)
def test_room_in_the_cache(spec, tokens):
    assert rows(**spec)["KV cache, room"] == tokens * 23_040


@pytest.mark.parametrize(
    ("arrival", "users"),
    [(ClosedLoop(concurrency=2), 2), (ClosedLoop(concurrency=20), 8), (Poisson(rate_rps=1), 8)],
)
def test_of_the_room_a_load_uses_what_its_requests_can_hold_together(arrival, users):
    workload = Workload(arrival=arrival, duration_s=1, prompt_tokens=32, output_tokens=(8, 64))
    # 90 heads of 96 tokens: three pages of keys, and of values two in each of two blocks of 32 dimensions.
    assert rows(workload, max_batch_size=8)["KV cache, in use"] == users * 90 * (3 + 2 * 2) * 4096
    assert ledger(workload, max_batch_size=8).held_tokens == users * 96


def test_activations_are_those_of_the_largest_step():
    """Eight prompts of 100 tokens are read 512 at a time. A token takes 4 × (576 + 960) bytes of sums and 2 × (576 +
    1536 + 2 × 1920) of rounded inputs, of which each of two threads has its own, a quarter longer than the widest."""
    workload = Workload(arrival=ClosedLoop(concurrency=8), duration_s=1, prompt_tokens=100, output_tokens=10)
    assert rows(workload)["activations"] == 512 * (4 * 1536 + 2 * 5952)
    short = Workload(arrival=ClosedLoop(concurrency=2), duration_s=1, prompt_tokens=100, output_tokens=10)
    assert rows(short)["activations"] == 200 * (4 * 1536 + 2 * 5952)
    assert rows(short)["workspace"] == 8192 * 64 * 4 + 2 * 2 * 49152 * 4


WORKLOAD = Workload(arrival=ClosedLoop(concurrency=8), duration_s=1, prompt_tokens=32, output_tokens=96)


def test_predicted_and_measured_side_by_side():
    """Idle 400 MiB, of which 80 MB are weights and 13 scales; 40 MiB more after the load, and 100 of libraries."""
    predicted = ledger(WORKLOAD, precision="int4", max_batch_size=8, max_request_tokens=256)
    found = reconcile(
        predicted,
        Measured(400 * MIB, 440 * MIB, 100 * MIB, weights=80_000_000, scales=13_000_000, cache=8 * 256 * 23_040),
    )
    row = {r.name: r for r in found}
    assert row["weights"].error_fraction == pytest.approx((LAYERS / 2 + EMBEDDING + 4 * NORMS) / 80_000_000 - 1)
    assert row["scales"].error_fraction == pytest.approx(4 * (LAYERS / 32 + 49_152) / 13_000_000 - 1)
    assert row["KV cache, room"].error_fraction == 0
    tables = 8192 * 64 * 4  # the rotations are there before anything is asked
    assert row["runtime"].measured_bytes == 400 * MIB - 93_000_000 - tables
    growth = row["under load"]
    parts = ("KV cache, in use", "activations", "workspace")
    assert growth.predicted_bytes == sum(predicted[name].size_bytes for name in parts)
    assert growth.measured_bytes == 40 * MIB + tables
    whole = row["in all"]
    alone = sum(predicted[name].size_bytes for name in ("weights", "scales", "runtime", "libraries"))
    assert whole.predicted_bytes == alone + growth.predicted_bytes
    assert (whole.measured_bytes, found[-1]) == (540 * MIB, whole)


def test_the_cache_in_use_is_counted_and_the_rest_of_the_load_measured_as_one():
    """Of 40 MiB and the rotations that a load wrote, the engine counted 512 tokens of 23,040 bytes."""
    predicted = ledger(WORKLOAD, precision="bf16", max_batch_size=8, max_request_tokens=256)
    idle, in_use = 500 * MIB, 512 * 23_040
    found = {r.name: r for r in reconcile(predicted, Measured(idle, idle + 40 * MIB, 1, 1, cache_in_use=in_use))}
    assert found["KV cache, in use"].measured_bytes == in_use
    rest, parts = found["activations and workspace"], ("activations", "workspace")
    assert rest.measured_bytes == 40 * MIB + 8192 * 64 * 4 - in_use
    assert rest.predicted_bytes == sum(predicted[name].size_bytes for name in parts)
    assert in_use + rest.measured_bytes == found["under load"].measured_bytes
    assert [found[name].measured_bytes for name in parts] == [None, None]


def test_without_a_cache_nothing_is_held_for_it():
    found = reconcile(ledger(WORKLOAD, kv_cache=False), Measured(idle=10_000_500, held=10_000_510, weights=300))
    row = {r.name: r for r in found}
    assert row["KV cache, room"].predicted_bytes == row["KV cache, in use"].predicted_bytes == 0
    assert row["runtime"].measured_bytes == 10_000_200 - 8192 * 64 * 4
    assert row["under load"].measured_bytes == 10 + 8192 * 64 * 4


def test_what_was_not_measured_says_so_and_has_no_error():
    for row in reconcile(ledger(precision="int4"), Measured()):
        assert row.measured_bytes is None
        assert row.error_fraction is None
        assert row.how


def test_the_compiler_belongs_to_the_engine_that_has_one():
    assert rows()["libraries"] - rows(precision="fp32")["libraries"] == 68 * MIB
    assert rows(precision="int4")["libraries"] == rows()["libraries"]


def test_the_engine_of_torch_holds_its_whole_cache_at_once():
    assert rows(WORKLOAD, precision="fp32", max_batch_size=8)["KV cache, in use"] == 8 * 1024 * 46_080


def test_a_cache_taken_at_once_is_no_part_of_the_runtime():
    """Of 900 MiB idle 513.1 are weights and 180 the cache of 16 × 256 tokens; 10 more under load."""
    predicted = ledger(WORKLOAD, precision="fp32", max_batch_size=16, max_request_tokens=256)
    found = reconcile(predicted, Measured(900 * MIB, 910 * MIB, 98 * MIB, weights=538_060_032, cache=16 * 256 * 46_080))
    row = {r.name: r for r in found}
    at_once = 16 * 256 * 46_080 + 8192 * 64 * 4
    assert row["runtime"].measured_bytes == 900 * MIB - 538_060_032 - at_once
    assert row["under load"].measured_bytes == 10 * MIB + at_once
    parts = ("weights", "scales", "under load", "runtime", "libraries")
    assert sum(row[name].measured_bytes or 0 for name in parts) == row["in all"].measured_bytes


def test_adapters_are_a_row_of_their_own_where_there_are_some():
    """16 of rank 8 on q (576 → 576) and v (576 → 192), 30 layers, 2 bytes: 8 × (1152 + 768) × 30 × 2 × 16."""
    size = 16 * 2 * 30 * 8 * (1152 + 768)
    spec = ModelSpec(name="llm", adapters=("tea", "json"))
    found = reconcile(
        predict(SMOLLM2, spec, None, size),
        Measured(idle=900e6, held=950e6, libraries=1e6, weights=269e6, adapters=size),
    )
    by_name = {row.name: row for row in found}
    assert by_name["adapters"].predicted_bytes == by_name["adapters"].measured_bytes == size == 14_745_600
    without = {row.name: row for row in reconcile(predict(SMOLLM2, spec), Measured(idle=900e6, weights=269e6))}
    assert "adapters" not in without
    whole = "in all"
    assert by_name[whole].predicted_bytes == without[whole].predicted_bytes + size
    assert by_name["runtime"].measured_bytes == without["runtime"].measured_bytes - size


TWO = Workload(arrival=ClosedLoop(concurrency=8), duration_s=1, prompt_tokens=100, output_tokens=10)


@pytest.mark.parametrize("precision", ["bf16", "int4", "fp32"])
def test_two_instances_write_everything_twice_and_read_the_same_files(precision):
    """Four of eight users each: 400 tokens of prompts to read instead of 512, and logits of four."""
    spec = {"precision": precision, "max_batch_size": 4, "max_request_tokens": 256}
    half = Workload(arrival=ClosedLoop(concurrency=4), duration_s=1, prompt_tokens=100, output_tokens=10)
    one, two = ledger(half, **spec), ledger(TWO, instances=2, **spec)
    for row in one.rows:
        times = 1 if row.name == "libraries" else 2
        assert two[row.name].size_bytes == times * row.size_bytes, row.name
    assert two["weights"].formula == f"2 instances × ({one['weights'].formula})"
    assert two["libraries"].formula.endswith("2 instances read the same files, counted once")
    assert (two.held_tokens, two.taken_at_once) == (2 * one.held_tokens, 2 * one.taken_at_once)
    assert (two.elements, two.kv_bytes_per_token) == (one.elements, one.kv_bytes_per_token)
    assert two.held_tokens == (8 * 110 if precision != "fp32" else 2 * 4 * 256)


def test_an_odd_user_more_is_room_for_two():
    """Of nine users one instance meets five at a time, and which one changes: each keeps the pages it once wrote."""
    nine = Workload(arrival=ClosedLoop(concurrency=9), duration_s=1, prompt_tokens=32, output_tokens=64)
    assert rows(nine, instances=2, max_batch_size=8)["KV cache, in use"] == 2 * 5 * 90 * (3 + 2 * 2) * 4096


def test_two_processes_beside_what_both_showed():
    """On paper: 400 MiB written when idle in each, 20 more under load, 150 MiB of files that both read."""
    predicted = ledger(TWO, instances=2, max_batch_size=8)
    weights = 2 * (269_030_016 + 2 * NORMS)
    found = {
        row.name: row
        for row in reconcile(
            predicted, Measured(800 * MIB, 840 * MIB, 150 * MIB, weights, cache_in_use=8 * 110 * 23_040)
        )
    }
    tables = 2 * 8192 * 64 * 4
    assert found["weights"].error_fraction == 0
    assert found["runtime"].measured_bytes == 800 * MIB - weights - tables
    assert found["under load"].measured_bytes == 40 * MIB + tables
    assert found["in all"].measured_bytes == 990 * MIB
    assert found["in all"].how == "what of the model's 2 processes together is in memory, each file once"
