"""Memory predicted from SmolLM2-135M's config by paper arithmetic, and set against what a process shows."""

import pytest

from lab.measure.ledger import compare, kv_bytes_per_token, predict
from lab.measure.summary import Summary
from lab.spec import ModelSpec

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
MIB = 2**20


def rows(**spec):
    return {row.name: row for row in predict(SMOLLM2, ModelSpec(name="llm", **spec)).rows}


def test_weights_are_those_of_the_published_file():
    """134,515,008 parameters; model.safetensors of bf16 holds 269,030,016 bytes of them."""
    assert rows()["weights"].size_bytes == 269_030_016
    assert rows(precision="fp32")["weights"].size_bytes == 2 * 269_030_016


def test_weights_of_a_model_whose_output_matrix_is_its_own():
    untied = predict({**SMOLLM2, "tie_word_embeddings": False}, ModelSpec(name="llm"))
    assert untied.rows[0].size_bytes == 269_030_016 + 49152 * 576 * 2


def test_a_token_in_the_cache_counts_key_heads_not_query_heads():
    """23,040 bytes (shared/MODELS.md); nine heads would make it three times that."""
    assert kv_bytes_per_token(SMOLLM2, "bf16") == 23_040
    all_heads = {**SMOLLM2, "num_key_value_heads": 9}
    assert kv_bytes_per_token(all_heads, "bf16") == 3 * 23_040
    unnamed = {k: v for k, v in SMOLLM2.items() if k != "num_key_value_heads"}
    assert kv_bytes_per_token(unnamed, "bf16") == 3 * 23_040


def test_the_cache_has_the_served_precision_not_that_of_the_file():
    assert kv_bytes_per_token(SMOLLM2, "fp32") == 46_080


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
    assert rows(**spec)["kv_cache"].size_bytes == tokens * 23_040


def measured(**figures) -> Summary:
    return Summary.from_dict({"batch_sizes": {}, "item_compute_s": {}, "problems": [], **figures})


def test_predicted_and_measured_side_by_side():
    """Idle 500 MiB of which 256.6 are weights; at the peak 60 more, 22 of them 1,000 tokens of cache."""
    ledger = predict(SMOLLM2, ModelSpec(name="llm"))
    found = compare(
        ledger,
        measured(
            memory_base_bytes=500 * MIB,
            memory_peak_bytes=560 * MIB,
            engine_weight_bytes=270_000_000,
            engine_cache_bytes=188_743_680,
            cache_tokens_used_peak=1000,
        ),
    )
    row = {r.name: r for r in found}
    assert row["weights"].error_fraction == pytest.approx(269_030_016 / 270_000_000 - 1)
    assert row["kv_cache"].error_fraction == 0  # 8 × 1024 × 23,040
    assert row["runtime"].measured_bytes == 500 * MIB - 270_000_000
    assert (row["runtime"].predicted_bytes, row["runtime"].error_fraction) == (None, None)
    assert row["activations and workspace"].measured_bytes == 60 * MIB - 1000 * 23_040
    whole = row["whole process"]
    steps = row["activations and workspace"].predicted_bytes
    assert whole.predicted_bytes == 269_030_016 + (500 * MIB - 270_000_000) + 1000 * 23_040 + steps
    assert whole.measured_bytes == 560 * MIB


def test_without_a_cache_nothing_is_held_for_it():
    ledger = predict(SMOLLM2, ModelSpec(name="llm", kv_cache=False))
    found = compare(ledger, measured(memory_base_bytes=500.0, memory_peak_bytes=510.0, engine_weight_bytes=300.0))
    row = {r.name: r for r in found}
    assert row["kv_cache"].predicted_bytes == 0
    assert row["activations and workspace"].measured_bytes == 10


def test_what_was_not_measured_says_so_and_has_no_error():
    for row in compare(predict(SMOLLM2, ModelSpec(name="llm")), measured()):
        assert row.measured_bytes is None
        assert row.error_fraction is None
        assert row.how in ("not measured", "nothing is quantized")
