"""DeBERTa: its mask decoder as in the released code, and what `transformers`, which has none, makes of an export."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from megaptm.errors import UserError
from megaptm.families.deberta import DEBERTA, DEBERTA_V2
from megaptm.families.deberta.huggingface import DEBERTA_V2 as COUNTERPART
from megaptm.hub.counterparts import find_counterpart
from megaptm.hub.huggingface import describe_config, from_hugging_face, hugging_face_config, to_hugging_face
from megaptm.hub.tensor_rules import VOCABULARY, TensorRule, export_weights, import_weights, pair
from megaptm.layers.disentangled import distance_rows
from megaptm.models import build_model
from megaptm.spec import DisentangledSpec, Family, ModelSpec, Size, change
from tests.models.tiny import tiny_batch, tiny_model, tiny_spec
from tests.parity.reference import assert_close, inputs_of, model_of, without_decoder

GOLDEN = Path(__file__).parents[1] / "golden"


def with_layer(family: Family, **words: object) -> Family:
    return change(family, stacks={"encoder": change(family.last_block, **words)})


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_an_exported_folder_encodes_the_same_and_comes_back(family: str, tmp_path: Path) -> None:
    model, batch = tiny_model(family), tiny_batch(family, rows=1)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    to_hugging_face(model.spec, weights, None, tmp_path / "out")
    theirs, info = getattr(transformers, find_counterpart(model.spec).model).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        assert_close(model.encode(batch), theirs.eval().base_model(**inputs_of(family, batch))[0])
        assert_close(without_decoder(model).logits(batch)["mlm"], theirs(**inputs_of(family, batch)).logits)
    found = from_hugging_face(tmp_path / "out")
    assert found.spec.family == model.spec.family
    assert found.weights.keys() == weights.keys()
    assert all(found.weights[name].equal(weight) for name, weight in weights.items())
    theirs.save_pretrained(tmp_path / "theirs")  # which has no table of places
    again = from_hugging_face(tmp_path / "theirs")
    assert not again.absent
    assert_close(model_of(again.spec, again.weights).logits(batch)["mlm"], theirs(**inputs_of(family, batch)).logits)


@pytest.mark.parametrize("family", ["deberta", "deberta-v2"])
def test_a_config_as_it_was_released_is_understood(family: str) -> None:
    """As the file has it: a config that was made of it has a list in the place of the words."""
    spec = replace(tiny_spec(family), context=512)
    config = hugging_face_config(spec).to_dict() | {"max_relative_positions": -1, "pos_att_type": "p2c|c2p"}
    assert describe_config(config)[1].size == spec.size
    with pytest.raises(UserError, match="pos_att_type is 'p2p'"):
        describe_config(config | {"pos_att_type": "p2p"})
    with pytest.raises(UserError, match="position_biased_input is True"):
        describe_config(config | {"position_biased_input": True})


def golden_rows(case: str) -> tuple[TensorRule, ...]:
    """Both versions are of one class there, which names projections as the second."""
    attention = "deberta.encoder.layer.{n}.attention.self"
    rows = [row for row in COUNTERPART.rules if not row.name.startswith("head")]
    if case != "v2":
        rows = [row for row in rows if not row.name.startswith(("encoder.distance_norm", "encoder.convolution"))]
        rows += pair("encoder.{n}.attention.position_key", f"{attention}.pos_key_proj")
        rows += pair("encoder.{n}.attention.position_query", f"{attention}.pos_query_proj")
    if case == "v1_short_span":
        rows.append(TensorRule("embed.segment.weight", ("deberta.embeddings.token_type_embeddings.weight",)))
    if case == "plain_positions":
        rows.append(TensorRule("embed.position.weight", ("deberta.embeddings.position_embeddings.weight",)))
    head = "lm_predictions.lm_head"
    rows += pair("head.mlm.transform", f"{head}.dense")
    rows += pair("head.mlm.norm", f"{head}.LayerNorm")
    return (*rows, TensorRule("head.mlm.vocabulary.bias", (f"{head}.bias",), VOCABULARY))


def golden_spec(case: str) -> ModelSpec:
    first = {"attention": {"bias": True, "max_distance": 16}}
    # With places at the input the released code has no mask decoder.
    words = {
        "v1": first,
        "v1_short_span": {"attention": {"bias": True, "max_distance": 4}},
        "plain_positions": first | {"position": "learned", "last_layer": "once"},
        "v2": {"attention": {"max_distance": 16, "num_distance_buckets": 4}},
    }
    family = with_layer(DEBERTA_V2 if case == "v2" else DEBERTA, **words[case])
    if case == "v1_short_span":
        family = change(family, inputs=("token", "segment"), segments=2)
    size = Size(layers=3, width=24, heads=3, ffn=32)
    return ModelSpec(family=family, size=size, vocabulary=53, context=16, dropout=0.0)


@pytest.mark.parametrize("case", ["v1", "v1_short_span", "plain_positions", "v2"])
def test_the_mask_decoder_is_that_of_the_released_code(case: str) -> None:
    golden, spec = load_file(GOLDEN / f"deberta_{case}.safetensors"), golden_spec(case)
    theirs = {name.removeprefix("weight."): value for name, value in golden.items() if name.startswith("weight.")}
    weights, missing = import_weights(golden_rows(case), spec, theirs)
    assert not missing
    model = model_of(spec, weights)
    asked = golden["labels"] > 0
    batch = {"tokens": golden["ids"], "document_ids": golden["mask"]}
    if case == "v1_short_span":
        batch["segments"] = torch.zeros_like(golden["ids"])
    assert_close(model.encode(batch)[golden["mask"] > 0], golden["layers"][golden["mask"] > 0])
    assert_close(model.logits(batch)["mlm"][asked], golden["logits"])

    loss, count = model({**batch, "labels": golden["labels"].masked_fill(~asked, -100)}).losses["mlm"]
    torch.testing.assert_close(loss / count, golden["losses"].mean(), rtol=0, atol=1e-5)
    (loss / count).backward()
    ours = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients = export_weights(golden_rows(case), spec, ours)
    wanted = {name.removeprefix("grad."): value for name, value in golden.items() if name.startswith("grad.")}
    assert len(wanted) >= 8
    for name, gradient in wanted.items():
        torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_distances_beyond_the_table_are_its_last() -> None:
    rows = distance_rows(12, DisentangledSpec(max_distance=4))
    assert rows[5].tolist() == [7, 7, 7, 6, 5, 4, 3, 2, 1, 0, 0, 0]
    assert all(rows.diagonal(offset).unique().numel() == 1 for offset in range(-11, 12))


def test_distances_fall_in_the_same_bins() -> None:
    places = torch.arange(1100)
    bins = make_log_bucket_position(places[:, None] - places, 256, 512)
    rows = distance_rows(len(places), DisentangledSpec(max_distance=512, num_distance_buckets=256))
    assert rows.equal((bins + 256).clamp(0, 511).long())


def test_an_encoded_text_does_not_know_where_it_stands() -> None:
    """Only the mask decoder does: the encoder knows distances alone."""
    model, batch = tiny_model("deberta"), tiny_batch("deberta", rows=1)
    moved = {**batch, "positions": torch.arange(12)[None] + 7}
    with torch.no_grad():
        assert_close(model.encode(moved), model.encode(batch))
        assert (model.logits(moved)["mlm"] - model.logits(batch)["mlm"]).abs().max() > 1e-2


def test_a_convolution_does_not_reach_into_another_document() -> None:
    model = tiny_model("deberta-v2")
    tokens = tiny_batch("deberta-v2", rows=1)["tokens"]
    documents = torch.tensor([[1] * 5 + [2] * 7])
    packed = {"tokens": tokens, "document_ids": documents, "positions": torch.tensor([[*range(5), *range(7)]])}

    def alone(span: slice) -> Tensor:
        return model.encode({"tokens": tokens[:, span]})

    with torch.no_grad():
        assert_close(model.encode(packed), torch.cat([alone(slice(0, 5)), alone(slice(5, 12))], 1))


def test_the_last_layer_decodes_masks() -> None:
    assert build_model(tiny_spec("deberta-v2")).stack("encoder").decodes
