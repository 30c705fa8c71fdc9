"""The decoder that serves on a GPU, whole: beside the one in float32 on this CPU, its memory by paper and by CUDA's own
count, and that a step's products wait for nothing. What needs no GPU to be true is tried on a CPU as well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lab.measure.ledger import predict
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.models.quantized_reader import WeightsFolder
from lab.spec import ModelSpec
from tests.serve.conftest import relative_rms, save_llama
from tests.serve.rounded_weights import save_rounded

pytestmark = pytest.mark.llm

NONE = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use here")
CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, NONE])
SHAPE = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "initializer_range": 0.06,
}
TOKENS = [(11 * i + i * i) % 1000 for i in range(48)]


@pytest.fixture(scope="module")
def wide_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 256 and 512: neither fills one of 1024."""
    folder = tmp_path_factory.mktemp("wide")
    save_llama(folder, **SHAPE)
    return folder


def decoder(folder: Path, device: str, dtype: torch.dtype, kept: str | None = None, *, torchao: bool = True) -> Decoder:
    return Decoder(LlamaConfig.read(folder), WeightsFolder(folder, device), dtype, device, kept, by_torchao=torchao)


def logits(found: Decoder) -> torch.Tensor:
    """After every token from the 20th on: two sequences in one batch, a prompt of 20 in pieces of 7, then by steps."""
    cache, seen = found.cache(2, 64), []
    for start in range(0, 20, 7):
        piece = TOKENS[start : min(start + 7, 20)]
        last = found.prefill([Span(piece, 0, start), Span(piece, 1, start)], cache)
    seen.append(last)
    for at, token in enumerate(TOKENS[20:], start=20):
        seen.append(found.decode([token, token], [at, at], cache))
    return torch.stack(seen).float().cpu()


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("dtype", "kept", "most"),
    [(torch.bfloat16, None, 0.05), (torch.float16, None, 0.01), (torch.bfloat16, "int8", 0.05)],
    ids=["bf16", "fp16", "bf16, cache in int8"],
)
def test_unquantized_it_is_near_float32(
    wide_folder: Path, device: str, dtype: torch.dtype, kept: str | None, most: float
) -> None:
    truth = logits(decoder(wide_folder, "cpu", torch.float32))
    assert relative_rms(logits(decoder(wide_folder, device, dtype, kept)), truth) < most


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("precision", "most"), [("int8", 0.08), ("int8_weight", 0.05), ("int4", 0.08)])
def test_quantized_it_is_near_the_same_levels_in_float32(
    wide_folder: Path, tmp_path: Path, device: str, precision: str, most: float
) -> None:
    folder = save_rounded(wide_folder, tmp_path / "q", precision, group_size=64)
    truth = logits(decoder(folder, "cpu", torch.float32, torchao=False))
    found = decoder(folder, device, torch.bfloat16)
    assert relative_rms(logits(found), truth) < most
    assert len(found.notes) == 1 and " by torchao: " in found.notes[0]  # no matrix fell back


@pytest.mark.gpu
@NONE
@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8", "int8_weight", "int4"])
def test_memory_on_a_gpu_is_the_ledger_s_and_cuda_s_own(wide_folder: Path, tmp_path: Path, precision: str) -> None:
    """What CUDA's allocator counts more after loading: weights and scales by the ledger, the tables of rotations, and
    each norm once more (layers.RMSNorm)."""
    plain = precision in ("bf16", "fp16")
    folder = wide_folder if plain else save_rounded(wide_folder, tmp_path / "q", precision, group_size=64)
    config = json.loads((folder / "config.json").read_text())
    predicted = predict(config, ModelSpec(name="llm", precision=precision, device="gpu", group_size=64))
    decoder(folder, "cuda", torch.bfloat16)  # CUDA's own libraries take their room with the first products
    before = torch.cuda.memory_allocated()
    found = decoder(folder, "cuda", torch.float16 if precision == "fp16" else torch.bfloat16)
    taken = torch.cuda.memory_allocated() - before
    size = predicted["weights"].size_bytes + predicted["scales"].size_bytes
    assert found.weight_bytes == pytest.approx(size, rel=0.01)
    assert taken == pytest.approx(size + 2 * 128 * 64 * 2, rel=0.05)
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 64 * 2**20  # nothing of the loading is kept


@pytest.mark.gpu
@NONE
@pytest.mark.parametrize("precision", ["int8", "int8_weight", "int4"])
def test_products_wait_for_nothing(wide_folder: Path, tmp_path: Path, precision: str) -> None:
    folder = save_rounded(wide_folder, tmp_path / "q", precision, group_size=64)
    layer = decoder(folder, "cuda", torch.bfloat16).layers[0]
    x, wide = (torch.randn(8, n, device="cuda", dtype=torch.bfloat16) for n in (256, 512))
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            made = [layer.qkv(x), layer.out(x), layer.gate_up(x), layer.down(wide)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(y.isfinite().all() for y in made)
