"""Logits and gradients of each family equal those of its Hugging Face model."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import hugging_face_models
from tests.families.groups import RECURRENT, VISION
from tests.models.tiny import has_counterpart, tiny_batch, tiny_spec
from tests.parity.families_page import PAGE, RECORD, render_page
from tests.parity.reference import assert_close, convert_inputs, differences, make_random_reference, save_and_import

FAMILIES = [name for name in CATALOGUE if has_counterpart(name)]
COMPARED = [name for name in CATALOGUE if has_counterpart(name, with_decoder=False)]


@pytest.mark.parametrize("family", COMPARED)
def test_logits_loss_and_gradients_equal_hugging_face(family: str) -> None:
    assert max(differences(family)) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_hugging_face_model_is_imported(family: str, tmp_path: Path) -> None:
    reference, batch = make_random_reference(tiny_spec(family)), tiny_batch(family, rows=1)
    model = save_and_import(reference, tmp_path)
    assert_close(model.logits(batch)[CATALOGUE[family].heads[0]], reference(**convert_inputs(family, batch))[0])


def test_families_page_is_up_to_date() -> None:
    """Remedy: `python -m tests.parity.families_page`, with `--measure` for a new family."""
    assert PAGE.read_text(encoding="utf-8") == render_page()
    recorded = yaml.safe_load(RECORD.read_text(encoding="utf-8"))
    assert {*recorded} == {*CATALOGUE, *RECURRENT, *VISION}
    vision = {name for name, family in VISION.items() if hugging_face_models(family)}
    assert {name for name, values in recorded.items() if "from" not in values} == {*COMPARED, *vision}
