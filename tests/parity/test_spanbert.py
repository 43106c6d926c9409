"""SpanBERT's span boundary head and spans against golden values of the released code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from megaptm.batch import IGNORED
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.families.spanbert import objectives as span_boundary
from megaptm.families.spanbert.head_costs import SpanBoundaryHeadCosts
from megaptm.families.spanbert.objectives import MAX_OFFSET, SpanBoundary
from megaptm.hub.huggingface import from_hugging_face
from megaptm.models.head_costs import HEADS
from megaptm.models.heads import build_heads
from megaptm.objectives.masked import TextSequence
from megaptm.objectives.objective import SampleContext
from megaptm.spec import ModelSpec, Size
from tests.models.tiny import tiny_spec
from tests.objectives.samples import SPECIAL
from tests.parity.reference import make_random_reference

GOLDEN = Path(__file__).parents[1] / "golden"
RENAMES = {
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


def rename(name: str) -> str:
    for old, new in RENAMES.items():
        name = name.replace(old, new)
    return name


def test_losses_and_gradients_equal_released_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpanBoundaryHeadCosts, "offsets", 5)
    monkeypatch.setattr(SpanBoundaryHeadCosts, "offset_width", 6)
    golden = load_file(GOLDEN / "spanbert_sbo.safetensors")
    size = Size(layers=1, width=16, heads=2, ffn=20)
    spec = ModelSpec(family=CATALOGUE["spanbert"], size=size, vocabulary=31, context=12, dropout=0.0)
    heads = build_heads(spec, spec.family.heads)
    table = torch.zeros(spec.padded_vocabulary, 16)
    table[:31] = golden["weight.table"]
    table.requires_grad_()
    with torch.no_grad():
        parameters = dict(heads.named_parameters())
        for name, value in golden.items():
            if name.startswith("weight.") and name != "weight.table":
                parameters.pop(rename(name.removeprefix("weight.")))[: len(value)] = value
        assert not parameters

    hidden = golden["hidden"].clone().requires_grad_()
    start, end = golden["pairs"].repeat_interleave(5, dim=1).unbind(-1)
    targets = golden["targets"].flatten(1)
    batch = {
        "span_left": start,
        "span_right": end,
        "span_offset": torch.arange(5).repeat(2, 2),
        "span_labels": targets.masked_fill(targets == 0, IGNORED),
        "labels": golden["mlm_targets"].masked_fill(golden["mlm_targets"] == 0, IGNORED),
    }
    sbo, num_labels = heads["span-boundary"].loss(hidden.transpose(0, 1), batch, table)
    mlm, _ = heads["mlm"].loss(hidden.transpose(0, 1), batch, table)
    assert num_labels == 7
    torch.testing.assert_close(sbo, golden["sbo_loss_sum"], atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(mlm, golden["mlm_loss_sum"], atol=1e-5, rtol=1e-6)
    # The released code divides the second loss by one more than its number of labels.
    (mlm / 7 + sbo / 8).backward()
    torch.testing.assert_close(hidden.grad, golden["grad_hidden"], atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(table.grad[:31], golden["grad_table"], atol=1e-6, rtol=1e-4)
    offset_gradient = heads["span-boundary"].offset.weight.grad
    torch.testing.assert_close(offset_gradient, golden["grad_positions"], atol=1e-6, rtol=1e-4)


SPANS = json.loads((GOLDEN / "spanbert_spans.json").read_text(encoding="utf-8"))


class FixedPositions(SpanBoundary):
    """Objective that masks fixed positions."""

    positions: np.ndarray

    def _hide(self, max_masked, word_starts):
        def hide(tokens, special, rng):
            masked = np.zeros(len(tokens), dtype=bool)
            masked[self.positions] = True
            return masked

        return hide


@pytest.mark.parametrize("case", SPANS["cases"], ids=lambda case: str(case["spans"]))
def test_spans_equal_released_code(case, monkeypatch):
    monkeypatch.setattr(span_boundary, "MAX_OFFSET", SPANS["max_targets"])
    task = FixedPositions(rate=0.5)
    object.__setattr__(task, "positions", np.flatnonzero(case["target"]) + 1)  # cls precedes the text
    text = np.array([SPECIAL.cls, *(200 + np.array(SPANS["sentence"])), SPECIAL.sep])
    row = TextSequence([text], [0], [len(text)])
    sample = task.mask_sequence(
        row, SampleContext(SPECIAL, np.random.default_rng(0), 24, False), np.ones(len(text), dtype=int)
    )
    targets_by_span: dict[tuple[int, int], list[int]] = {}
    for start, end, offset, label in zip(
        *(sample[f"span_{name}"].tolist() for name in ("left", "right", "offset", "labels")), strict=True
    ):
        if label != IGNORED:
            targets = targets_by_span.setdefault((start - 1, end - 1), [])
            assert offset == len(targets)
            targets.append(label - 200)
    expected = {(start, end): [target for target in targets if target] for start, end, *targets in case["pair_targets"]}
    assert targets_by_span == expected


def test_bert_model_is_imported_as_configured_family(tmp_path: Path) -> None:
    make_random_reference(tiny_spec("bert")).save_pretrained(tmp_path)
    assert from_hugging_face(tmp_path).spec.name == "bert"
    assert not from_hugging_face(tmp_path, family="macbert").absent
    spanbert = from_hugging_face(tmp_path, family="spanbert")
    assert {name.split(".")[1] for name in spanbert.absent} == {"span-boundary"}
    with pytest.raises(
        UserError, match=r"model\.family \(gpt2\): .* can be imported as bert, spanbert, macbert, unilm"
    ):
        from_hugging_face(tmp_path, family="gpt2")


def test_head_has_maximum_number_of_offsets():
    assert HEADS["span-boundary"].offsets == MAX_OFFSET  # type: ignore[attr-defined]
