"""Bytes of `losses.token`: projection on the vocabulary and cross-entropy. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from megaptm.layers.table_gradient_costs import keeps_factors, table_gradient_bytes

ROWS_PROJECTED = 1024
"""Maximum number of positions that are projected on the vocabulary at once (`losses.token`): at vocabulary 50,304 they
hold 300 MB of logits in bfloat16 and float32. Fewer positions mean more additions to the gradient of the table.
Measured on two cores in bfloat16, 1024 positions of width 768, forward and backward: 0.42 s in chunks of 1024, 0.49 of
512, 0.59 of 256, 0.84 of 128; plain `F.cross_entropy` 0.52 s."""


@dataclass(frozen=True)
class LossBytes:
    """Bytes of a token loss on one tensor rank."""

    saved: float
    """Bytes saved until the backward pass, which follows the losses of all heads."""
    transient: float = 0.0
    """Additional bytes during the projection."""


def projection_bytes(
    positions: int, width: int, vocabulary: int, element: int, *, tensor: int, chunked: bool
) -> LossBytes:
    """Return the bytes of projection and token loss for hidden states of `positions` and a table [vocabulary, width],
    on one of `tensor` ranks. `chunked`: with `losses.token`, on one tensor rank."""
    if chunked and tensor == 1:
        several = positions > ROWS_PROJECTED
        numbers = min(positions, ROWS_PROJECTED) * vocabulary
        # Softmax in float32. Other formats also need its float32 input. Later neither: the gradient of the table
        # comes afterwards, and the first positions do not have one yet.
        logits = numbers * (8 if element == 4 else element + 8)
        saved = table_gradient_bytes(positions, width, vocabulary, element, chunk=ROWS_PROJECTED)
        if not several and keeps_factors(positions, width):
            logits -= numbers * element  # one of the two factors
        elif element != 4 and not several:
            logits = max(numbers * element, logits - saved)
        return LossBytes(saved, logits)
    # Float32 logits, which become their softmax and its gradient in place; beside them logits, then gradient, in
    # the model's format.
    scores = positions * vocabulary / tensor
    return LossBytes(scores * 4, 0.0 if element == 4 else scores * element)
