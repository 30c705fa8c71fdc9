"""What config.json says of weights that somebody else quantized: `quantization_config`, by three public conventions.

    quant_method gptq                 AutoGPTQ, GPTQModel
    quant_method awq                  AutoAWQ, version gemm
    quant_method compressed-tensors   llm-compressor, formats pack-quantized and int-quantized

What this lab's layout cannot hold (3 bit, groups in 8 bit, columns in another order) is refused with the reason. Needs
no torch; checkpoints.py reads the tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .recipe import Unquantizable


@dataclass(frozen=True)
class Scheme:
    """`group_size` None: one scale a row, 8 bit. `zero_is_less_one`: gptq stores its zeros so, "gptq_v2" does not."""

    method: str
    bits: int
    group_size: int | None
    symmetric: bool
    zero_is_less_one: bool = False
    packed: bool = True

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> Scheme:
        """From `quantization_config`. Unquantizable when these weights cannot be served."""
        method = found.get("quant_method")
        if method not in _READ:
            raise Unquantizable(f"quant_method {method!r} is not read; allowed: {', '.join(_READ)}")
        try:
            scheme: Scheme = _READ[method](found)
        except (KeyError, TypeError, AttributeError) as error:
            raise Unquantizable(f"quantization_config of {method} is not complete ({error})") from None
        if scheme.bits not in (4, 8):
            raise Unquantizable(f"{method} with {scheme.bits} bits is not served; allowed: 4 or 8")
        if scheme.bits == 4 and scheme.group_size is None:
            raise Unquantizable(f"{method} with one scale a row in 4 bit is not served; allowed: groups")
        if scheme.bits == 8 and (scheme.group_size is not None or not scheme.symmetric):
            raise Unquantizable(f"{method} in 8 bit with groups or zeros is not served; allowed: one scale a row")
        return scheme

    def __str__(self) -> str:
        """ "4 bit by gptq in groups of 128" """
        groups = "" if self.group_size is None else f" in groups of {self.group_size}"
        return f"{self.bits} bit by {self.method}{groups}"


def _gptq(found: Mapping[str, Any]) -> Scheme:
    # Columns in another order ("desc_act") show in g_idx only, so checkpoints.py looks there.
    return Scheme(
        method="gptq",
        bits=found["bits"],
        group_size=None if found["group_size"] == -1 else found["group_size"],
        symmetric=bool(found.get("sym", True)),
        zero_is_less_one=found.get("checkpoint_format", "gptq") != "gptq_v2",
    )


def _awq(found: Mapping[str, Any]) -> Scheme:
    version = str(found.get("version", "gemm")).lower()
    if version != "gemm":
        raise Unquantizable(f"awq version {version!r} is not read; allowed: 'gemm'")
    if not found.get("zero_point", True):
        raise Unquantizable("awq with zero_point false is not read; allowed: true")
    group_size = found.get("group_size", found.get("q_group_size"))
    return Scheme("awq", found.get("bits", found.get("w_bit")), None if group_size == -1 else group_size, False)


def _compressed_tensors(found: Mapping[str, Any]) -> Scheme:
    kind = found["format"]
    if kind not in ("pack-quantized", "int-quantized"):
        raise Unquantizable(
            f"compressed-tensors format {kind!r} is not read; allowed: 'pack-quantized', 'int-quantized'"
        )
    groups = list(found["config_groups"].values())
    if len(groups) != 1 or groups[0]["targets"] != ["Linear"]:
        raise Unquantizable("compressed-tensors with several ways for several matrices is not read; allowed: one")
    weights = groups[0]["weights"]
    strategy = weights["strategy"]
    if weights.get("type", "int") != "int" or strategy not in ("group", "channel"):
        raise Unquantizable(
            f"compressed-tensors weights of type {weights.get('type')!r} by {strategy!r} are not read; "
            "allowed: int by 'group' or 'channel'"
        )
    return Scheme(
        method="compressed-tensors",
        bits=weights["num_bits"],
        group_size=weights["group_size"] if strategy == "group" else None,
        symmetric=bool(weights["symmetric"]),
        packed=kind == "pack-quantized",
    )


_READ = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}
