"""The decoder against transformers' Llama, which shares no code with it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from lab.serve import llama_weights
from lab.serve.models.decoder import Decoder, KVCache, Span, load
from lab.serve.models.llama_config import LlamaConfig
from tests.serve.conftest import relative_rms, save_llama

TOKENS = [7, 200, 13, 13, 99, 255, 0, 31, 64, 3, 180, 42]


@torch.inference_mode()
def reference(model: Any, tokens: list[int]) -> torch.Tensor:
    """transformers' logits [tokens, vocabulary]: row i is what follows after token i."""
    return model(torch.tensor([tokens])).logits[0].float()


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.float() - b.float()).abs().max().item()


def greedy(decoder: Decoder, prompts: list[list[int]], slots: list[int], cached: bool, steps: int) -> list[list[int]]:
    """The next `steps` tokens of each prompt, all prompts in one batch, prompt i in slot slots[i]."""
    rows = [list(prompts[slots.index(slot)]) for slot in range(len(prompts))]
    cache = KVCache(decoder.config, len(rows), 64, torch.float32) if cached else None
    logits = decoder.prefill([Span(row, slot) for slot, row in enumerate(rows)], cache)
    for step in range(steps):
        for row, token in zip(rows, logits.argmax(-1).tolist(), strict=True):
            row.append(token)
        if step + 1 == steps:
            break
        if cache is None:
            logits = decoder.prefill([Span(row) for row in rows], None)
        else:
            logits = decoder.decode([row[-1] for row in rows], [len(row) - 1 for row in rows], cache)
    return [rows[slot][-steps:] for slot in slots]


@pytest.mark.parametrize("length", [1, 2, 12])
def test_prefill_gives_transformers_logits(tiny: Decoder, truth: Any, length: int) -> None:
    tokens = TOKENS[:length]
    assert apart(tiny.prefill([Span(tokens)], None)[0], reference(truth, tokens)[-1]) < 1e-4


def test_decode_gives_transformers_logits_at_every_step(tiny: Decoder, truth: Any) -> None:
    expected = reference(truth, TOKENS)
    cache = KVCache(tiny.config, 1, 32, torch.float32)
    for position, token in enumerate(TOKENS):  # from an empty cache: even the first token can be decoded
        assert apart(tiny.decode([token], [position], cache)[0], expected[position]) < 1e-4


@pytest.mark.llm
@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"head_dim": 32, "rope_theta": 1e6, "rms_norm_eps": 1e-3},
    ],
    ids=str,
)
def test_every_shape_of_llama(tmp_path: Path, changes: dict[str, Any]) -> None:
    expected = reference(save_llama(tmp_path, **changes), TOKENS)
    decoder = Decoder.load(tmp_path, torch.float32)
    cache = KVCache(decoder.config, 1, 32, torch.float32)
    assert apart(decoder.prefill([Span(TOKENS[:5])], cache)[0], expected[4]) < 1e-4
    assert apart(decoder.decode([TOKENS[5]], [5], cache)[0], expected[5]) < 1e-4


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, 11)))
def test_a_prompt_may_come_in_any_pieces(tiny: Decoder, cuts: set[int]) -> None:
    whole = tiny.prefill([Span(TOKENS)], None)[0]
    cache = KVCache(tiny.config, 3, 16, torch.float32)
    edges = [0, *sorted(cuts), len(TOKENS)]
    for start, end in pairwise(edges):
        logits = tiny.prefill([Span(TOKENS[start:end], slot=1, start=start)], cache)
    assert apart(logits[0], whole) < 1e-4


@pytest.mark.parametrize("cached", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("slots", [[0, 1, 2], [2, 0, 1], [1, 2, 0]], ids=str)
def test_same_tokens_alone_and_in_any_batch(tiny: Decoder, truth: Any, cached: bool, slots: list[int]) -> None:
    """P25: prompts of 2, 5 and 9 tokens, alone or together, cache on or off, in any slot."""
    prompts = [TOKENS[:2], TOKENS[2:7], TOKENS[3:12]]
    expected = []
    for prompt in prompts:
        made = truth.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)
        expected.append(made[0, len(prompt) :].tolist())
    assert [greedy(tiny, [prompt], [0], cached, 16)[0] for prompt in prompts] == expected
    assert greedy(tiny, prompts, slots, cached, 16) == expected


def test_what_a_slot_held_before_does_not_matter(tiny: Decoder) -> None:
    cache = KVCache(tiny.config, 2, 32, torch.float32)
    cache.kv.uniform_(-50, 50)
    tiny.prefill([Span(TOKENS[:3], slot=0), Span(TOKENS[3:11], slot=1)], cache)
    logits = tiny.decode([TOKENS[3], TOKENS[11]], [3, 8], cache)
    assert apart(logits[0], tiny.prefill([Span(TOKENS[:4])], None)[0]) < 1e-4


def test_a_moved_sequence_goes_on_unchanged(tiny: Decoder) -> None:
    cache = KVCache(tiny.config, 3, 32, torch.float32)
    tiny.prefill([Span(TOKENS[:6], slot=2)], cache)
    cache.move(2, 0, 6)
    assert apart(tiny.decode([TOKENS[6]], [6], cache)[0], tiny.prefill([Span(TOKENS[:7])], None)[0]) < 1e-4


def test_cache_bytes_are_those_on_paper() -> None:
    # SmolLM2-135M in bf16: 2 (keys and values) × 30 layers × 3 KV heads × 64 × 2 bytes = 23,040 bytes a token.
    config = LlamaConfig(30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, 1e-5, True, frozenset())
    assert config.kv_elements_per_token == 11_520
    assert KVCache(config, 2, 10, torch.bfloat16).bytes == 2 * 10 * 23_040


def test_weight_bytes_are_the_file_size(tiny_folder: Path, tiny: Decoder) -> None:
    stored = load_file(tiny_folder / "model.safetensors")
    assert tiny.weight_bytes == sum(tensor.numel() * 4 for tensor in stored.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "Qwen2ForCausalLM"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": None}, "rope_type 'llama3'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_it_cannot_serve_is_refused_by_name(
    tiny_folder: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    config = json.loads((tiny_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=words) as caught:
        LlamaConfig.read(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_tensor_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    stored = load_file(tiny_folder / "model.safetensors")
    del stored["model.layers.1.mlp.up_proj.weight"]
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((tiny_folder / "config.json").read_text())
    with pytest.raises(ValueError, match=r"no tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        Decoder.load(tmp_path, torch.float32)


# --- SmolLM2, the real weights ------------------------------------------------------------------------------------

PROMPTS, STEPS = 20, 64


def prompts(folder: Path) -> list[list[int]]:
    """Starts of real English texts, 5 to 43 tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = [text for _, text in sorted(topics.items())][:PROMPTS]
    return [tokenizer.encode(text).ids[: 5 + 2 * i] for i, text in enumerate(texts)]


def written(decoder: Any, starts: list[list[int]]) -> tuple[list[list[int]], torch.Tensor]:
    """Greedy: (tokens of each with its answer, logits [prompts, STEPS, vocabulary] that chose them)."""
    rows = [list(start) for start in starts]
    cache = decoder.cache(len(rows), 128)
    steps = [decoder.prefill([Span(row, slot) for slot, row in enumerate(rows)], cache)]
    for step in range(STEPS):
        for row, token in zip(rows, steps[-1].argmax(-1).tolist(), strict=True):
            row.append(token)
        if step + 1 < STEPS:
            steps.append(decoder.decode([row[-1] for row in rows], [len(row) - 1 for row in rows], cache))
    return rows, torch.stack(steps, dim=1)


@pytest.mark.triton
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)], ids=["fp32", "bf16"])
def test_smollm2_writes_what_transformers_would(dtype: torch.dtype, near: float) -> None:
    """Each token was chosen greedily after all before it, so when transformers, reading the finished text in one go,
    would choose the same token at every place, its own greedy answer is the same text. bf16 logits are compared by
    relative root mean square, because with 8 bits of mantissa a logit of 20 is exact to 0.06 only; the first token that
    differs is reported by prompt."""
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)  # two wait for each other whenever anything else runs on the machine
    folder = llama_weights.prepare()
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    starts = prompts(folder)
    rows, logits = written(load(folder, dtype), starts)
    differing, truth = {}, []
    for i, (start, row) in enumerate(zip(starts, rows, strict=True)):
        truth.append(reference(model, row[:-1])[len(start) - 1 :])
        if wrong := (truth[i].argmax(-1) != torch.tensor(row[len(start) :])).nonzero().flatten().tolist():
            differing[i] = wrong[0]
    distance = (apart if dtype == torch.float32 else relative_rms)(logits, torch.stack(truth))
    print(f"{dtype}: logits apart by {distance:.2g}; first differing step by prompt: {differing or 'none'}")
    assert distance < near
    if dtype == torch.float32:
        assert differing == {}
