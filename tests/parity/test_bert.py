"""Our BERT against `transformers.BertForPreTraining`, both heads."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.models.tiny import mean_losses, tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import (
    assert_close,
    gradient_of_table,
    random_reference,
    reference_of,
    through_a_saved_folder,
)


def test_logits_loss_and_gradient() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    theirs = reference_of(model)
    real = batch["document_ids"] > 0
    # They want a label for each position, where we have positions asked and a label for each.
    labels = torch.full_like(batch["tokens"], -100)
    rows, slots = (batch["labels"] != -100).nonzero(as_tuple=True)
    labels[rows, batch["masked_positions"][rows, slots]] = batch["labels"][rows, slots]
    out = theirs(
        input_ids=batch["tokens"],
        token_type_ids=batch["segments"],
        attention_mask=real.long(),
        labels=labels,
        next_sentence_label=batch["next_sentence"],
    )

    logits = model.logits(batch)
    assert_close(logits["mlm"][real], out.prediction_logits[real])
    assert_close(logits["next-sentence"], out.seq_relationship_logits)

    loss = mean_losses(model(batch).losses)
    assert_close(loss, out.loss)
    ours = gradient_of_table(loss, model.embed.token.weight)
    expected = gradient_of_table(out.loss, theirs.bert.embeddings.word_embeddings.weight)
    assert_close(ours[: model.spec.vocabulary], expected)
    assert ours[model.spec.vocabulary :].abs().max() == 0


def test_vectors_of_tokens_and_of_the_row_are_theirs() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    real = batch["document_ids"] > 0
    theirs = reference_of(model).bert
    out = theirs(input_ids=batch["tokens"], token_type_ids=batch["segments"], attention_mask=real.long())
    vectors_BSD = model.encode(batch)
    assert_close(vectors_BSD[real], out.last_hidden_state[real])
    pooler = model.head["next-sentence"].pooler
    assert_close(torch.tanh(pooler(vectors_BSD[:, 0])), out.pooler_output)


def test_asking_some_positions_equals_labeling_them() -> None:
    model, batch = tiny_model("bert"), tiny_batch("bert")
    labels = torch.full_like(batch["tokens"], -100)
    rows, slots = (batch["labels"] != -100).nonzero(as_tuple=True)
    labels[rows, batch["masked_positions"][rows, slots]] = batch["labels"][rows, slots]
    everywhere = {name: value for name, value in batch.items() if name != "masked_positions"} | {"labels": labels}
    loss, count = model(everywhere).losses["mlm"]
    expected, expected_count = model(batch).losses["mlm"]
    assert_close(loss, expected)
    assert count == expected_count


def test_a_model_of_theirs_comes_in_through_a_folder(tmp_path: Path) -> None:
    theirs, batch = random_reference(tiny_spec("bert")), tiny_batch("bert", rows=1)
    ours = through_a_saved_folder(theirs, tmp_path).logits(batch)
    out = theirs(input_ids=batch["tokens"], token_type_ids=batch["segments"])
    assert_close(ours["mlm"], out.prediction_logits)
    assert_close(ours["next-sentence"], out.seq_relationship_logits)
