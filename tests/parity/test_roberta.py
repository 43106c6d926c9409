"""Our RoBERTa against `transformers.RobertaForMaskedLM`, which counts places from the pad token's id on."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from megaptm.errors import UserError
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.tokenizers import train
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import assert_close, random_reference, reference_of

PAD = 1


def test_rows_that_are_padded_have_their_places_by_the_pad_token() -> None:
    model, batch = tiny_model("roberta"), tiny_batch("roberta")
    real = batch["document_ids"] > 0
    batch["tokens"][~real] = PAD
    theirs = reference_of(model)(input_ids=batch["tokens"], attention_mask=real.long())
    assert_close(model.logits(batch)["mlm"][real], theirs.logits[real])


def test_a_pooler_that_no_pretraining_uses_is_left_behind(tmp_path: Path) -> None:
    whole = random_reference(tiny_spec("roberta"))
    transformers.RobertaModel(whole.config).save_pretrained(tmp_path)
    assert {name.split(".")[1] for name in from_hugging_face(tmp_path).absent} == {"mlm"}


def test_a_tokenizer_that_pads_with_another_id_would_move_all_places(tmp_path: Path) -> None:
    train("wordpiece", ["the cat sat on the mat " * 50], vocabulary=60).save(tmp_path / "tokenizer")
    model = tiny_model("roberta")
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    with pytest.raises(UserError, match="pad_token_id is 0, but roberta has 1"):
        to_hugging_face(model.spec, weights, tmp_path / "tokenizer", tmp_path / "out")
    theirs = random_reference(model.spec)
    theirs.config.pad_token_id = 3
    with pytest.raises(UserError, match=r"config.json: pad_token_id is 3, but roberta has 1"):
        from_hugging_face(theirs)
