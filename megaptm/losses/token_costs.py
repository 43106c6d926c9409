"""Bytes of the token loss (`losses.token`): vocabulary projection and cross-entropy. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.layers.table_gradient_costs import keeps_factors, table_gradient_bytes

CHUNK_BYTES = 2**29
"""Maximum bytes of the logits that the token loss computes at once.

Fewer positions mean more additions to the gradient of the table, and more kernels. Measured on two cores in bfloat16,
1024 positions of width 768 and vocabulary 50,304, forward and backward: 0.42 s in chunks of 1024, 0.49 of 512, 0.59 of
256, 0.84 of 128; plain `F.cross_entropy` 0.52 s.
"""
ALIGNMENT = 128
"""Positions of a chunk of logits are a multiple of this number: the rows of a tile in matrix products on GPUs."""
LOGIT_BYTES = {2: 2 + 8, 4: 8, 8: 8 + 8}
"""Bytes per logit of the token loss with torch operations, by element size: the logit, its softmax in float32, and its
float32 input in other formats."""


def num_rows_projected(positions: int, vocabulary: float, logit_bytes: int) -> int:
    """Return the number of positions that the token loss projects on the vocabulary at once: chunks of about equal
    size, within `CHUNK_BYTES`."""
    largest = max(ALIGNMENT, CHUNK_BYTES // int(vocabulary * logit_bytes))
    if positions <= largest:
        return max(1, positions)
    return -(-positions // -(-positions // largest) // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a token loss on one tensor rank."""

    saved: float
    """Bytes that a token loss saves until the backward pass, which follows the losses of all heads."""
    transient: float = 0.0
    """Additional bytes of a token loss during the vocabulary projection."""


def projection_bytes(
    positions: int, width: int, vocabulary: float, element: int, *, tensor: int, logit_bytes: int | None
) -> LossBytes:
    """Return the bytes of vocabulary projection and token loss for hidden states of `positions` and a table
    [vocabulary, width], on one of `tensor` ranks.

    `logit_bytes`: bytes per logit of a chunk, with temporary copies; `element` if the gradient replaces the logit.
    None: the logits of all positions are computed at once.
    """
    columns = vocabulary / tensor
    if logit_bytes is None:
        # Float32 logits, which become their softmax and its gradient in place; beside them logits, then gradient, in
        # the model's format.
        scores = positions * columns
        return LossBytes(scores * 4, 0.0 if element == 4 else scores * element)
    rows = num_rows_projected(positions, columns, logit_bytes)
    logits, several = rows * columns * logit_bytes, positions > rows
    saved = table_gradient_bytes(positions, width, columns, element, chunk=rows)
    if not several and keeps_factors(positions, width):
        logits -= rows * columns * element  # one of the two factors
    elif element != 4 and not several:
        # The gradient of the table comes after the softmax.
        logits = max(rows * columns * element, logits - saved)
    return LossBytes(saved, logits)
