"""Products by torchao and the operator under it, of the lab's own levels, against numpy's; on a CPU, and on a GPU where
there is one."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lab.serve.models import torchao_linear
from lab.serve.models.decoder import Decoder, Span
from lab.serve.models.llama_config import LlamaConfig
from lab.serve.models.quantized_reader import QuantizedMatrix, WeightsFolder
from lab.serve.models.torchao_linear import Unsupported, made
from tests.serve.conftest import relative_rms
from tests.serve.rounded_weights import rounded_4, rounded_8, save_rounded

pytestmark = pytest.mark.llm

HALF, WHOLE = (torch.bfloat16, 1e-2), (torch.float32, 1e-5)
"""(activations, how far off at most)"""
PLACES = [
    pytest.param("cpu", WHOLE, id="cpu, fp32"),
    pytest.param("cpu", HALF, id="cpu, bf16"),
    pytest.param("cuda", HALF, id="gpu, bf16", marks=pytest.mark.gpu),
]
TOKENS = [(7 * i + i * i) % 256 for i in range(40)]


def need(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU that torch can use here")


def values(rows: int, columns: int) -> np.ndarray:
    """With a row of zeros and a column of outliers."""
    found = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    found[:, 3] *= 30
    found[5] = 0
    return found


def matrix_8(rows: int = 96, columns: int = 160) -> tuple[QuantizedMatrix, np.ndarray]:
    """And its weights in float64."""
    levels, scale = rounded_8(values(rows, columns))
    return QuantizedMatrix(torch.from_numpy(levels), torch.from_numpy(scale), None), levels * scale.astype(np.float64)


def matrix_4(rows: int = 96, columns: int = 160, group: int = 32) -> tuple[QuantizedMatrix, np.ndarray]:
    levels, scale, zero = rounded_4(values(rows, columns), group)
    exact = (levels.reshape(rows, -1, group).astype(np.float64) - zero[..., None]) * scale[..., None]
    stored = torch.from_numpy(levels[:, ::2] | levels[:, 1::2] << 4)
    return QuantizedMatrix(stored, torch.from_numpy(scale), torch.from_numpy(zero)), exact.reshape(rows, columns)


def on(device: str, matrix: QuantizedMatrix) -> QuantizedMatrix:
    zero = None if matrix.zero is None else matrix.zero.to(device)
    return QuantizedMatrix(matrix.stored.to(device), matrix.scale.to(device), zero)


def inputs(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(9).standard_normal((rows, columns))).to(dtype)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(("device", "kind"), PLACES)
@pytest.mark.parametrize("group", [32, 64])
def test_4_bits_are_multiplied_as_they_are(device: str, kind: tuple[torch.dtype, float], group: int, rows: int) -> None:
    need(device)
    dtype, most = kind
    matrix, weights = matrix_4(columns=192, group=group)
    found, x = made(on(device, matrix), dtype, weights_only=False), inputs(rows, 192, dtype)
    y = found(x.to(device)).double().cpu()
    assert y.shape == (rows, 96) and not y[:, 5].any()
    assert relative_rms(y, x.double() @ torch.from_numpy(weights).T) < most
    groups = 192 // group if device == "cpu" else 1024 // group
    size = dtype.itemsize * 2 * groups * 96
    assert found.scale_bytes == size and found.bytes == size + 96 * (192 if device == "cpu" else 1024) // 2


@pytest.mark.parametrize(("device", "kind"), PLACES)
def test_8_bits_of_weights_alone(device: str, kind: tuple[torch.dtype, float]) -> None:
    need(device)
    dtype, most = kind
    matrix, weights = matrix_8()
    found, x = made(on(device, matrix), dtype, weights_only=True), inputs(3, 160, dtype)
    assert relative_rms(found(x.to(device)).cpu(), x.double() @ torch.from_numpy(weights).T) < most
    assert (found.bytes, found.scale_bytes) == (96 * 160 + 4 * 96, 4 * 96)
    some = torch.tensor([4, 5, 4])
    assert relative_rms(found.rows(some.to(device)).cpu(), torch.from_numpy(weights)[some]) < most


@pytest.mark.parametrize("rows", [1, 16, 17, 40])
@pytest.mark.parametrize(("device", "kind"), PLACES)
def test_8_bits_of_both(device: str, kind: tuple[torch.dtype, float], rows: int) -> None:
    """Activations by 127 levels to either side of 0, the outermost for a row's largest; then whole numbers."""
    need(device)
    dtype, most = kind
    matrix, weights = matrix_8()
    found, x = made(on(device, matrix), dtype, weights_only=False), inputs(rows, 160, dtype)
    plain = x.double().numpy()
    largest = np.abs(plain).max(axis=1, keepdims=True)
    rounded = np.rint(plain * 127 / largest) * largest / 127
    y = found(x.to(device)).cpu()
    assert relative_rms(y, torch.from_numpy(rounded @ weights.T)) < max(most, 1e-3)  # a tie may fall the other way
    assert torch.equal(found(x[-1:].to(device)).cpu()[0], y[-1])  # whoever else is there


def test_torchao_itself_rounds_alike() -> None:
    """Its own product of such a tensor, which the lab does not call because of what it does on a GPU."""
    from torchao.quantization import Int8Tensor, PerRow
    from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs

    matrix, _ = matrix_8()
    asked = QuantizeTensorToInt8Kwargs(granularity=PerRow())
    theirs = Int8Tensor(matrix.stored, matrix.scale, [1, 160], torch.float32, act_quant_kwargs=asked)
    x = inputs(20, 160, torch.float32)
    ours = made(matrix, torch.float32, weights_only=False)(x)
    assert relative_rms(ours, torch.nn.functional.linear(x, theirs)) < 0.01


def exact_4(rows: int, columns: int, group: int) -> tuple[QuantizedMatrix, torch.Tensor]:
    """A matrix that bfloat16 holds exactly, and its weights: scales are powers of 2, each group has both ends."""
    random = np.random.default_rng(3)
    levels = random.integers(0, 16, (rows, columns // group, group)).astype(np.uint8)
    levels[..., 0], levels[..., -1] = 0, 15
    scale = np.exp2(random.integers(-6, 2, levels.shape[:2])).astype(np.float32)
    zero = random.integers(0, 16, levels.shape[:2]).astype(np.uint8)
    weight = (levels.astype(np.float32) - zero[..., None]) * scale[..., None]
    flat = levels.reshape(rows, columns)
    stored = torch.from_numpy(flat[:, ::2] | flat[:, 1::2] << 4)
    matrix = QuantizedMatrix(stored, torch.from_numpy(scale), torch.from_numpy(zero))
    return matrix, torch.from_numpy(weight.reshape(rows, columns))


@pytest.mark.parametrize("group", [32, 64, 128, 256])
def test_a_gpu_is_given_what_torchao_itself_would_give_it(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchao's own way to its tensor, from the weights, up to the operator that a CPU lacks: the same nibbles in the
    same places, the same scales and zeros."""
    from torchao.quantization import Int4TilePackedTo4dTensor

    matrix, weight = exact_4(16, 2048, group)
    given: list[tuple[torch.Tensor, int]] = []

    def pack(levels: torch.Tensor, tiles: int) -> torch.Tensor:
        given.append((levels.clone(), tiles))
        return torch.zeros((len(levels) // 8, 2 * levels.shape[1] // (16 * tiles), 32, tiles // 2), dtype=torch.int32)

    monkeypatch.setattr(torch.ops.aten, "_convert_weight_to_int4pack", pack)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torchao_linear, "_is_on_gpu", lambda tensor: True)
    theirs = Int4TilePackedTo4dTensor.from_hp(weight.to(torch.bfloat16), [1, group])
    assert matrix.zero is not None
    ours = torchao_linear._int4(matrix, matrix.zero, torch.bfloat16)
    assert torch.equal(given[1][0], given[0][0]) and given[1][1] == given[0][1] and given[1][0].is_contiguous()
    assert isinstance(ours.weight, Int4TilePackedTo4dTensor)
    for name in ("scale_and_zero", "qdata"):
        mine, other = getattr(ours.weight, name), getattr(theirs, name)
        assert torch.equal(mine, other) and mine.dtype == other.dtype and mine.is_contiguous()
    assert (ours.weight.block_size, ours.weight.shape) == (theirs.block_size, theirs.shape)


@pytest.mark.parametrize(
    ("rows", "columns", "group"), [(960, 576, 32), (576, 1536, 64), (100, 1280, 256), (8, 1024, 128)]
)
def test_4_bits_of_any_size_have_the_shapes_that_a_gpu_wants(
    rows: int, columns: int, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the operators' own rules of shapes and types, without numbers; activations come as a norm gives them, a part
    of something wider."""
    monkeypatch.setattr(torchao_linear, "_is_on_gpu", lambda tensor: True)
    groups = (rows, columns // group)
    with FakeTensorMode():
        zero = torch.empty(groups, dtype=torch.uint8)
        matrix = QuantizedMatrix(torch.empty(rows, columns // 2, dtype=torch.uint8), torch.empty(groups), zero)
        found = torchao_linear._int4(matrix, zero, torch.bfloat16)
        shapes = [found(torch.empty(n, 2 * columns, dtype=HALF[0])[:, :columns]) for n in (1, 17, 512)]
        filled, below = -(-columns // 1024) * 1024, -(-rows // 8) * 8
        assert found.weight.scale_and_zero.shape == (filled // group, below, 2)  # type: ignore[attr-defined]
    assert found.bytes == below * filled // 2 + found.scale_bytes and found.scale_bytes == 4 * below * filled // group
    assert [(y.shape, y.dtype) for y in shapes] == [((n, rows), torch.bfloat16) for n in (1, 17, 512)]


@pytest.mark.parametrize("rows", [1, 8, 16, 17, 32, 33])
def test_a_product_of_bytes_keeps_the_rules_of_a_gpu(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch._int_mm on CUDA: more than 16 rows, multiples of 8, the weight given as the transpose of whole rows."""
    plain, asked = torch._int_mm, []

    def strict(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        asked.append(len(a))
        assert len(a) > 16 and a.shape[1] % 8 == 0 and b.shape[1] % 8 == 0
        assert a.is_contiguous() and b.t().is_contiguous() and a.dtype == b.dtype == torch.int8
        return plain(a, b)

    matrix, weights = matrix_8()
    monkeypatch.setattr(torch, "_int_mm", strict)
    for dtype in (torch.bfloat16, torch.float32):
        x = inputs(rows, 320, dtype)[:, :160]
        y = made(matrix, dtype, weights_only=False)(x)
        assert relative_rms(y, x.double() @ torch.from_numpy(weights).T) < 0.02 and y.dtype == dtype
    assert asked == 2 * [32, -(-rows // 32) * 32]  # tried first


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (matrix_4(group=16)[0], "torchao's groups are 32, 64, 128, 256, not 16"),
        (matrix_8(rows=97)[0], "torch._int_mm takes multiples of 8, not [97, 160]"),
        (matrix_8(columns=36)[0], "torch._int_mm takes multiples of 8, not [96, 36]"),
    ],
)
def test_what_there_is_no_product_for_is_said(matrix: QuantizedMatrix, reason: str) -> None:
    with pytest.raises(Unsupported) as error:
        made(matrix, torch.bfloat16, weights_only=False)
    assert str(error.value) == reason


def test_without_torchao_that_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(Unsupported, match="torchao is not to be imported"):
        made(matrix_8()[0], torch.bfloat16, weights_only=True)


def test_a_product_that_comes_out_wrong_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torchao_linear.in_levels
    monkeypatch.setattr(torchao_linear, "in_levels", lambda x: (whole(x)[0], whole(x)[1] * 1.25))
    with pytest.raises(Unsupported, match=r"torchao's product is 2\d\.\d % off the plain one"):
        made(matrix_8()[0], torch.float32, weights_only=False)


def decoder(folder: Path, *, device: str = "cpu", by_torchao: bool | None = None) -> Decoder:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return Decoder(LlamaConfig.read(folder), WeightsFolder(folder, device), dtype, device, by_torchao=by_torchao)


def all_ends(decoder: Decoder) -> torch.Tensor:
    """Logits after every token from the fifth on, by a prompt of five and single tokens."""
    cache = decoder.cache(1, len(TOKENS))
    found = [decoder.prefill([Span(TOKENS[:5])], cache)]
    found += [decoder.decode([token], [5 + i], cache) for i, token in enumerate(TOKENS[5:])]
    return torch.cat(found).float().cpu()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("precision", ["int8", "int8_weight", "int4"])
def test_a_whole_decoder_is_near_the_plain_one(tiny_folder: Path, tmp_path: Path, precision: str, device: str) -> None:
    need(device)
    folder = save_rounded(tiny_folder, tmp_path / "q", precision, group_size=32)
    by_torchao = decoder(folder, device=device, by_torchao=True)
    apart = relative_rms(all_ends(by_torchao), all_ends(decoder(folder, by_torchao=False)))
    assert apart < {"int8": 0.1, "int8_weight": 1e-4 if device == "cpu" else 0.1, "int4": 0.1}[precision]
    assert by_torchao.notes[0].startswith(f"{precision} on {device} by torchao: ")
    assert 0 < by_torchao.scale_bytes < by_torchao.weight_bytes


def test_what_falls_back_is_named(tiny_folder: Path, tmp_path: Path) -> None:
    """The embedding has 257 rows, and groups of 16 are none of torchao's."""
    folder = save_rounded(tiny_folder, tmp_path / "q", "int4", group_size=16)
    found = decoder(folder, by_torchao=True)
    by_torch = "by torch: weights become fp32 anew for every product, which saves memory and costs time, as"
    assert found.notes[1:] == (
        f"model.embed_tokens {by_torch} torch._int_mm takes multiples of 8, not [257, 64]",
        f"8 matrices from model.layers.0.self_attn.q_proj on {by_torch} torchao's groups are 32, 64, 128, 256, not 16",
    )
    assert torch.equal(all_ends(found), all_ends(decoder(folder, by_torchao=False)))


def test_a_cpu_does_not_ask_torchao(tiny_folder: Path, tmp_path: Path) -> None:
    folder = save_rounded(tiny_folder, tmp_path / "q", "int8")
    assert decoder(folder).notes == (
        "int8 on cpu by torch: weights become fp32 anew for every product, which saves memory and costs time",
    )
