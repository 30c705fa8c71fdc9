"""How a weight matrix lies in memory, by its format: blocks of 32 rows, each in the order that a tile reads it.

A step of a tile is 128 bytes: four of each of a block's rows. Those four hold

    BF16          2 columns    bfloat16, the even column low
    INT8          4 columns    weight + 128, a byte each; before a block's first step stand its rows' 32 scales
    INT8_WEIGHT   4 columns    sign and magnitude, a byte each, the columns' pairs apart (`byte_at`); scales likewise
    INT4          8 columns    0 to 15, of byte i column i in the low nibble and column 4 + i in the high one; before
                               each group's first step stand its rows' scales, whose lowest four bits give way to the
                               zero point: that moves a scale by a millionth and saves a fifth of what both take

INT8 and INT4 multiply by activations in 8 bits that share a scale by group, the other two by activations in bfloat16,
which INT8_WEIGHT becomes in registers. INT4's groups are its weights', INT8's are of GROUP columns. Matrices of one
model may differ in format. See tiles.py for the arithmetic. Imports nothing of lab.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

LANES = 16  # float32 sums in a register
BLOCK = 2 * LANES
"""Rows of a tile: two registers, so that a vector's word, once loaded, is used twice."""

GROUP = 64
"""Columns of activations that share a scale in INT8: one that is large spoils the others of its group only."""

BF16, INT8, INT8_WEIGHT, INT4 = range(4)
COLUMNS = (2, 4, 4, 8)
"""Of a step, by format."""
NAMES = ("bf16", "int8", "int8_weight", "int4")


def padded(n: int, multiple: int = BLOCK) -> int:
    return -(-n // multiple) * multiple


@dataclass(frozen=True)
class Matrix:
    """A matrix [rows, columns] before it is packed: weight = (values - zero) × scale, by group of columns.

    `values` are uint16 (the bits of bfloat16), int8 or uint8 (0 to 15); `scale` float32 and `zero` uint8 [rows, groups]
    are None where the format has none.
    """

    format: int
    values: np.ndarray
    scale: np.ndarray | None = None
    zero: np.ndarray | None = None

    @property
    def group(self) -> int:
        """Columns that share a scale."""
        return self.values.shape[1] // self.scale.shape[1] if self.scale is not None else 0

    def parts(self) -> tuple[np.ndarray, ...]:
        return tuple(part for part in (self.values, self.scale, self.zero) if part is not None)

    def with_parts(self, *parts: np.ndarray) -> Matrix:
        given = iter(parts)
        return replace(
            self,
            values=next(given),
            scale=None if self.scale is None else next(given),
            zero=None if self.zero is None else next(given),
        )


def stacked(matrices: list[Matrix]) -> Matrix:
    """One below the other; they have the same format and group."""
    parts = zip(*(matrix.parts() for matrix in matrices), strict=True)
    return matrices[0].with_parts(*(np.concatenate(part) for part in parts))


def alternating(matrices: list[Matrix]) -> Matrix:
    """LANES rows of each in turn; zeros fill up each one's last."""

    def mixed(arrays: tuple[np.ndarray, ...]) -> np.ndarray:
        whole = [_rows(array, padded(len(array), LANES)).reshape(-1, LANES, array.shape[1]) for array in arrays]
        return np.stack(whole, axis=1).reshape(-1, arrays[0].shape[1])

    parts = zip(*(matrix.parts() for matrix in matrices), strict=True)
    return matrices[0].with_parts(*(mixed(part) for part in parts))


@dataclass(frozen=True)
class Packed:
    words: np.ndarray  # uint32 [blocks, words of a block]
    format: int
    steps: int  # of a block
    group: int  # steps of a group of activations, INT8 and INT4 only


def pack(matrix: Matrix) -> Packed:
    """Zeros fill up the last block and the last step. ValueError when INT4's groups are not whole steps."""
    rows, columns = matrix.values.shape
    width = COLUMNS[matrix.format]
    if matrix.format == INT4 and matrix.group % width:
        raise ValueError(f"group_size {matrix.group} in 4 bits; allowed: a multiple of {width}")
    steps = padded(columns, 4) // width
    lanes = _LANES[matrix.format](_whole(matrix.values, steps * width))
    blocks = lanes.reshape(-1, BLOCK, steps).transpose(0, 2, 1)  # [blocks, steps, BLOCK]
    if matrix.scale is None:
        return Packed(np.ascontiguousarray(blocks).reshape(len(blocks), -1), matrix.format, steps, 0)
    scales = _rows(matrix.scale, padded(rows)).astype(np.float32, order="C").view(np.uint32)
    if matrix.zero is not None:
        scales = scales & np.uint32(0xFFFFFFF0) | _rows(matrix.zero, padded(rows))
    groups = scales.shape[1]
    scales = scales.reshape(-1, BLOCK, groups).transpose(0, 2, 1)  # [blocks, groups, BLOCK]
    grouped = blocks.reshape(len(blocks), groups, -1)
    words = np.concatenate([scales, grouped], axis=2).reshape(len(blocks), -1)
    group = {INT8: GROUP // width, INT8_WEIGHT: 0, INT4: steps // groups}[matrix.format]
    return Packed(words, matrix.format, steps, group)


def block_words(format: int, steps: int, group: int) -> int:
    """Words of 4 bytes that a block of such a matrix takes."""
    headers = {BF16: 0, INT8: 1, INT8_WEIGHT: 1}[format] if format != INT4 else steps // group
    return (steps + headers) * BLOCK


def packed_words(format: int, rows: int, columns: int, group: int = 0) -> int:
    """Words of 4 bytes that a matrix takes when it is packed; `group` in columns."""
    steps = padded(columns, 4) // COLUMNS[format]
    return padded(rows) // BLOCK * block_words(format, steps, group // COLUMNS[INT4])


def _rows(array: np.ndarray, rows: int) -> np.ndarray:
    return np.pad(array, ((0, rows - len(array)), (0, 0)))


def _whole(values: np.ndarray, columns: int) -> np.ndarray:
    rows = padded(len(values))
    return np.pad(values, ((0, rows - len(values)), (0, columns - values.shape[1])))


def _bf16_lanes(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


def _int8_lanes(values: np.ndarray) -> np.ndarray:
    return (values.view(np.uint8) ^ np.uint8(128)).view(np.uint32)


def _int8_weight_lanes(values: np.ndarray) -> np.ndarray:
    rows, steps = len(values), values.shape[1] // 4
    signed = np.where(values < 0, 128, 0).astype(np.uint8) | np.abs(values).astype(np.uint8)
    # Of four rows: the first two columns of each, then the last two.
    fours = signed.reshape(-1, 4, steps, 2, 2).transpose(0, 2, 3, 1, 4)
    words = np.ascontiguousarray(fours).reshape(-1, steps, 16).view(np.uint32)
    return words.transpose(0, 2, 1).reshape(rows, steps)


def _int4_lanes(values: np.ndarray) -> np.ndarray:
    low, high = values.reshape(len(values), -1, 2, 4).transpose(2, 0, 1, 3)
    return np.ascontiguousarray(low | high << 4).reshape(len(values), -1).view(np.uint32)


_LANES = (_bf16_lanes, _int8_lanes, _int8_weight_lanes, _int4_lanes)
