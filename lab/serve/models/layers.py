"""The parts of a decoder in torch: a matrix applied to rows, quantized or not, a norm, an embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm, linear

from .formats import GROUP
from .int8 import rounded_by_group
from .quantized_reader import QuantizedMatrix, WeightsFolder
from .torchao_linear import Unsupported, made


class Product(Protocol):
    """A weight [out, in] applied to rows: x [n, in] → [n, out]. `bytes` are those that it reads, scales and zero points
    included."""

    @property
    def bytes(self) -> int: ...
    @property
    def scale_bytes(self) -> int: ...
    def __call__(self, x: Tensor) -> Tensor: ...
    def rows(self, numbers: Tensor) -> Tensor:
        """The rows of the weight of these numbers: what an embedding gives for tokens."""
        ...


class Linear:
    """A weight as it is."""

    scale_bytes = 0

    def __init__(self, weight: Tensor) -> None:
        self.bytes = weight.numel() * weight.element_size()
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self._weight)

    def rows(self, numbers: Tensor) -> Tensor:
        return embedding(numbers, self._weight)


class QuantizedLinear:
    """A weight in 8 or 4 bits, by plain torch. It is made `dtype` anew for every product: that saves memory and costs
    time, everywhere. `group`: columns of a row of x that are rounded to 8 bits together; None leaves x as it is."""

    def __init__(self, matrix: QuantizedMatrix, dtype: torch.dtype, group: int | None) -> None:
        self.bytes = matrix.bytes
        self.scale_bytes = 4 * matrix.scale.numel() + (0 if matrix.zero is None else matrix.zero.numel())
        self._matrix, self._dtype, self._group = matrix, dtype, group

    def __call__(self, x: Tensor) -> Tensor:
        if self._group is not None:
            x = rounded_by_group(x, self._group).to(self._dtype)
        return linear(x, self._matrix.dequantized().to(self._dtype))

    def rows(self, numbers: Tensor) -> Tensor:
        return self._matrix.rows(numbers).dequantized().to(self._dtype)


class RMSNorm:
    """x / sqrt(mean(x²) + eps) × weight (https://arxiv.org/abs/1910.07467), for x [n, hidden].

    Written as the LayerNorm of (x, −x), whose mean is 0 and whose variance is the mean of x²: on a CPU torch has one
    kernel for that and makes RMSNorm of a dozen small ones, 3 ms in a step of SmolLM2 instead of 1.5.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.bytes = weight.numel() * weight.element_size()
        self._hidden, self._eps = len(weight), eps
        self._weight = torch.cat((weight, weight))

    def __call__(self, x: Tensor) -> Tensor:
        both = torch.cat((x, -x), dim=-1)
        return layer_norm(both, (2 * self._hidden,), self._weight, None, self._eps)[:, : self._hidden]


@dataclass(frozen=True)
class Layer:
    """Projections that read the same input are one matrix: fewer, larger multiplications."""

    attention_norm: RMSNorm
    qkv: Product  # hidden → (heads + 2 kv_heads) × head_dim
    out: Product  # heads × head_dim → hidden
    mlp_norm: RMSNorm
    gate_up: Product  # hidden → 2 mlp
    down: Product  # mlp → hidden


class Parts:
    """Makes the parts of the matrices and vectors of a folder, in `dtype` on the folder's device. `by_torchao`: the
    quantized ones as torchao_linear.py has them, where it has."""

    def __init__(self, folder: WeightsFolder, dtype: torch.dtype, norm_eps: float, by_torchao: bool) -> None:
        self._folder, self._dtype, self._norm_eps, self._by_torchao = folder, dtype, norm_eps, by_torchao
        self.refused: dict[str, list[str]] = {}
        """Matrices that torchao was asked for and lacks, by the reason."""

    def matrix(self, *names: str) -> Product:
        """One below the other. ValueError when some are quantized and others not, or unlike."""
        self._folder.check_alike(names)
        found = [self._folder.matrix(name) for name in names]
        quantized = [matrix for matrix in found if isinstance(matrix, QuantizedMatrix)]
        if quantized:
            return self._quantized(names[0], QuantizedMatrix.stacked(quantized))
        return Linear(torch.cat([matrix.to(self._dtype) for matrix in found if isinstance(matrix, Tensor)]))

    def _quantized(self, name: str, matrix: QuantizedMatrix) -> Product:
        weights_only = self._folder.precision == "int8_weight"
        if self._by_torchao:
            try:
                return made(matrix, self._dtype, weights_only)
            except Unsupported as error:
                self.refused.setdefault(str(error), []).append(name)
        group = GROUP if matrix.bits == 8 else self._folder.group_size
        return QuantizedLinear(matrix, self._dtype, None if weights_only else group)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self._folder.tensor(f"{name}.weight").to(self._dtype), self._norm_eps)

    def layer(self, name: str) -> Layer:
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        return Layer(
            attention_norm=self.norm(f"{name}.input_layernorm"),
            qkv=self.matrix(f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
            out=self.matrix(f"{attention}.o_proj"),
            mlp_norm=self.norm(f"{name}.post_attention_layernorm"),
            gate_up=self.matrix(f"{mlp}.gate_proj", f"{mlp}.up_proj"),
            down=self.matrix(f"{mlp}.down_proj"),
        )
