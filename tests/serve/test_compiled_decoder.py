"""The compiled decoder against transformers and against itself: the same bits however a token is computed."""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.serve.models.compiled_decoder import CompiledDecoder, PackedCache
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.models.packed_weights import read
from lab.serve.models.quantized_reader import WeightsFolder
from tests.serve.conftest import relative_rms, save_llama

pytestmark = pytest.mark.llm

TOKENS = [(7 * i + i * i) % 256 for i in range(100)]
LENGTHS = [1, 2, 31, 32, 33, 64, 99]  # around the blocks of 32 tokens that attention looks back over


@torch.inference_mode()
def reference(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0].float()


def test_it_is_as_exact_as_transformers_bf16(tiny_folder: Path, truth: Any, compiled: CompiledDecoder) -> None:
    from transformers import LlamaForCausalLM

    exact = reference(truth, TOKENS)
    theirs = reference(LlamaForCausalLM.from_pretrained(tiny_folder, dtype=torch.bfloat16).eval(), TOKENS)
    ours = compiled.prefill([Span(TOKENS[: i + 1]) for i in range(len(TOKENS))], None)
    assert relative_rms(ours, exact) < relative_rms(theirs, exact)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"num_key_value_heads": 4},
        {"num_attention_heads": 16, "num_key_value_heads": 1},  # more query heads than a tile takes
        {"head_dim": 32, "rope_theta": 1e6, "rms_norm_eps": 1e-3},
        {"head_dim": 42},
        {"hidden_size": 68, "intermediate_size": 45, "vocab_size": 301},
        {"num_hidden_layers": 5},
    ],
    ids=str,
)
def test_every_shape_of_llama(tmp_path: Path, changes: dict[str, Any]) -> None:
    """On weights so small that bf16 moves the logits by per cents, this one is no further off than torch in bf16."""
    exact = reference(save_llama(tmp_path, **changes), TOKENS)
    plain, decoder = Decoder.load(tmp_path, torch.bfloat16), CompiledDecoder.load(tmp_path)
    cache, other = decoder.cache(1, 100), plain.cache(1, 100)
    found = [decoder.prefill([Span(TOKENS[:5])], cache)]
    theirs = [plain.prefill([Span(TOKENS[:5])], other)]
    for position in range(5, 40):
        found.append(decoder.decode([TOKENS[position]], [position], cache))
        theirs.append(plain.decode([TOKENS[position]], [position], other))
    assert found[0].shape == theirs[0].shape
    assert relative_rms(torch.cat(found), exact[4:40]) < 1.1 * relative_rms(torch.cat(theirs), exact[4:40]) < 0.1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_does_not_matter(tiny_folder: Path, compiled: CompiledDecoder, threads: int) -> None:
    decoder = CompiledDecoder.load(tiny_folder, threads)
    spans = [Span(TOKENS[:n]) for n in LENGTHS]
    assert torch.equal(decoder.prefill(spans, None), compiled.prefill(spans, None))


def test_a_step_does_not_depend_on_the_company(compiled: CompiledDecoder) -> None:
    together = compiled.cache(len(LENGTHS), 128)
    for slot, length in enumerate(LENGTHS):
        compiled.prefill([Span(TOKENS[:length], slot)], together)
    logits = compiled.decode([5 + slot for slot in range(len(LENGTHS))], LENGTHS, together)
    for slot, length in enumerate(LENGTHS):
        alone = compiled.cache(1, 100)
        compiled.prefill([Span(TOKENS[:length])], alone)
        assert torch.equal(compiled.decode([5 + slot], [length], alone)[0], logits[slot])


def test_with_a_cache_or_without_it_is_the_same(compiled: CompiledDecoder) -> None:
    cache = compiled.cache(1, len(TOKENS))
    whole = compiled.prefill([Span(TOKENS[: i + 1]) for i in range(len(TOKENS))], None)
    for position, token in enumerate(TOKENS):
        assert torch.equal(compiled.decode([token], [position], cache)[0], whole[position])


@settings(max_examples=30, deadline=None)
@given(cuts=st.sets(st.integers(1, 98)), slot=st.integers(0, 2))
def test_a_prompt_may_come_in_any_pieces(compiled: CompiledDecoder, cuts: set[int], slot: int) -> None:
    cache, start = compiled.cache(3, 100), 0
    for end in [*sorted(cuts), 99]:
        logits = compiled.prefill([Span(TOKENS[start:end], slot, start)], cache)
        start = end
    assert torch.equal(logits, compiled.prefill([Span(TOKENS[:99])], None))


def test_prompts_read_together_are_read_as_alone(compiled: CompiledDecoder) -> None:
    together = compiled.prefill([Span(TOKENS[:n], slot) for slot, n in enumerate(LENGTHS)], compiled.cache(7, 99))
    for row, n in enumerate(LENGTHS):
        assert torch.equal(together[row], compiled.prefill([Span(TOKENS[:n])], None)[0])


def test_what_a_slot_held_before_does_not_matter(compiled: CompiledDecoder) -> None:
    cache = compiled.cache(2, 64)
    compiled.prefill([Span(TOKENS[30:90], slot) for slot in range(2)], cache)
    for slot in range(2):
        compiled.prefill([Span(TOKENS[: 3 + slot], slot)], cache)
    logits = compiled.decode([TOKENS[3], TOKENS[4]], [3, 4], cache)
    assert torch.equal(logits, compiled.prefill([Span(TOKENS[:4]), Span(TOKENS[:5])], None))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_moved_sequence_goes_on_unchanged(compiled: CompiledDecoder, length: int) -> None:
    cache = compiled.cache(3, 100)
    compiled.prefill([Span(TOKENS[:length], slot=2)], cache)
    cache.move(2, 0, length)
    found = compiled.decode([TOKENS[length]], [length], cache)
    assert torch.equal(found, compiled.prefill([Span(TOKENS[: length + 1])], None))


def test_moving_touches_no_other_slot(compiled: CompiledDecoder) -> None:
    cache = compiled.cache(3, 100)
    compiled.prefill([Span(TOKENS[:40], slot) for slot in range(3)], cache)
    cache.move(2, 0, 40)
    cache.view.words.reshape(2, 3, -1)[:, [0, 2]] = 0x7FC07FC0  # NaN
    found = compiled.prefill([Span(TOKENS[40:41], 1, 40)], cache)
    assert torch.equal(found, compiled.prefill([Span(TOKENS[:41])], None))


def test_cache_bytes_are_those_on_paper() -> None:
    # SmolLM2-135M in bf16: 2 (keys and values) × 30 layers × 3 KV heads × 64 × 2 bytes = 23,040 bytes a token; slots
    # are whole blocks of 32 tokens.
    config = LlamaConfig(30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5, 1e-5, True, frozenset())
    assert PackedCache(config, 2, 64, config.layers).bytes == 2 * 64 * 23_040
    assert PackedCache(config, 2, 65, config.layers).bytes == 2 * 96 * 23_040


def test_only_held_tokens_take_memory(compiled: CompiledDecoder) -> None:
    """One token a slot touches a page of each head's keys and one of its values."""
    config = compiled.config
    cache = compiled.cache(64, 4096)
    pages = 64 * config.layers * 2 * config.kv_heads
    compiled.prefill([Span([5], slot) for slot in range(64)], cache)
    assert cache.bytes > 5 * pages * mmap.PAGESIZE
    assert pages <= pages_in_memory(cache.view.words) <= 2 * pages


def pages_in_memory(array: np.ndarray) -> int:
    """By mincore(2): of this array alone, whatever else lives in this process."""
    first = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    length = array.ctypes.data + array.nbytes - first
    seen = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    assert mincore(ctypes.c_void_p(first), ctypes.c_size_t(length), seen) == 0, os.strerror(ctypes.get_errno())
    return sum(state & 1 for state in seen)


def test_a_decoder_that_is_gone_leaves_no_thread(tiny_folder: Path) -> None:
    decoder = CompiledDecoder.load(tiny_folder, threads=3)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("decoder-")][-2:]
    del decoder
    gc.collect()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_weight_bytes_are_those_on_paper(tmp_path: Path) -> None:
    save_llama(tmp_path, tie_word_embeddings=False)
    # 257 rows of the head are 9 blocks of 32. Per layer: qkv 64 + 64, out 64, gate and up 192, down 64 (of 96).
    head, layer = 288 * 64, (128 + 64 + 192) * 64 + 64 * 96
    assert CompiledDecoder.load(tmp_path).weight_bytes == 2 * (head + 2 * layer) + 4 * 5 * 64


def test_no_register_of_weights_lies_in_two_lines_of_a_cache(tiny_folder: Path) -> None:
    folder, config = WeightsFolder(tiny_folder), LlamaConfig.read(tiny_folder)
    found = [read(folder, config).arena for _ in range(8)]  # memory that is free begins anywhere
    assert {arena.ctypes.data % 64 for arena in found} == {0}


def test_a_missing_tensor_and_an_odd_size_are_named(tmp_path: Path) -> None:
    save_llama(tmp_path, head_dim=8)
    description = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**description, "head_dim": 7}))
    with pytest.raises(ValueError, match="hidden_size 64, head_dim 7; allowed: even"):
        CompiledDecoder.load(tmp_path)
