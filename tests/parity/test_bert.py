"""BERT against `transformers.BertForPreTraining`, with both heads."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.models.tiny import mean_losses, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import (
    assert_close,
    make_random_reference,
    make_reference,
    save_and_import,
    scatter_labels,
    table_gradient,
)


def test_logits_loss_and_gradient_equal_hugging_face() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    reference = make_reference(model)
    real = batch["document_ids"] > 0
    out = reference(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        attention_mask=real.long(),
        labels=scatter_labels(batch),
        next_sentence_label=batch["next_sentence"],
    )

    logits = model.logits(batch)
    assert_close(logits["mlm"][real], out.prediction_logits[real])
    assert_close(logits["next-sentence"], out.seq_relationship_logits)

    loss = mean_losses(model(batch).losses)
    assert_close(loss, out.loss)
    gradient = table_gradient(loss, model.embed.token.weight)
    expected = table_gradient(out.loss, reference.bert.embeddings.word_embeddings.weight)
    assert_close(gradient[: model.spec.vocabulary], expected)
    assert gradient[model.spec.vocabulary :].abs().max() == 0


def test_hidden_states_and_pooler_output_equal_hugging_face() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    real = batch["document_ids"] > 0
    reference = make_reference(model).bert
    out = reference(input_ids=batch["tokens"], token_type_ids=batch["segments"], attention_mask=real.long())
    vectors_BSD = model.encode(batch)
    assert_close(vectors_BSD[real], out.last_hidden_state[real])
    pooler = model.head["next-sentence"].pooler
    assert_close(torch.tanh(pooler(vectors_BSD[:, 0])), out.pooler_output)


def test_loss_of_target_positions_equals_loss_of_labels_everywhere() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    everywhere = {name: value for name, value in batch.items() if name != "masked_positions"}
    loss, count = model(everywhere | {"labels": scatter_labels(batch)}).losses["mlm"]
    expected, expected_count = model(batch).losses["mlm"]
    assert_close(loss, expected)
    assert count == expected_count


def test_both_heads_are_imported(tmp_path: Path) -> None:
    reference, batch = make_random_reference(tiny_spec("bert")), tiny_batch("bert", rows=1)
    logits = save_and_import(reference, tmp_path).logits(batch)
    out = reference(input_ids=batch["tokens"], token_type_ids=batch["segments"])
    assert_close(logits["mlm"], out.prediction_logits)
    assert_close(logits["next-sentence"], out.seq_relationship_logits)
