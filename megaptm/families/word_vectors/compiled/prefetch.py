"""Prefetching of table rows from memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from megaptm.families.word_vectors.compiled.decorator import compiled

LINE = 16
"""float32 values of a cache line: 64 bytes on most processors."""
TO_WRITE, TO_ALL_CACHES, DATA = 1, 3, 1
"""Arguments of LLVM's `llvm.prefetch`."""


@intrinsic
def _prefetch(context: Any, table_RD: Any, row: Any, column: Any) -> Any:
    """Emit LLVM's prefetch instruction, which numba does not offer. It never fails, whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        table = context.make_array(array_type)(context, builder, arguments[0])
        address = cgutils.get_item_pointer(context, builder, array_type, table, arguments[1:], wraparound=False)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        signature_type = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        options = (number(option) for option in (TO_WRITE, TO_ALL_CACHES, DATA))
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), signature_type)
        builder.call(function, [builder.bitcast(address, byte), *options])
        return context.get_dummy_value()

    return types.void(table_RD, row, column), generate


@compiled()
def prefetch(table_RD, row):  # type: ignore[no-untyped-def]
    """Prefetch a row; return immediately."""
    for d in range(0, table_RD.shape[1], LINE):
        _prefetch(table_RD, row, d)  # type: ignore[call-arg]  # numba hands in the first
