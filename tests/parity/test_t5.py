"""Our T5 against `transformers.T5ForConditionalGeneration`."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from transformers.models.t5.modeling_t5 import T5Attention

from megaptm.layers.positions import bias_buckets
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import (
    assert_close,
    gradient_of_table,
    random_reference,
    reference_of,
    through_a_saved_folder,
)


def test_logits_loss_and_gradient() -> None:
    model, batch = tiny_model("t5"), tiny_batch("t5")
    theirs = reference_of(model)
    real = batch["decoder_document_ids"] > 0
    logits = theirs(
        input_ids=batch["tokens"],
        attention_mask=(batch["document_ids"] > 0).long(),
        decoder_input_ids=batch["decoder_tokens"],
        decoder_attention_mask=real.long(),
    ).logits

    assert_close(model.logits(batch)["lm"][real], logits[real])

    expected = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
    loss, count = model(batch)["lm"]
    assert_close(loss / count, expected)
    ours = gradient_of_table(loss / count, model.embed.token.weight)
    assert_close(ours[: model.spec.vocabulary], gradient_of_table(expected, theirs.shared.weight))
    assert ours[model.spec.vocabulary :].abs().max() == 0


def test_a_model_of_theirs_comes_in_through_a_folder(tmp_path: Path) -> None:
    theirs, batch = random_reference(tiny_spec("t5")), tiny_batch("t5", rows=1)
    ours = through_a_saved_folder(theirs, tmp_path)
    logits = theirs(input_ids=batch["tokens"], decoder_input_ids=batch["decoder_tokens"]).logits
    assert_close(ours.logits(batch)["lm"], logits)


def test_distances_fall_in_the_same_buckets() -> None:
    distances = torch.arange(700)[None, :] - torch.arange(300)[:, None]
    for bidirectional in (True, False):
        expected = T5Attention._relative_position_bucket(distances, bidirectional, 32, 128)
        assert bias_buckets(300, 700, bidirectional=bidirectional).equal(expected)
