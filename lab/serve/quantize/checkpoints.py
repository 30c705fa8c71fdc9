"""Matrices that somebody else quantized, read from three public layouts of safetensors into this lab's own.

    gptq     NAME.qweight int32 [in / 8, out]    eight rows of a column in a number, the first lowest
             NAME.qzeros  int32 [groups, out / 8]    NAME.scales [groups, out]    NAME.g_idx int32 [in]
    awq      NAME.qweight int32 [in, out / 8]    eight columns of a row, in the order 0 2 4 6 1 3 5 7
             NAME.qzeros  int32 [groups, out / 8], in the same order    NAME.scales [groups, out]
    compressed-tensors
             NAME.weight_packed int32 [out, in / 8], offset by half the range    NAME.weight_scale [out, groups]
             NAME.weight_zero_point int32 [out / 8, groups], packed downwards    NAME.weight_g_idx
             NAME.weight int8 [out, in] and NAME.weight_scale [out, 1] in the format int-quantized

Eight stands for 32 ÷ bits. A gptq checkpoint stores zeros less one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .grid import MOST_8, Grid, Quantized
from .recipe import Unquantizable
from .scheme import Scheme

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)

Read = Callable[[str], Tensor | None]
"""A tensor of the checkpoint by name; None when there is none of that name."""


def matrix(name: str, scheme: Scheme, read: Read) -> Quantized:
    """The matrix NAME. Unquantizable when a tensor of it is missing, or its columns are not in order."""
    if scheme.method == "gptq":
        return _gptq(name, scheme, read)
    if scheme.method == "awq":
        return _awq(name, scheme, read)
    return _compressed_tensors(name, scheme, read)


def unpacked(numbers: Tensor, bits: int, dim: int) -> Tensor:
    """int32 [r, c] → the unsigned values in them, lowest first, along `dim` (0: [r × 32 / bits, c])."""
    places = torch.arange(0, 32, bits, dtype=torch.int32)
    numbers = numbers.to(torch.int32)
    if dim == 0:
        return unpacked(numbers.T, bits, dim=1).T
    values: Tensor = numbers[:, :, None] >> places & 2**bits - 1
    return values.flatten(1)


def _gptq(name: str, scheme: Scheme, read: Read) -> Quantized:
    codes = unpacked(_need(name, "qweight", read), scheme.bits, dim=0).T
    scale = _need(name, "scales", read).float().T
    zero = unpacked(_need(name, "qzeros", read), scheme.bits, dim=1).T[: len(codes)]
    if scheme.zero_is_less_one:
        zero = zero + 1 & 2**scheme.bits - 1
    _in_order(name, read(f"{name}.g_idx"), scheme, codes.shape[1])
    return _whole(name, codes, scale, zero, scheme)


def _awq(name: str, scheme: Scheme, read: Read) -> Quantized:
    if scheme.bits != 4:
        raise Unquantizable(f"awq with {scheme.bits} bits is not served; allowed: 4")

    def columns(kind: str) -> Tensor:
        values = unpacked(_need(name, kind, read), 4, dim=1)
        values = values.reshape(len(values), -1, 8)
        in_order = torch.empty_like(values)
        in_order[..., list(AWQ_ORDER)] = values
        return in_order.flatten(1).T

    return _whole(name, columns("qweight"), _need(name, "scales", read).float().T, columns("qzeros"), scheme)


def _compressed_tensors(name: str, scheme: Scheme, read: Read) -> Quantized:
    scale = _need(name, "weight_scale", read).float()
    half = 2 ** (scheme.bits - 1)
    if not scheme.packed:
        return _whole(name, _need(name, "weight", read).int() + half, scale, None, scheme)
    rows, columns = (int(size) for size in _need(name, "weight_shape", read))
    codes = unpacked(_need(name, "weight_packed", read), scheme.bits, dim=1)[:rows, :columns]
    _in_order(name, read(f"{name}.weight_g_idx"), scheme, columns)
    zero = None
    if not scheme.symmetric:
        zero = unpacked(_need(name, "weight_zero_point", read), scheme.bits, dim=0)[:rows]
    return _whole(name, codes, scale, zero, scheme)


def _need(name: str, kind: str, read: Read) -> Tensor:
    tensor = read(f"{name}.{kind}")
    if tensor is None:
        raise Unquantizable(f"{name}.{kind} is not in the checkpoint; all matrices of a block must be quantized")
    return tensor


def _in_order(name: str, groups: Tensor | None, scheme: Scheme, width: int) -> None:
    """Columns whose groups are scattered ("desc_act", "actorder") have no place in a layout of neighbours."""
    if groups is None or scheme.group_size is None:
        return
    if not torch.equal(groups.long(), torch.arange(width) // scheme.group_size):
        raise Unquantizable(
            f"{name}.g_idx puts the columns of a group apart (desc_act), which is not served; "
            "allowed: desc_act false, or static groups"
        )


def _whole(name: str, codes: Tensor, scale: Tensor, zero: Tensor | None, scheme: Scheme) -> Quantized:
    """Unsigned codes and zeros, put on this lab's grid. A zero of None is half the range."""
    rows, width = codes.shape
    groups = 1 if scheme.group_size is None else width // scheme.group_size
    half = 2 ** (scheme.bits - 1)
    zero = torch.full((rows, groups), half) if zero is None else zero
    if scale.shape != (rows, groups) or zero.shape != scale.shape:
        raise Unquantizable(
            f"{name} has scales of the shape {list(scale.shape)}, by {scheme} they are [{rows}, {groups}]"
        )
    if scheme.bits == 4:
        return Quantized(codes.float(), Grid(scale, zero.float()))
    if not bool((zero == half).all()):
        raise Unquantizable(f"{name} has zeros in 8 bit, which are not served; allowed: symmetric weights")
    # −128 has no counterpart; a weight there is the least of its row and moves by a 128th of itself.
    return Quantized((codes - half).clamp(-MOST_8, MOST_8).float(), Grid(scale, None))
