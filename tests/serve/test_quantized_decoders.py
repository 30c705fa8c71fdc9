"""Quantized weights and a quantized cache in both decoders: near each other, and the same bits however a token is
computed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.serve.models import compiled_decoder
from lab.serve.models.compiled_decoder import CompiledDecoder
from lab.serve.models.decoder import Decoder, Span, decoder_of
from lab.serve.models.quantized_reader import WeightsFolder
from tests.serve.conftest import relative_rms, save_llama
from tests.serve.rounded_weights import save_rounded

pytestmark = pytest.mark.llm

TOKENS = [(7 * i + i * i) % 256 for i in range(100)]
LENGTHS = [1, 2, 31, 32, 33, 64, 99]  # around the blocks of 32 tokens that attention looks back over
PRECISIONS = ["int8", "int8_weight", "int4"]


@pytest.fixture(scope="module")
def folders(tiny_folder: Path, kernels: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("rounded")
    made = {p: save_rounded(tiny_folder, root / p, p, group_size=16) for p in PRECISIONS}
    some = save_rounded(tiny_folder, root / "some", "int4", 16, chosen=lambda name: "layers.1." in name)
    return {**made, "one block only": some, "bf16": tiny_folder}


def all_ends(decoder: Any, tokens: list[int]) -> torch.Tensor:
    """Logits after every token, by a prompt of 5 and single tokens."""
    cache = decoder.cache(1, len(tokens))
    found = [decoder.prefill([Span(tokens[:5])], cache)]
    found += [decoder.decode([token], [5 + i], cache) for i, token in enumerate(tokens[5:])]
    return torch.cat(found).float()


@pytest.mark.parametrize("kv_cache_precision", [None, "int8"])
@pytest.mark.parametrize("name", [*PRECISIONS, "one block only"])
def test_both_decoders_compute_the_same(folders: dict[str, Path], name: str, kv_cache_precision: str | None) -> None:
    """No further from exact arithmetic on the same quantized weights than torch in bf16 is."""
    exact = all_ends(Decoder.load(folders[name], torch.float32, kv_cache_precision=kv_cache_precision), TOKENS[:40])
    plain = all_ends(Decoder.load(folders[name], torch.bfloat16, kv_cache_precision=kv_cache_precision), TOKENS[:40])
    compiled = CompiledDecoder.load(folders[name], 2, kv_cache_precision)
    assert relative_rms(all_ends(compiled, TOKENS[:40]), exact) < 1.1 * relative_rms(plain, exact) < 0.15


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_torch_decoder_uses_the_weights_that_are_stored(
    folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    """In fp32 it is transformers on the dequantized weights, but for the rounded activations of int8 and int4."""
    from safetensors.torch import load_file, save_file
    from transformers import LlamaForCausalLM

    folder = WeightsFolder(folders[name])
    tensors = load_file(folders["bf16"] / "model.safetensors")
    whole = {key: folder.dequantized(key.removesuffix(".weight")) if t.dim() == 2 else t for key, t in tensors.items()}
    for path in folders["bf16"].glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_file(whole, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.inference_mode():
        theirs = LlamaForCausalLM.from_pretrained(tmp_path).eval()(torch.tensor([TOKENS[:40]])).logits[0, 4:]
    ours = all_ends(Decoder.load(folders[name], torch.float32), TOKENS[:40])
    apart = relative_rms(ours, theirs)
    assert apart < 1e-4 if name == "int8_weight" else 1e-3 < apart < 0.1


@pytest.mark.parametrize("kv_cache_precision", [None, "int8"])
@pytest.mark.parametrize("name", [*PRECISIONS, "bf16", "one block only"])
def test_a_token_has_the_same_logits_however_it_is_computed(
    folders: dict[str, Path], name: str, kv_cache_precision: str | None
) -> None:
    decoder = CompiledDecoder.load(folders[name], 2, kv_cache_precision)
    alone = CompiledDecoder.load(folders[name], 1, kv_cache_precision)
    ends = {}
    for length in LENGTHS:
        cache = alone.cache(1, 100)
        for i, token in enumerate(TOKENS[:length]):
            logits = alone.decode([token], [i], cache)
        ends[length] = logits[0], alone.decode([5], [length], cache)[0]
    together = decoder.cache(len(LENGTHS), 128)
    spans = [Span(TOKENS[:length], slot) for slot, length in enumerate(LENGTHS)]
    read = decoder.prefill(spans, together)
    written = decoder.decode([5] * len(LENGTHS), LENGTHS, together)
    without = decoder.prefill(spans, None)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(read[row], ends[length][0])
        assert torch.equal(without[row], ends[length][0])
        assert torch.equal(written[row], ends[length][1])


@pytest.mark.parametrize("kind", [CompiledDecoder, Decoder])
@pytest.mark.parametrize("length", LENGTHS)
def test_a_moved_sequence_of_an_int8_cache_goes_on_unchanged(folders: dict[str, Path], kind: Any, length: int) -> None:
    given = 1 if kind is CompiledDecoder else torch.float32
    decoder = kind.load(folders["bf16"], given, kv_cache_precision="int8")
    cache = decoder.cache(3, 100)
    decoder.prefill([Span(TOKENS[:length], slot=2)], cache)
    here = decoder.decode([0, 0, TOKENS[length]], [0, 0, length], cache)[2]
    cache.move(2, 0, length)
    assert torch.allclose(decoder.decode([TOKENS[length]], [length], cache)[0], here, atol=1e-5)


def test_an_int8_cache_is_half_as_large_and_near(folders: dict[str, Path]) -> None:
    """A head of 16 dimensions takes 16 bytes and a scale of 4 for 32 bytes in bf16; blocks are of 32 dimensions."""
    whole, half = (CompiledDecoder.load(folders["bf16"], 1, precision) for precision in ("bf16", "int8"))
    assert half.cache(3, 64).bytes == whole.cache(3, 64).bytes * (32 + 4) // 64
    plain = Decoder.load(folders["bf16"], torch.float32, kv_cache_precision="int8")
    assert plain.cache(3, 64).bytes == 3 * 64 * 2 * 2 * 2 * (16 + 4)
    assert Decoder.load(folders["bf16"], torch.float32, kv_cache_precision="bf16").cache(3, 64).bytes == 3 * 64 * 8 * 32
    apart = relative_rms(all_ends(half, TOKENS), all_ends(whole, TOKENS))
    assert 1e-4 < apart < 0.05


@pytest.mark.parametrize(("precision", "layer_bytes"), [("int8", 1), ("int8_weight", 1), ("int4", 0.5 + 4 / 16)])
def test_weight_bytes_are_those_on_paper(tmp_path: Path, precision: str, layer_bytes: float) -> None:
    """As packed: an int4 group of 16 shares 4 bytes, whose zero point is in them; in 8 bits each row has 4."""
    save_llama(tmp_path, tie_word_embeddings=False)
    folder = save_rounded(tmp_path, tmp_path / "q", precision, 16)
    head, rows, weights = 288 * (64 + 4), 128 + 64 + 192 + 64, (128 + 64 + 192) * 64 + 64 * 96
    layer = weights * layer_bytes + (0 if precision == "int4" else 4 * rows)
    decoder = CompiledDecoder.load(folder)
    assert decoder.weight_bytes == head + 2 * layer + 4 * 5 * 64
    scales = 4 * weights // 16 if precision == "int4" else 4 * rows
    assert decoder.scale_bytes == 4 * 288 + 2 * scales  # of the head; of the embedding a step reads a row a token
    zeros = weights // 16 if precision == "int4" else 0  # apart, where torch reads them; and nothing is filled up there
    assert Decoder.load(folder, torch.float32).scale_bytes == 4 * 257 + 2 * (scales + zeros)


def test_heads_of_a_width_that_fills_no_step(tmp_path: Path) -> None:
    """42 dimensions, 68 hidden and 45 of the MLP are no multiples of 4, 8 or 16."""
    sizes = {"head_dim": 42, "hidden_size": 68, "intermediate_size": 45}
    save_llama(tmp_path, **sizes, num_attention_heads=2, num_key_value_heads=1)
    folder = save_rounded(tmp_path, tmp_path / "q", "int8")
    exact = all_ends(Decoder.load(folder, torch.float32, kv_cache_precision="int8"), TOKENS[:40])
    assert relative_rms(all_ends(CompiledDecoder.load(folder, 1, "int8"), TOKENS[:40]), exact) < 0.1


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_in_a_weight_is_refused_by_name(folders: dict[str, Path], tmp_path: Path, precision: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "q"
    folder.mkdir()
    for path in folders[precision].glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folders[precision] / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.scale"
    tensors[name] = tensors[name].clone().fill_(float("nan"))
    save_file(tensors, folder / "model.safetensors")
    for load in (CompiledDecoder.load, lambda folder: Decoder.load(folder, torch.bfloat16)):
        with pytest.raises(ValueError, match=name):
            load(folder)


def test_a_format_without_a_fast_kernel_says_so(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Decoder.load(folders["bf16"], torch.bfloat16).notes == ()
    assert "int4 on cpu by torch: weights become bf16 anew" in Decoder.load(folders["int4"], torch.bfloat16).notes[0]
    lacking = {format: (False, f"AVX{format}") for format in range(4)}
    monkeypatch.setattr(compiled_decoder, "NEEDED", lacking)
    assert [note.split(",")[0] for note in CompiledDecoder.load(folders["one block only"]).notes] == [
        "bf16 without AVX0",
        "int4 without AVX3",
    ]
    assert len(CompiledDecoder.load(folders["int8"], 1, "int8").notes) == 2
    monkeypatch.setattr(compiled_decoder, "NEEDED", dict.fromkeys(range(4), (True, "")))
    assert CompiledDecoder.load(folders["int4"]).notes == ()


def test_without_a_compiler_torch_serves_and_says_so(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, compiled_decoder.__name__, None)
    decoder = decoder_of(folders["int8"], "int8")
    assert isinstance(decoder, Decoder)
    assert "without the compiled decoder" in decoder.notes[1]


def test_a_folder_of_another_precision_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="its weights are int8; allowed: int4"):
        decoder_of(folders["int8"], "int4")
    with pytest.raises(ValueError, match="its weights are int8; allowed: fp32"):
        decoder_of(folders["int8"], "fp32")
    assert decoder_of(folders["bf16"], "fp32").precision == "fp32"
