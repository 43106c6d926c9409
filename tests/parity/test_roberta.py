"""RoBERTa against `transformers.RobertaForMaskedLM`, whose positions start after the id of the pad token."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from megaptm.errors import UserError
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.tokenizers import train_tokenizer_on_texts
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import assert_close, make_random_reference, make_reference

PAD = 1


def test_positions_of_padded_sequences_equal_hugging_face() -> None:
    model, batch = tiny_model("roberta"), tiny_batch("roberta")
    real = batch["document_ids"] > 0
    batch["tokens"][~real] = PAD
    output = make_reference(model)(input_ids=batch["tokens"], attention_mask=real.long())
    assert_close(model.logits(batch)["mlm"][real], output.logits[real])


def test_pooler_is_not_imported(tmp_path: Path) -> None:
    """Pre-training does not use the pooler of `RobertaModel`."""
    config = make_random_reference(tiny_spec("roberta")).config
    transformers.RobertaModel(config).save_pretrained(tmp_path)
    assert {name.split(".")[1] for name in from_hugging_face(tmp_path).absent} == {"mlm"}


def test_other_pad_token_id_is_rejected(tmp_path: Path) -> None:
    """Another id would move all positions."""
    train_tokenizer_on_texts("wordpiece", ["the cat sat on the mat " * 50], vocabulary=60).save(tmp_path / "tokenizer")
    model = tiny_model("roberta")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with pytest.raises(UserError, match="pad_token_id is 0, but roberta has 1"):
        to_hugging_face(model.spec, weights, tmp_path / "tokenizer", tmp_path / "out")
    reference = make_random_reference(model.spec)
    reference.config.pad_token_id = 3
    with pytest.raises(UserError, match=r"config.json: pad_token_id is 3, but roberta has 1"):
        from_hugging_face(reference)
