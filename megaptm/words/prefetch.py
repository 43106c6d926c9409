"""Prefetching of table rows from memory."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from megaptm.words.compiled import compiled

LINE = 16
"""float32 values of a cache line: 64 bytes on most processors."""
TO_WRITE, TO_ALL_CACHES, DATA = 1, 3, 1
"""Arguments of LLVM's `llvm.prefetch`."""


@intrinsic
def _prefetch(context: Any, table_RD: Any, row: Any, at: Any) -> Any:
    """Emit LLVM's prefetch instruction, which numba does not offer. It never fails, whatever the address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        table = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, table, arguments[1:], wraparound=False)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        called = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        how = (number(option) for option in (TO_WRITE, TO_ALL_CACHES, DATA))
        function = builder.module.declare_intrinsic("llvm.prefetch", (byte,), called)
        builder.call(function, [builder.bitcast(place, byte), *how])
        return context.get_dummy_value()

    return types.void(table_RD, row, at), generate


@compiled()
def prefetch(table_RD, row):  # type: ignore[no-untyped-def]
    """Prefetch a row; return immediately."""
    for d in range(0, table_RD.shape[1], LINE):
        _prefetch(table_RD, row, d)  # type: ignore[call-arg]  # numba hands in the first
