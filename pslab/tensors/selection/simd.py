"""Vector instructions that numba has no name for, written as LLVM code.

Arrays are contiguous, float32 or float64; indices are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic


def instruction(function: Callable[..., Any]) -> Any:
    """Code that numba inserts where a loop calls the function; the call omits the first argument."""
    return intrinsic(function)


def _squeezes() -> bool:
    """Whether the target processor has an instruction for `squeeze`; LLVM's replacement for it is slow."""
    if config.CPU_FEATURES is not None:
        return "+avx512vbmi2" in config.CPU_FEATURES
    return bool(binding.get_host_cpu_features().get("avx512vbmi2", False))


SQUEEZES = _squeezes()


def _vector(element: ir.Type, lanes: int) -> ir.VectorType:
    return ir.VectorType(element, lanes)


def _call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    kind = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _splat(builder: Any, scalar: Any, lanes: int) -> Any:
    vector = _vector(scalar.type, lanes)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(_vector(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _suffix(element: types.Type) -> str:
    return f"{'f' if isinstance(element, types.Float) else 'i'}{element.bitwidth}"


def _at(context: Any, builder: Any, kind: Any, array: Any, index: Any, vector: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.as_pointer())


def _magnitudes(context: Any, builder: Any, kind: Any, array: Any, index: Any, lanes: int) -> Any:
    vector = _vector(context.get_value_type(kind.dtype), lanes)
    entries = builder.load(_at(context, builder, kind, array, index, vector))
    entries.align = kind.dtype.bitwidth // 8
    return _call(builder, f"llvm.fabs.v{lanes}{_suffix(kind.dtype)}", vector, [entries])


@instruction
def above(typing: Any, y: Any, i: Any, edge: Any) -> Any:
    """Which of the 64 entries y[i:] have |y| > edge, as the bits of a word: the first entry is the lowest bit."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        magnitudes = _magnitudes(context, builder, signature.args[0], args[0], args[1], 64)
        return builder.bitcast(builder.fcmp_ordered(">", magnitudes, _splat(builder, args[2], 64)), ir.IntType(64))

    return types.uint64(y, types.int64, y.dtype), generate


@instruction
def squeeze(typing: Any, y: Any, i: Any, low: Any, high: Any, out: Any, k: Any) -> Any:
    """Of the entries y[i:] that fill a register of out's dtype, write those with low < |y| <= high to out[k:].

    Their magnitudes if `out` holds floats, their positions if it holds integers. Returns the new k.
    """
    lanes = 512 // out.dtype.bitwidth

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        entries = _magnitudes(context, builder, signature.args[0], args[0], args[1], lanes)
        mask = builder.and_(
            builder.fcmp_ordered(">", entries, _splat(builder, args[2], lanes)),
            builder.fcmp_ordered("<=", entries, _splat(builder, args[3], lanes)),
        )
        element = context.get_value_type(out.dtype)
        if isinstance(out.dtype, types.Integer):
            numbers = ir.Constant(_vector(element, lanes), list(range(lanes)))
            entries = builder.add(_splat(builder, builder.trunc(args[1], element), lanes), numbers)
        name = f"llvm.experimental.vector.compress.v{lanes}{_suffix(out.dtype)}"
        packed = _call(builder, name, entries.type, [entries, mask, ir.Constant(entries.type, ir.Undefined)])
        stored = builder.store(packed, _at(context, builder, signature.args[4], args[4], args[5], entries.type))
        stored.align = out.dtype.bitwidth // 8
        count = builder.ctpop(builder.bitcast(mask, ir.IntType(lanes)))
        return builder.add(args[5], builder.zext(count, ir.IntType(64)))

    return types.int64(y, types.int64, y.dtype, y.dtype, out, types.int64), generate


@instruction
def ones(typing: Any, bits: Any) -> Any:
    """The number of set bits of a word."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@instruction
def lowest(typing: Any, bits: Any) -> Any:
    """The position of a word's lowest set bit; 64 if there is none."""
    no = ir.Constant(ir.IntType(1), 0)
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.cttz(args[0], no)
