"""DeBERTa's mask decoder against the released code, and exports to `transformers`, which has no mask decoder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from megaptm.errors import UserError
from megaptm.families.deberta import DEBERTA, DEBERTA_V2
from megaptm.families.deberta.attention import distance_rows
from megaptm.families.deberta.huggingface import DEBERTA_V2 as COUNTERPART
from megaptm.families.deberta.spec import DisentangledSpec
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config, to_hugging_face
from megaptm.hub.tensor_rules import VOCABULARY, TensorRule, export_weights, import_weights, weight_and_bias
from megaptm.models.model import Model
from megaptm.spec import Family, ModelSpec, SegmentInput, Size, TokenInput, change
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import assert_close, build_with_weights, convert_inputs, replace_mask_decoder

GOLDEN = Path(__file__).parents[1] / "golden"


def change_layers(family: Family, **changes: object) -> Family:
    return change(family, stacks={"encoder": change(family.last_block, **changes)})


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_exported_model_encodes_the_same_and_is_imported(family: str, tmp_path: Path) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, None, tmp_path / "out")
    reference, info = getattr(transformers, find_counterpart(model.spec).model).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        assert_close(model.encode(batch), reference.eval().base_model(**convert_inputs(family, batch))[0])
        expected_logits = reference(**convert_inputs(family, batch)).logits
        assert_close(replace_mask_decoder(model).logits(batch)["mlm"], expected_logits)
    imported = from_hugging_face(tmp_path / "out")
    assert imported.spec.family == model.spec.family
    assert imported.weights.keys() == weights.keys()
    assert all(imported.weights[name].equal(weight) for name, weight in weights.items())
    reference.save_pretrained(tmp_path / "reference")  # without the position table of the mask decoder
    again = from_hugging_face(tmp_path / "reference")
    assert not again.absent
    logits = build_with_weights(again.spec, again.weights).logits(batch)["mlm"]
    assert_close(logits, reference(**convert_inputs(family, batch)).logits)


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_released_config_is_read(family: str) -> None:
    """Released files have `pos_att_type` as a text, transformers writes a list."""
    spec = replace(tiny_spec(family), context=512)
    config = hugging_face_config(spec).to_dict() | {"max_relative_positions": -1, "pos_att_type": "p2c|c2p"}
    assert describe_config(config)[1].size == spec.size
    with pytest.raises(UserError, match="pos_att_type is 'p2p'"):
        describe_config(config | {"pos_att_type": "p2p"})
    with pytest.raises(UserError, match="position_biased_input is True"):
        describe_config(config | {"position_biased_input": True})


def golden_rules(case: str) -> tuple[TensorRule, ...]:
    """Return rules for the released code, whose class has the projection names of version 2 for both versions."""
    attention = "deberta.encoder.layer.{n}.attention.self"
    rows = [row for row in COUNTERPART.rules if not row.name.startswith("head")]
    if case != "v2":
        rows = [row for row in rows if not row.name.startswith(("encoder.distance_norm", "encoder.convolution"))]
        rows += weight_and_bias("encoder.{n}.attention.position_key", f"{attention}.pos_key_proj")
        rows += weight_and_bias("encoder.{n}.attention.position_query", f"{attention}.pos_query_proj")
    if case == "v1_short_span":
        rows.append(TensorRule("embed.segment.weight", ("deberta.embeddings.token_type_embeddings.weight",)))
    if case == "plain_positions":
        rows.append(TensorRule("embed.position.weight", ("deberta.embeddings.position_embeddings.weight",)))
    head = "lm_predictions.lm_head"
    rows += weight_and_bias("head.mlm.transform", f"{head}.dense")
    rows += weight_and_bias("head.mlm.norm", f"{head}.LayerNorm")
    return (*rows, TensorRule("head.mlm.vocabulary.bias", (f"{head}.bias",), VOCABULARY))


def golden_spec(case: str) -> ModelSpec:
    first = {"attention": {"bias": True, "max_distance": 16}}
    # With positions at the input, the released code has no mask decoder.
    changes = {
        "v1": first,
        "v1_short_span": {"attention": {"bias": True, "max_distance": 4}},
        "plain_positions": {"attention": first["attention"] | {"mask_decoder": False}, "position": "learned"},
        "v2": {"attention": {"max_distance": 16, "num_distance_buckets": 4}},
    }
    family = change_layers(DEBERTA_V2 if case == "v2" else DEBERTA, **changes[case])
    if case == "v1_short_span":
        family = change(family, inputs=(TokenInput(), SegmentInput(rows=2)))
    size = Size(layers=3, width=24, heads=3, ffn=32)
    return ModelSpec(family=family, size=size, vocabulary=53, context=16, dropout=0.0)


@pytest.mark.parametrize("case", ["v1", "v1_short_span", "plain_positions", "v2"])
def test_mask_decoder_equals_released_code(case: str) -> None:
    golden, spec = load_file(GOLDEN / f"deberta_{case}.safetensors"), golden_spec(case)
    released = {name.removeprefix("weight."): value for name, value in golden.items() if name.startswith("weight.")}
    weights, missing = import_weights(golden_rules(case), spec, released)
    assert not missing
    model = build_with_weights(spec, weights)
    is_target = golden["labels"] > 0
    batch = {"tokens": golden["ids"], "document_ids": golden["mask"]}
    if case == "v1_short_span":
        batch["segments"] = torch.zeros_like(golden["ids"])
    assert_close(model.encode(batch)[golden["mask"] > 0], golden["layers"][golden["mask"] > 0])
    assert_close(model.logits(batch)["mlm"][is_target], golden["logits"])

    loss, count = model({**batch, "labels": golden["labels"].masked_fill(~is_target, -100)}).losses["mlm"]
    torch.testing.assert_close(loss / count, golden["losses"].mean(), rtol=0, atol=1e-5)
    (loss / count).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    exported = export_weights(golden_rules(case), spec, gradients)
    expected = {name.removeprefix("grad."): value for name, value in golden.items() if name.startswith("grad.")}
    assert len(expected) >= 8
    for name, gradient in expected.items():
        torch.testing.assert_close(exported[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_distances_are_clamped_to_the_table() -> None:
    falling, rising = distance_rows(6, DisentangledSpec(max_distance=4))
    assert falling.tolist() == [7, 7, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0, *4 * [0]]
    assert rising.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, *4 * [7]]


def test_distance_buckets_equal_hugging_face() -> None:
    bins = make_log_bucket_position(torch.arange(1099, -1100, -1), 256, 512)
    falling, rising = distance_rows(1100, DisentangledSpec(max_distance=512, num_distance_buckets=256))
    assert falling[:2199].equal((bins + 256).clamp(0, 511).long())
    assert rising[:2199].equal(falling[:2199].flip(0))


def test_only_the_mask_decoder_uses_absolute_positions() -> None:
    model, batch = tiny_model("deberta"), tiny_batch("deberta", rows=1)
    moved = {**batch, "positions": torch.arange(12)[None] + 7}
    with torch.no_grad():
        assert_close(model.encode(moved), model.encode(batch))
        assert (model.logits(moved)["mlm"] - model.logits(batch)["mlm"]).abs().max() > 1e-2


def test_convolution_stays_within_documents() -> None:
    model = tiny_model("deberta-v2")
    tokens = tiny_batch("deberta-v2", rows=1)["tokens"]
    documents = torch.tensor([[1] * 5 + [2] * 7])
    packed = {"tokens": tokens, "document_ids": documents, "positions": torch.tensor([[*range(5), *range(7)]])}

    with torch.no_grad():
        unpacked = [model.encode({"tokens": tokens[:, span]}) for span in (slice(0, 5), slice(5, 12))]
        assert_close(model.encode(packed), torch.cat(unpacked, 1))


def test_last_layer_is_the_mask_decoder() -> None:
    assert Model(tiny_spec("deberta-v2")).stack("encoder").decodes
