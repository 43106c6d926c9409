"""SpanBERT's head for the borders of spans, and which borders there are, against numbers of the released code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS
from megaptm.bricks.heads import SpanBoundaryHeadBrick
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.huggingface import from_hugging_face
from megaptm.models.heads import build_heads
from megaptm.objectives import span_boundary
from megaptm.objectives.masked import TextSequence
from megaptm.objectives.objective import SampleContext
from megaptm.objectives.span_boundary import MAX_OFFSET, SpanBoundary
from megaptm.spec import ModelSpec, Size
from tests.models.tiny import tiny_spec
from tests.objectives.samples import SPECIAL
from tests.parity.reference import random_reference

GOLDEN = Path(__file__).parents[1] / "golden"
OURS = {
    "sbo.position_embeddings.": "span-boundary.offset.",
    "sbo.mlp_layer_norm.linear1.": "span-boundary.first.",
    "sbo.mlp_layer_norm.layer_norm1.": "span-boundary.first_norm.",
    "sbo.mlp_layer_norm.linear2.": "span-boundary.second.",
    "sbo.mlp_layer_norm.layer_norm2.": "span-boundary.second_norm.",
    "sbo.bias": "span-boundary.vocabulary.bias",
    "mlm.transform.dense.": "mlm.transform.",
    "mlm.transform.LayerNorm.": "mlm.norm.",
    "mlm.bias": "mlm.vocabulary.bias",
    "gamma": "weight",
    "beta": "bias",
}


def renamed(name: str) -> str:
    for theirs, ours in OURS.items():
        name = name.replace(theirs, ours)
    return name


def test_losses_scores_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpanBoundaryHeadBrick, "offsets", 5)
    monkeypatch.setattr(SpanBoundaryHeadBrick, "offset_width", 6)
    given = load_file(GOLDEN / "spanbert_sbo.safetensors")
    size = Size(layers=1, width=16, heads=2, ffn=20)
    spec = ModelSpec(family=CATALOGUE["spanbert"], size=size, vocabulary=31, context=12, dropout=0.0)
    heads = build_heads(spec, spec.family.heads)
    table = torch.zeros(spec.padded_vocabulary, 16)
    table[:31] = given["weight.table"]
    table.requires_grad_()
    with torch.no_grad():
        own = dict(heads.named_parameters())
        for name, value in given.items():
            if name.startswith("weight.") and name != "weight.table":
                own.pop(renamed(name.removeprefix("weight.")))[: len(value)] = value
        assert not own

    hidden = given["hidden"].clone().requires_grad_()
    left, right = given["pairs"].repeat_interleave(5, dim=1).unbind(-1)
    targets = given["targets"].flatten(1)
    batch = {
        "span_left": left,
        "span_right": right,
        "span_offset": torch.arange(5).repeat(2, 2),
        "span_labels": targets.masked_fill(targets == 0, IGNORED),
        "labels": given["mlm_targets"].masked_fill(given["mlm_targets"] == 0, IGNORED),
    }
    sbo, asked = heads["span-boundary"].loss(hidden.transpose(0, 1), batch, table)
    mlm, _ = heads["mlm"].loss(hidden.transpose(0, 1), batch, table)
    assert asked == 7
    torch.testing.assert_close(sbo, given["sbo_loss_sum"], atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(mlm, given["mlm_loss_sum"], atol=1e-5, rtol=1e-6)
    # Theirs divides the second by one more than it asks.
    (mlm / 7 + sbo / 8).backward()
    for ours, theirs in (
        (hidden.grad, given["grad_hidden"]),
        (table.grad[:31], given["grad_table"]),
        (heads["span-boundary"].offset.weight.grad, given["grad_positions"]),
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)


SPANS = json.loads((GOLDEN / "spanbert_spans.json").read_text(encoding="utf-8"))


class Given(SpanBoundary):
    """Hides what it is told."""

    places: np.ndarray

    def _hide(self, max_masked, starts):
        def hide(tokens, special, rng):
            hidden = np.zeros(len(tokens), dtype=bool)
            hidden[self.places] = True
            return hidden

        return hide


@pytest.mark.parametrize("case", SPANS["cases"], ids=lambda case: str(case["spans"]))
def test_spans_have_the_borders_and_targets_of_the_released_code(case, monkeypatch):
    monkeypatch.setattr(span_boundary, "MAX_OFFSET", SPANS["max_targets"])
    task = Given(rate=0.5)
    object.__setattr__(task, "places", np.flatnonzero(case["target"]) + 1)  # cls stands before the text
    text = np.array([SPECIAL.cls, *(200 + np.array(SPANS["sentence"])), SPECIAL.sep])
    row = TextSequence([text], [0], [len(text)])
    sample = task.mask_sequence(
        row, SampleContext(SPECIAL, np.random.default_rng(0), 24, False), np.ones(len(text), dtype=int)
    )
    found: dict[tuple[int, int], list[int]] = {}
    for left, right, offset, label in zip(
        *(sample[f"span_{name}"].tolist() for name in ("left", "right", "offset", "labels")), strict=True
    ):
        if label != IGNORED:
            targets = found.setdefault((left - 1, right - 1), [])
            assert offset == len(targets)
            targets.append(label - 200)
    expected = {(left, right): [one for one in targets if one] for left, right, *targets in case["pair_targets"]}
    assert found == expected


def test_a_model_of_bert_is_of_the_family_that_is_named(tmp_path: Path) -> None:
    theirs = random_reference(tiny_spec("bert"))
    theirs.save_pretrained(tmp_path)
    assert from_hugging_face(tmp_path).spec.name == "bert"
    assert not from_hugging_face(tmp_path, family="macbert").absent
    spanbert = from_hugging_face(tmp_path, family="spanbert")
    assert {name.split(".")[1] for name in spanbert.absent} == {"span-boundary"}
    with pytest.raises(
        UserError, match=r"model\.family \(gpt2\): .* can be imported as bert, spanbert, macbert, unilm"
    ):
        from_hugging_face(tmp_path, family="gpt2")


def test_the_head_tells_apart_as_many_places_as_are_asked_about():
    assert HEADS["span-boundary"].offsets == MAX_OFFSET  # type: ignore[attr-defined]
