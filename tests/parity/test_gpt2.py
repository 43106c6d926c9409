"""GPT-2 against `transformers.GPT2LMHeadModel` in bfloat16."""

from __future__ import annotations

import torch

from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import (
    make_reference,
)


def test_bfloat16_error_is_similar_to_hugging_face() -> None:
    """The error relative to fp32 is less than twice that of transformers."""
    model, batch = tiny_model("gpt2"), tiny_batch("gpt2", rows=1)
    reference = make_reference(model)
    exact = reference(input_ids=batch["tokens"]).logits
    reference_error = (reference.bfloat16()(input_ids=batch["tokens"]).logits.float() - exact).abs().max()
    error = (model.to(torch.bfloat16).logits(batch)["lm"].float() - exact).abs().max()
    assert 0 < error < 2 * reference_error
