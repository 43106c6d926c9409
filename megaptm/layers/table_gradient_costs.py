"""Bytes that the gradient of a vocabulary table takes (`layers.table_gradient`). No torch."""

from __future__ import annotations


def keeps_factors(rows: int, width: int) -> bool:
    """Whether the two factors of a table gradient, [rows, V] and [rows, width], are saved instead of their product:
    they are not much larger. `rows`: positions that are projected at once."""
    return rows <= 2 * width


def table_gradient_bytes(rows: int, inputs: int, outputs: float, element: int, *, chunk: int) -> float:
    """Return the bytes saved for the gradient of a table [outputs, inputs] until the backward pass. `chunk`: rows that
    are projected at once.

    They are the two factors or their product, which is in float32 if it is the sum of several.
    """
    if rows > chunk:
        return outputs * inputs * 4
    return (rows * (outputs + inputs) if keeps_factors(rows, inputs) else outputs * inputs) * element
