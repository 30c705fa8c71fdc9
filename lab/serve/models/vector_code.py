"""The few machine-near operations that numba has no word for: atomics, bits of a float, pauses; and the grammar in
which tiles.py writes the rest. Imports nothing of lab and no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import config, extending, types
from numba.core import cgutils

from .formats import LANES

# Its own type would have callers pass the first parameter, `typing`, too.
intrinsic: Callable[[Any], Any] = extending.intrinsic


def _features() -> str:
    given: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    return llvmlite.binding.get_host_cpu_features().flatten() if given is None else given


FEATURES = _features().split(",")
"""Of the processor that the code is compiled for: "+avx512bf16", …"""

INT, FLOAT, INT64 = ir.IntType(32), ir.FloatType(), ir.IntType(64)
INTS, FLOATS = ir.VectorType(INT, LANES), ir.VectorType(FLOAT, LANES)


def call(builder: Any, name: str, result: ir.Type, *arguments: Any) -> Any:
    declare: Any = cgutils.get_or_insert_function
    function = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(declare(builder.module, function, name), arguments)


def spread(builder: Any, value: Any) -> Any:
    """The value, 32 bits, in all lanes."""
    lanes = builder.insert_element(ir.Constant(INTS, ir.Undefined), value, ir.Constant(INT, 0))
    return builder.shuffle_vector(lanes, lanes, ir.Constant(INTS, [0] * LANES))


def loop(builder: Any, count: Any, starts: list[Any], body: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
    """`values = body(k, values)` for k from 0 to `count`, one at least; the last values."""
    before, inside = builder.block, builder.append_basic_block("loop")
    builder.branch(inside)
    builder.position_at_end(inside)
    k, values = builder.phi(INT64), [builder.phi(start.type) for start in starts]
    new = body(k, values)
    following, end = builder.add(k, INT64(1)), builder.block  # a loop within has moved on
    for phi, start, value in zip([k, *values], [INT64(0), *starts], [following, *new], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(value, end)
    after = builder.append_basic_block("loop.end")
    builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
    builder.position_at_end(after)
    return new


@intrinsic
def add_atomically(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index] += value, for int64 [:]; what was there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", builder.gep(data, [arguments[1]]), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


@intrinsic
def read_atomically(typing: Any, array: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(builder.gep(data, [arguments[1]]), "seq_cst", 8)

    return types.int64(array, types.int64), generate


@intrinsic
def uncounted(typing: Any, arrays: Any) -> Any:
    """A tuple's arrays without their reference counts, for callers that hold them meanwhile: numba counts every slice
    of an array, and threads that share one would wait for each other at its count."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = arguments[0]
        for i, kind in enumerate(arrays.types):
            if isinstance(kind, types.Array):
                part = context.make_array(kind)(context, builder, builder.extract_value(found, i))
                part.meminfo = ir.Constant(part.meminfo.type, None)
                found = builder.insert_value(found, part._getvalue(), i)
        return found

    return arrays(arrays), generate


@intrinsic
def write_atomically(typing: Any, array: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        builder.store_atomic(arguments[2], builder.gep(data, [arguments[1]]), "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate


@intrinsic
def exchange_atomically(typing: Any, array: Any, index: Any, old: Any, new: Any) -> Any:
    """array[index] = new where it is `old`; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        found = builder.cmpxchg(place, arguments[2], arguments[3], "seq_cst", "seq_cst")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64, types.int64, types.int64), generate


@intrinsic
def breathe(typing: Any) -> Any:
    """A short pause inside a waiting loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if "x86" in llvmlite.binding.get_process_triple():
            call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def give_way(typing: Any) -> Any:
    """Lets another thread have this processor, if one waits for it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        call(builder, "sched_yield", INT)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def bits(typing: Any, value: Any) -> Any:
    """A float32's bits as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], INT)

    return types.int32(types.float32), generate


@intrinsic
def from_bits(typing: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], FLOAT)

    return types.float32(types.int32), generate


@intrinsic
def nearest(typing: Any, value: Any) -> Any:
    """The whole number nearest to a float32, ties to even, as an int32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptosi(call(builder, "llvm.rint.f32", FLOAT, arguments[0]), INT)

    return types.int32(types.float32), generate


@intrinsic
def rounded(typing: Any, value: Any) -> Any:
    """The bfloat16 nearest to a float32, ties to even, as uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits_ = builder.bitcast(arguments[0], INT)
        odd = builder.and_(builder.lshr(bits_, INT(16)), INT(1))
        sum_ = builder.add(builder.add(bits_, INT(0x7FFF)), odd)
        return builder.trunc(builder.lshr(sum_, INT(16)), ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def expanded(typing: Any, value: Any) -> Any:
    """A bfloat16, given as uint16, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(arguments[0], INT), INT(16)), FLOAT)

    return types.float32(types.uint16), generate
