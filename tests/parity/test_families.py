"""PARITY: each family against the model of Hugging Face's that computes the same, in logits and in every gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from megaptm.families import CATALOGUE, RECURRENT, VISION
from megaptm.hub.counterparts import hugging_face_models
from tests.models.tiny import has_counterpart, tiny_batch, tiny_spec
from tests.parity.families_page import PAGE, RECORD, page
from tests.parity.reference import assert_close, differences, inputs_of, random_reference, through_a_saved_folder

FAMILIES = [name for name in CATALOGUE if has_counterpart(name)]
COMPARED = [name for name in CATALOGUE if has_counterpart(name, with_decoder=False)]


@pytest.mark.parametrize("family", COMPARED)
def test_logits_loss_and_every_gradient(family: str) -> None:
    assert max(differences(family)) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_of_theirs_comes_in_through_a_folder(family: str, tmp_path: Path) -> None:
    theirs, batch = random_reference(tiny_spec(family)), tiny_batch(family, rows=1)
    ours = through_a_saved_folder(theirs, tmp_path)
    assert_close(ours.logits(batch)[CATALOGUE[family].heads[0]], theirs(**inputs_of(family, batch))[0])


def test_the_page_of_families_is_what_tables_and_records_say() -> None:
    """Else: `python -m tests.parity.families_page`; with `--measure` where a family is new."""
    assert PAGE.read_text(encoding="utf-8") == page()
    recorded = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    assert {*recorded} == {*CATALOGUE, *RECURRENT, *VISION}
    of_images = {name for name, family in VISION.items() if hugging_face_models(family)}
    assert {name for name, seen in recorded.items() if "from" not in seen} == {*COMPARED, *of_images}
