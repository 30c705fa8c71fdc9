"""Reads a folder of weights, quantized or not: tensors by name, and matrices as they lie there.

A quantized folder is a Hugging Face folder with quantization.json beside config.json. Of a matrix NAME that is
quantized, such as "model.layers.0.mlp.down_proj", its *.safetensors hold in place of NAME.weight, unpacked and plain,

    NAME.qweight   8 bits: int8 [out, in], -127 to 127; 4 bits: uint8 [out, in / 2], the even column in the low nibble
    NAME.scale     float32 [out, groups], one group in 8 bits
    NAME.zero      uint8 [out, groups], 4 bits only

and weight = (qweight - zero) × scale. Whatever does not fit together is refused with the tensor's name, and so is a
weight or scale that is no finite number: it would make every answer nonsense, and quietly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

FILE = "quantization.json"
FORMAT_VERSION = 1
PRECISIONS = ("int8", "int8_weight", "int4")
BITS = (8, 4)


@dataclass(frozen=True)
class QuantizedMatrix:
    """weight = (levels - zero) × scale, as it is stored."""

    stored: Tensor  # int8 [out, in], or in 4 bits uint8 [out, in / 2]
    scale: Tensor  # float32 [out, groups]
    zero: Tensor | None  # uint8 [out, groups] in 4 bits, None in 8

    @property
    def bits(self) -> int:
        return 8 if self.zero is None else 4

    @property
    def bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self._parts())

    def levels(self) -> Tensor:
        """int8, or in 4 bits uint8, 0 to 15 [out, in]: one a byte."""
        if self.zero is None:
            return self.stored
        return torch.stack((self.stored & 15, self.stored >> 4), dim=2).flatten(1)

    def dequantized(self) -> Tensor:
        """float32 [out, in]."""
        levels = self.levels().float()
        grouped = levels.view(*self.scale.shape, -1)
        if self.zero is not None:
            grouped = grouped - self.zero.float()[:, :, None]
        return (grouped * self.scale[:, :, None]).view(levels.shape)

    def rows(self, numbers: Tensor) -> QuantizedMatrix:
        zero = None if self.zero is None else self.zero[numbers]
        return QuantizedMatrix(self.stored[numbers], self.scale[numbers], zero)

    def _parts(self) -> tuple[Tensor, ...]:
        return tuple(part for part in vars(self).values() if part is not None)

    @staticmethod
    def stacked(matrices: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
        """One below the other; they are alike in bits and groups."""
        zeros = [matrix.zero for matrix in matrices if matrix.zero is not None]
        return QuantizedMatrix(
            torch.cat([matrix.stored for matrix in matrices]),
            torch.cat([matrix.scale for matrix in matrices]),
            torch.cat(zeros) if zeros else None,
        )


class WeightsFolder:
    """The *.safetensors of a folder. ValueError in one line when quantization.json is of another kind."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder = folder
        self._files: list[Any] = [
            safe_open(path, framework="pt", device=device) for path in folder.glob("*.safetensors")
        ]
        self._where = {name: file for file in self._files for name in file.keys()}  # noqa: SIM118  a file is no dict
        self.precision: str | None = None
        """None: not quantized."""
        self.group_size: int | None = None
        self._bits: dict[str, int] = {}
        if (folder / FILE).is_file():
            self._read_description()

    def tensor(self, name: str) -> Tensor:
        """ValueError when there is none of that name, or it holds what is no finite number."""
        tensor = self._stored(name)
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{self.folder}: tensor {name} holds NaN or infinity; allowed: finite numbers")
        return tensor

    def bits(self, name: str) -> int | None:
        """Of matrix `name`; None: it is not quantized."""
        return self._bits.get(name)

    def check_alike(self, names: Sequence[str]) -> None:
        """ValueError when matrices that are multiplied as one differ in bits."""
        if len({self.bits(name) for name in names}) > 1:
            found = ", ".join(f"{name} {self.bits(name) or 'unquantized'}" for name in names)
            raise ValueError(f"{self.folder}: matrices that are one product differ in bits ({found}); allowed: alike")

    def matrix(self, name: str) -> Tensor | QuantizedMatrix:
        """The matrix `name`, whose weights are `name`.weight where it is not quantized."""
        bits = self.bits(name)
        if bits is None:
            return self.tensor(f"{name}.weight")
        stored, scale = self._stored(f"{name}.qweight"), self.tensor(f"{name}.scale")
        self._check(f"{name}.qweight", stored, torch.int8 if bits == 8 else torch.uint8, None)
        rows, columns = stored.shape[0], stored.shape[1] * (8 // bits)
        groups = 1 if bits == 8 else self._groups(name, columns)
        self._check(f"{name}.scale", scale, torch.float32, (rows, groups))
        if bits == 8:
            if (stored == -128).any():
                raise ValueError(f"{self.folder}: tensor {name}.qweight holds -128; allowed: -127 to 127")
            return QuantizedMatrix(stored, scale, None)
        zero = self._stored(f"{name}.zero")
        self._check(f"{name}.zero", zero, torch.uint8, (rows, groups))
        if (zero > 15).any():
            raise ValueError(f"{self.folder}: tensor {name}.zero holds {int(zero.max())}; allowed: 0 to 15")
        return QuantizedMatrix(stored, scale, zero)

    def dequantized(self, name: str) -> Tensor:
        """The matrix `name` as float32 [out, in], quantized or not."""
        matrix = self.matrix(name)
        return matrix.dequantized() if isinstance(matrix, QuantizedMatrix) else matrix.float()

    def _stored(self, name: str) -> Tensor:
        if name not in self._where:
            raise ValueError(f"{self.folder}: no tensor {name} in its *.safetensors")
        tensor: Tensor = self._where[name].get_tensor(name)
        return tensor

    def _groups(self, name: str, columns: int) -> int:
        size = self.group_size
        if not size or columns % size:
            raise ValueError(
                f"{self.folder}: matrix {name} has {columns} columns with group_size {size}; "
                f"allowed: a divisor of {columns}"
            )
        return columns // size

    def _check(self, name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, int] | None) -> None:
        if tensor.dtype != dtype:
            raise ValueError(f"{self.folder}: tensor {name} is {tensor.dtype}; allowed: {dtype}")
        if tensor.dim() != 2 or (shape is not None and tensor.shape != shape):
            allowed = "[out, in]" if shape is None else str(list(shape))
            raise ValueError(f"{self.folder}: tensor {name} has the shape {list(tensor.shape)}; allowed: {allowed}")

    def _read_description(self) -> None:
        place = self.folder / FILE
        try:
            found = json.loads(place.read_text())
            version, precision, group_size = found["format_version"], found["precision"], found["group_size"]
            bits = {name: int(matrix["bits"]) for name, matrix in found["matrices"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{place}: not read ({type(error).__name__}: {error})") from None
        for field, value, allowed in (
            ("format_version", version, (FORMAT_VERSION,)),
            ("precision", precision, PRECISIONS),
            *((f"bits of {name}", value, BITS) for name, value in bits.items()),
        ):
            if value not in allowed:
                raise ValueError(f"{place}: {field} {value!r}; allowed: {', '.join(map(str, allowed))}")
        self.precision, self.group_size, self._bits = precision, group_size, bits
