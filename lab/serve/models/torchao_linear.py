"""Quantized matrices on a GPU, by torchao and the operator under it. The lab's own levels go in: none is rounded anew.

    int4           torchao's Int4TilePackedTo4dTensor: its kernel (tinygemm) makes bfloat16 of 4 bits in registers, and
                   weight = (level - 8) × scale + zero with both in bfloat16, so a group's zero is (8 - zero point) ×
                   scale. Groups of 32, 64, 128 or 256; rows are filled up to a multiple of 1024 columns
    int8_weight    torchao's Int8Tensor: levels become bfloat16 anew for every product, scales come last, in bfloat16
    int8           activations rounded with one scale a row, and torch._int_mm, in which torchao's own product ends.
                   That one is not called: outside of torch.compile, torchao 0.18 waits for the GPU to look at its
                   input at every product (https://github.com/pytorch/ao/issues/4872) and copies the weight

On a CPU the same code runs, with torchao's tensor for CPUs in int4: slower than compiled_decoder.py, and how it is
tested. A matrix is multiplied once when it is made, beside the plain arithmetic: where that does not run on a device or
comes out far off, it is Unsupported. torchao is imported when a matrix asks for it, which takes a second or two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from .int8 import in_levels
from .quantized_reader import QuantizedMatrix

GROUPS = (32, 64, 128, 256)
COLUMNS, ROWS = 1024, 8
"""Of which the packed int4 matrix has multiples."""
INNER_TILES = 8
"""Of 16 columns that lie together in it: torchao's own choice."""

TOGETHER = 32
"""Rows of activations of which torch._int_mm gets multiples: it wants more than 16."""
EIGHTS = 8
"""Rows and columns of which its weight must have multiples."""

TOLD = {
    "int8": "activations are rounded with one scale a row, where a CPU has one for 64 columns",
    "int8_weight": "weights become bf16 anew for every product, which saves memory and costs time, and scales are "
    "rounded to bf16",
    "int4": "activations stay bf16, which a CPU rounds to 8 bits, scales and zero points are rounded to bf16, and rows "
    f"are filled up to a multiple of {COLUMNS} columns; embedding and head are as in int8",
}
"""What is to be known of a precision here, beside a CPU's."""

MOST_APART = 0.03
"""Of a product from the plain one, by root mean square. Activations in 8 bits make that 0.005, bfloat16 0.003."""


class Unsupported(Exception):
    """This matrix has no such product on this device; the reason in words."""


@dataclass(frozen=True)
class TorchaoLinear:
    """A torchao tensor [out, in] applied to rows: x [n, in] → [n, out]."""

    weight: Tensor
    bytes: int
    scale_bytes: int
    dtype: torch.dtype
    matrix: QuantizedMatrix | None = None  # in 8 bits, of which `weight` has the very tensors

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight)

    def rows(self, numbers: Tensor) -> Tensor:
        """ValueError in 4 bits, as in compiled_decoder.py."""
        if self.matrix is None:
            raise ValueError("an embedding in 4 bits; allowed: 8")
        return self.matrix.rows(numbers).dequantized().to(self.dtype)


class IntegerLinear:
    """8 bits on both sides, sums in int32: x [n, in] → [n, out]. Sums are exact, so what comes out for a row does not
    depend on the others."""

    def __init__(self, matrix: QuantizedMatrix, dtype: torch.dtype) -> None:
        if any(size % EIGHTS for size in matrix.stored.shape):
            raise Unsupported(f"torch._int_mm takes multiples of {EIGHTS}, not {list(matrix.stored.shape)}")
        self.bytes, self.scale_bytes = matrix.bytes, 4 * matrix.scale.numel()
        self._matrix, self._dtype, self._scale = matrix, dtype, matrix.scale.flatten()

    def __call__(self, x: Tensor) -> Tensor:
        levels, scale = in_levels(x)
        whole = pad(levels, (0, 0, 0, -len(x) % TOGETHER))
        sums = torch._int_mm(whole, self._matrix.stored.t())[: len(x)]
        return (sums * scale * self._scale).to(x.dtype)

    def rows(self, numbers: Tensor) -> Tensor:
        return self._matrix.rows(numbers).dequantized().to(self._dtype)


def made(matrix: QuantizedMatrix, dtype: torch.dtype, weights_only: bool) -> TorchaoLinear | IntegerLinear:
    """The product of the matrix with activations in `dtype`; `weights_only`: in 8 bits these are not rounded. Tried
    once. Unsupported where it is not to be had."""
    try:
        found = _made(matrix, dtype, weights_only)
        apart = _apart(found, matrix, dtype)
    except ImportError as error:
        raise Unsupported(f"torchao is not to be imported ({error})") from None
    except (RuntimeError, ValueError, AssertionError, AttributeError) as error:
        said = str(error).splitlines() or [type(error).__name__]
        raise Unsupported(f"torchao's product does not run here ({said[0]})") from None
    if not apart <= MOST_APART:  # NaN is not
        raise Unsupported(f"torchao's product is {100 * apart:.1f} % off the plain one")
    return found


def _made(matrix: QuantizedMatrix, dtype: torch.dtype, weights_only: bool) -> TorchaoLinear | IntegerLinear:
    if matrix.zero is not None:
        return _int4(matrix, matrix.zero, dtype)
    return _int8_weight(matrix, dtype) if weights_only else IntegerLinear(matrix, dtype)


def _int8_weight(matrix: QuantizedMatrix, dtype: torch.dtype) -> TorchaoLinear:
    from torchao.quantization import Int8Tensor

    weight = Int8Tensor(matrix.stored, matrix.scale, [1, matrix.stored.shape[1]], dtype)
    return TorchaoLinear(weight, matrix.bytes, 4 * matrix.scale.numel(), dtype, matrix)


def _int4(matrix: QuantizedMatrix, zero: Tensor, dtype: torch.dtype) -> TorchaoLinear:
    groups, (rows, columns) = matrix.scale.shape[1], (len(matrix.stored), 2 * matrix.stored.shape[1])
    size = columns // groups
    if size not in GROUPS:
        raise Unsupported(f"torchao's groups are {', '.join(map(str, GROUPS))}, not {size}")
    on_gpu = _is_on_gpu(matrix.stored)
    kept = torch.bfloat16 if on_gpu else dtype  # what the kernels want
    scale = matrix.scale.to(kept)
    both = torch.stack((scale, ((8 - zero.float()) * scale.float()).to(kept)), dim=2)  # [rows, groups, 2]
    if on_gpu:
        from torchao.quantization import Int4TilePackedTo4dTensor

        right, below = -columns % COLUMNS, -rows % ROWS
        levels = matrix.stored << 4 | matrix.stored >> 4  # the even column high
        levels = pad(levels, (0, right // 2, 0, below))
        both = pad(both, (0, 0, 0, right // size, 0, below)).transpose(0, 1).contiguous()
        packed = torch.ops.aten._convert_weight_to_int4pack(levels.contiguous(), INNER_TILES)
        weight = Int4TilePackedTo4dTensor(packed, both, [1, size], torch.Size((rows, columns)))
    else:
        from torchao.prototype.quantization.int4 import Int4OpaqueTensor

        both = both.transpose(0, 1).contiguous()
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(matrix.levels().int(), 1)
        weight = Int4OpaqueTensor(packed, both, [1, size], torch.Size((rows, columns)))
    return TorchaoLinear(weight, _bytes(packed, both), _bytes(both), dtype)


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _apart(found: TorchaoLinear | IntegerLinear, matrix: QuantizedMatrix, dtype: torch.dtype) -> float:
    """How far the product is from the plain one, in float32 from the same levels, for two rows of all sizes."""
    weight = matrix.dequantized()
    x = torch.arange(2 * weight.shape[1], device=weight.device).sin().view(2, -1).to(dtype)
    plain = linear(x.float(), weight)
    return float((found(x).float() - plain).norm() / plain.norm().clamp_min(1e-30))
