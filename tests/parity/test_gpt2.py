"""Our GPT-2 and GPT-3 against `transformers.GPT2LMHeadModel`."""

from __future__ import annotations

import torch

from tests.models.tiny import tiny_batch, tiny_model
from tests.parity.reference import (
    reference_of,
)


def test_in_bfloat16_both_stray_alike() -> None:
    """Ours in bfloat16 is no further from fp32 than twice theirs is."""
    model, batch = tiny_model("gpt2"), tiny_batch("gpt2", rows=1)
    theirs = reference_of(model)
    exact = theirs(input_ids=batch["tokens"]).logits
    stray = (theirs.bfloat16()(input_ids=batch["tokens"]).logits.float() - exact).abs().max()
    ours = (model.to(torch.bfloat16).logits(batch)["lm"].float() - exact).abs().max()
    assert 0 < ours < 2 * stray
