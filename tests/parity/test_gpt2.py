"""Our GPT-2 and GPT-3 against `transformers.GPT2LMHeadModel`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import (
    assert_close,
    gradient_of_table,
    random_reference,
    reference_of,
    through_a_saved_folder,
)


@pytest.mark.parametrize("family", ["gpt2", "gpt3"])
def test_logits_loss_and_gradient(family: str) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    theirs = reference_of(model)
    real = batch["document_ids"] > 0
    logits = theirs(input_ids=batch["tokens"], attention_mask=real.long()).logits

    assert_close(model.logits(batch)["lm"][real], logits[real])

    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss, count = model(batch)["lm"]
    assert_close(loss / count, expected)
    ours = gradient_of_table(loss / count, model.embed.token.weight)
    assert_close(ours[: model.spec.vocabulary], gradient_of_table(expected, theirs.transformer.wte.weight))
    assert ours[model.spec.vocabulary :].abs().max() == 0


def test_a_model_of_theirs_comes_in_through_a_folder(tmp_path: Path) -> None:
    theirs, batch = random_reference(tiny_spec("gpt2")), tiny_batch("gpt2", rows=1)
    ours = through_a_saved_folder(theirs, tmp_path)
    assert_close(ours.logits(batch)["lm"], theirs(input_ids=batch["tokens"]).logits)


def test_in_bfloat16_both_stray_alike() -> None:
    """Ours in bfloat16 is no further from fp32 than twice theirs is."""
    model, batch = tiny_model("gpt2"), tiny_batch("gpt2", rows=1)
    theirs = reference_of(model)
    exact = theirs(input_ids=batch["tokens"]).logits
    stray = (theirs.bfloat16()(input_ids=batch["tokens"]).logits.float() - exact).abs().max()
    ours = (model.to(torch.bfloat16).logits(batch)["lm"].float() - exact).abs().max()
    assert 0 < ours < 2 * stray
