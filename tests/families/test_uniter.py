"""UNITER: parameter count, equality with BERT and the released code, losses by their formulas, attention, and
configs."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.config import load_config, resolve_model
from megaptm.config.model import with_resolved_model
from megaptm.errors import UserError
from megaptm.families.bert.huggingface import MASKED, encoder_rules
from megaptm.families.uniter import UNITER
from megaptm.families.uniter.spec import MASKED_REGION, RegionInput
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.import_run import complete_weights
from megaptm.hub.tensor_rules import TensorRule, import_weights, weight_and_bias
from megaptm.models.initial import init_weights
from megaptm.models.model import Model, even_chunks
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, SegmentInput, Size, TokenInput, change, published_spec
from tests.models.regions import (
    CLASSES,
    FEATURES,
    REGIONS,
    TEXT,
    UNITER_ALL_HEADS,
    tiny_uniter,
    uniter_batch,
    uniter_model,
)
from tests.models.test_parts import assert_parts_equal_model
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import build_with_weights, convert_inputs, make_random_reference

CONFIGS = Path(__file__).parents[2] / "configs/uniter"
GOLDEN = Path(__file__).parents[1] / "golden/uniter_losses.safetensors"
IMAGES = "uniter.img_embeddings"
RULES = (
    *encoder_rules("uniter"),
    *MASKED,
    *weight_and_bias("embed.region.project", f"{IMAGES}.img_linear"),
    *weight_and_bias("embed.region.project_norm", f"{IMAGES}.img_layer_norm"),
    *weight_and_bias("embed.region.box", f"{IMAGES}.pos_linear"),
    *weight_and_bias("embed.region.box_norm", f"{IMAGES}.pos_layer_norm"),
    *weight_and_bias("embed.region.norm", f"{IMAGES}.LayerNorm"),
    TensorRule("embed.region.mask.weight", (f"{IMAGES}.mask_embedding.weight",)),
    *weight_and_bias("head.itm.pooler", "uniter.pooler.dense"),
    *weight_and_bias("head.itm.classify", "itm_output"),
    *weight_and_bias("head.mrfr.transform", "feat_regress.net.0"),
    *weight_and_bias("head.mrfr.norm", "feat_regress.net.2"),
    TensorRule("head.mrfr.bias", ("feat_regress.bias",)),
    *(
        rule
        for head in ("mrc", "mrc-kl")
        for module, index in (("transform", 0), ("norm", 2), ("classify", 3))
        for rule in weight_and_bias(f"head.{head}.{module}", f"region_classifier.net.{index}")
    ),
)
"""Rules for the released code's parameters, which have one classifier for two losses."""


def test_import_from_bert() -> None:
    """Logits equal BERT's on text. BERT's pooler becomes that of image-text matching, and all modules of regions are
    initialized."""
    reference, batch = make_random_reference(tiny_spec("bert")), tiny_batch("bert")
    imported = from_hugging_face(reference, family="uniter", inputs={"detector": (FEATURES, CLASSES)})
    assert (imported.spec.name, imported.spec.context, imported.spec.size.inputs["detector"]) == (
        "uniter",
        24,
        (FEATURES, CLASSES),
    )
    assert imported.weights["head.itm.pooler.weight"].equal(reference.bert.pooler.dense.weight)
    new = ("embed.region.", "head.itm.classify.", "head.mrfr.", "head.mrc-kl.")
    assert all(name.startswith(new) for name in imported.absent)
    assert all(any(name.startswith(prefix) for name in imported.absent) for prefix in new)
    model = build_with_weights(imported.spec, complete_weights(imported, seed=0))
    is_token = batch["document_ids"] > 0
    logits = reference(**convert_inputs("bert", batch)).prediction_logits
    fields = {name: batch[name] for name in ("tokens", "segments", "document_ids")}
    assert (model.logits(fields)["mlm"][..., : logits.shape[-1]] - logits)[is_token].abs().max() <= 1e-5
    without_pooler = type(reference.bert)(reference.config, add_pooling_layer=False)
    assert "head.itm.pooler" in from_hugging_face(without_pooler, family="uniter").newly_initialized
    with pytest.raises(UserError, match=r"model.detector is for models of image regions, which bert is not"):
        from_hugging_face(reference, inputs={"detector": (FEATURES, CLASSES)})


@pytest.mark.parametrize(("size", "expected"), [("base", 109_898_752), ("large", 335_695_872)])
def test_published_parameter_count(size, expected):
    assert count_parameters(published_spec(UNITER, size)) == expected


def test_parameter_count_equals_built_model():
    spec = tiny_uniter()
    with torch.device("meta"):
        model = Model(spec)
    padding = (spec.padded_vocabulary - spec.vocabulary) * (spec.token_width + 1)  # each padding row also has a bias
    assert (
        count_parameters(spec, with_heads=True) == sum(parameter.numel() for parameter in model.parameters()) - padding
    )


@cache
def golden() -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(GOLDEN, "pt") as file:
        meta = {name: json.loads(value) for name, value in file.metadata().items()}
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118  # no mapping


def golden_model() -> Model:
    tensors, meta = golden()
    config = meta["config"]
    size = Size(
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        ffn=config["intermediate_size"],
        inputs={"detector": (meta["img_dim"], meta["classes"])},
    )
    spec = ModelSpec(
        family=UNITER_ALL_HEADS,
        size=size,
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        dropout=0.0,
    )
    model = Model(spec).eval()
    released = {name.removeprefix("weight."): value for name, value in tensors.items() if name.startswith("weight.")}
    weights, missing = import_weights(RULES, spec, released)
    assert not missing
    result = model.load_state_dict(weights, strict=True)
    assert not result.missing_keys
    return model


def golden_batch(*, hidden: bool) -> dict[str, Tensor]:
    """Return the released code's batch. There regions follow the text directly; in megaptm they follow its padding."""
    tensors, _ = golden()
    ids, masks = tensors["input.input_ids"], tensors["input.img_masks"].long()
    text, regions = ids.shape[1], masks.shape[1]
    kinds = masks * MASKED_REGION if hidden else torch.zeros_like(masks)
    return {
        "tokens": torch.cat([ids, kinds], 1),
        "positions": torch.arange(text + regions).expand(len(ids), -1),
        "segments": (torch.arange(text + regions) >= text).long().expand(len(ids), -1),
        "document_ids": 1 - torch.cat([tensors["input.txt_pad"], tensors["input.img_pad"]], 1).long(),
        "region_features": tensors["input.img_feat"],
        "region_boxes": tensors["input.img_pos_feat"],
    }


def masked_region_labels() -> dict[str, Tensor]:
    """Return positions and labels of masked regions, two per sample."""
    tensors, _ = golden()
    text, masks = tensors["input.input_ids"].shape[1], tensors["input.img_masks"] == 1
    features, classes = tensors["input.feat_targets"], tensors["input.label_targets"]
    rows, regions = masks.nonzero().unbind(1)
    slots = torch.cat([torch.arange(count) for count in masks.sum(1)])
    positions = torch.zeros(len(masks), 2, dtype=torch.int64)
    distributions = torch.full((*positions.shape, classes.shape[1]), float(IGNORED))
    region_features = torch.full((*positions.shape, features.shape[1]), float(IGNORED))
    labels = torch.full_like(positions, IGNORED)
    positions[rows, slots], distributions[rows, slots], region_features[rows, slots] = text + regions, classes, features
    labels[rows, slots] = classes[:, 1:].argmax(1) + 1
    return {
        "masked_positions": positions,
        "masked_region_features": region_features,
        "region_labels": labels,
        "region_distributions": distributions,
    }


def test_layers_equal_the_released_code():
    tensors, meta = golden()
    with torch.no_grad():
        actual = golden_model().encode(golden_batch(hidden=False))
    text = tensors["input.input_ids"].shape[1]
    for row, (words, regions) in enumerate(zip(meta["text_lengths"], meta["image_lengths"], strict=True)):
        expected = tensors["hidden"][-1, row]
        assert torch.allclose(actual[row, :words], expected[:words], atol=1e-5)
        assert torch.allclose(actual[row, text : text + regions], expected[words : words + regions], atol=1e-5)


def masked_losses() -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Return megaptm's losses with their numbers of labels, and the released code's loss of each label."""
    tensors, _ = golden()
    model = golden_model()
    labels = tensors["input.txt_labels"]
    is_label = labels != -1
    positions = torch.zeros(len(labels), 2, dtype=torch.int64)
    masked_labels = torch.full_like(positions, IGNORED)
    for row, row_is_label in enumerate(is_label):
        positions[row, : row_is_label.sum()], masked_labels[row, : row_is_label.sum()] = (
            row_is_label.nonzero()[:, 0],
            labels[row, row_is_label],
        )
    losses = model(golden_batch(hidden=False) | {"masked_positions": positions, "labels": masked_labels}).losses
    losses |= model(golden_batch(hidden=True) | masked_region_labels()).losses
    return losses, {name: tensors[name.replace("-", "_")] for name in losses}


def test_masked_losses_equal_the_released_code():
    losses, expected = masked_losses()
    assert {*losses} == {"mlm", "mrfr", "mrc", "mrc-kl"}
    for loss, (total, number) in losses.items():
        assert number == expected[loss].numel(), loss
        assert torch.allclose(total / number, expected[loss].mean(), rtol=1e-5), loss


def pair_losses() -> tuple[dict[str, tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Return megaptm's losses of matching and transport, and actual and expected gradients of two tables."""
    tensors, _ = golden()
    model = golden_model()
    losses = model(golden_batch(hidden=False) | {"matched": tensors["input.itm_targets"]}).losses
    (losses["itm"][0] / 3 + 0.1 * losses["wra"][0] / 3).backward()
    assert model.embed is not None
    words, regions = model.embed.token.weight.grad[:60], model.embed.region.project.weight.grad
    tables = {"uniter.embeddings.word_embeddings": words, f"{IMAGES}.img_linear": regions}
    return losses, [(gradient, tensors[f"grad_itm_wra.{name}.weight"]) for name, gradient in tables.items()]


def test_matching_and_transport_equal_the_released_code():
    tensors, _ = golden()
    losses, gradients = pair_losses()
    (itm, rows), (wra, pairs) = losses["itm"], losses["wra"]
    assert rows == pairs == 3
    assert torch.allclose(itm, tensors["itm"].sum(), atol=1e-5)
    assert torch.allclose(wra, tensors["wra_positive"].sum() - tensors["wra_negative"].sum(), atol=1e-5)
    assert torch.allclose(itm / rows + 0.1 * wra / pairs, tensors["itm_wra_loss"], atol=1e-6)
    for gradient, expected in gradients:
        assert torch.allclose(gradient, expected, atol=1e-6)


def differences() -> tuple[float, float]:
    """Return the largest difference of mean losses, and of the gradients of two tables."""
    tensors, _ = golden()
    (hidden, expected), (pairs, gradients) = masked_losses(), pair_losses()
    losses = [(total / number - expected[loss].mean()).abs() for loss, (total, number) in hidden.items()]
    losses += [(pairs["itm"][0] / 3 - tensors["itm"].mean()).abs(), (pairs["wra"][0] / 3 - tensors["wra"]).abs()]
    return max(losses).item(), max((total - released).abs().max().item() for total, released in gradients)


def model_with_constant_predictions(bias: Tensor) -> Model:
    """Return a model whose region and matching heads predict these values for any input."""
    model = uniter_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head."):
                parameter.zero_()
            if name in ("head.mrfr.bias", *(f"head.{head}.classify.bias" for head in ("mrc", "mrc-kl", "itm"))):
                parameter.copy_(bias[: len(parameter)])
    return model


def test_losses_equal_the_formulas():
    bias = torch.linspace(-1, 2, FEATURES)
    batch = uniter_batch(8, seed=3)
    losses = model_with_constant_predictions(bias)(batch).losses
    is_masked = batch["region_labels"] != IGNORED
    squared_errors = (bias - batch["masked_region_features"][is_masked]).square()
    assert torch.allclose(losses["mrfr"][0], squared_errors.sum(), rtol=1e-5)
    assert losses["mrfr"][1] == squared_errors.numel()
    predicted = bias[:CLASSES].softmax(-1)
    assert torch.allclose(losses["mrc"][0], -predicted[batch["region_labels"][is_masked]].log().sum(), rtol=1e-5)
    expected = batch["region_distributions"][is_masked]
    assert torch.allclose(losses["mrc-kl"][0], (expected * (expected / predicted).log()).sum(), rtol=1e-4)
    assert losses["mrc-kl"][1] == expected.numel()
    has_label = batch["matched"] != IGNORED
    assert torch.allclose(losses["itm"][0], -bias[:2].softmax(-1)[batch["matched"][has_label]].log().sum(), rtol=1e-5)
    assert losses["itm"][1] == losses["wra"][1] == has_label.sum()
    assert torch.allclose(losses["mlm"][0], losses["mlm"][1] * math.log(150), rtol=1e-5)  # logits are zero


def test_perfect_region_predictions_have_no_loss():
    batch = uniter_batch(4, seed=3)
    bias = torch.linspace(-1, 2, FEATURES)
    is_masked = batch["region_labels"] != IGNORED
    batch["masked_region_features"][is_masked] = bias
    batch["region_distributions"][is_masked] = bias[:CLASSES].softmax(-1)
    losses = model_with_constant_predictions(bias)(batch).losses
    assert losses["mrfr"][0] == 0
    assert abs(losses["mrc-kl"][0].item()) < 1e-5


def test_transport_cost_of_equal_vectors_is_their_cosine_distance():
    batch = uniter_batch(6, seed=3)
    generator = torch.Generator().manual_seed(0)
    words, regions = torch.randn(2, 32, generator=generator)
    stream = torch.cat([words.expand(TEXT, 6, -1), regions.expand(REGIONS, 6, -1)])
    model = uniter_model()
    assert model.head is not None
    loss, _ = model.head["wra"].loss(stream, batch=batch, tied=None)
    pairs = (batch["matched"] == 1).sum() - (batch["matched"] == 0).sum()
    apart = 1 - torch.cosine_similarity(words, regions, dim=0)
    assert torch.allclose(loss, pairs * apart, atol=1e-5)


def test_masked_and_padded_inputs_are_ignored():
    model, batch = uniter_model(), uniter_batch(6, seed=3)
    changed = {name: field.clone() for name, field in batch.items()}
    hidden = batch["tokens"][:, TEXT:] == MASKED_REGION
    is_token = batch["document_ids"] > 0
    changed["region_features"][hidden] += 5
    changed["region_features"][~is_token[:, TEXT:]] += 5
    changed["region_boxes"][~is_token[:, TEXT:]] += 5
    changed["tokens"][:, :TEXT][~is_token[:, :TEXT]] = 3
    with torch.no_grad():
        states, changed_states = (model.encode(fields) for fields in (batch, changed))
        assert torch.allclose(states[is_token], changed_states[is_token], atol=1e-6)
        changed["region_features"][~hidden] += 1
        assert not torch.allclose(states[is_token], model.encode(changed)[is_token], atol=1e-2)
        changed = {**batch, "region_boxes": batch["region_boxes"] + 0.1}
        assert not torch.allclose(states[is_token], model.encode(changed)[is_token], atol=1e-3)


def test_regions_have_no_order_and_are_optional():
    model, batch = uniter_model(), uniter_batch(4, seed=3)
    batch["document_ids"][:] = 1
    reversed_batch = dict(batch)
    for name in ("tokens", "region_features", "region_boxes"):
        skip = TEXT if name == "tokens" else 0
        reversed_batch[name] = torch.cat([batch[name][:, :skip], batch[name][:, skip:].flip(1)], 1)
    with torch.no_grad():
        states = model.encode(batch)
        assert torch.allclose(states[:, :TEXT], model.encode(reversed_batch)[:, :TEXT], atol=1e-5)
        text = {name: batch[name][:, :TEXT] for name in ("tokens", "segments", "positions", "document_ids")}
        assert model.encode(text).shape == (4, TEXT, 32)


def test_pipeline_stages_share_the_feature_projection():
    """The last stage uses the transposed projection."""
    model = uniter_model(layers=4)
    assert_parts_equal_model(model, uniter_batch(4, seed=4), 2)
    first, last = (
        {name for name, _ in Model(model.spec, chunk).named_parameters()} for chunk in even_chunks(model.spec, 2)
    )
    assert "embed.region.project.weight" in first & last
    assert {name.partition(".")[0] for name in last} == {"embed", "encoder", "head"}
    assert not any("region.box" in name for name in last)


def test_initial_mask_embedding():
    model = Model(tiny_uniter(layers=2))
    init_weights(model, seed=1)
    assert model.embed is not None
    assert model.embed.region.mask.weight[0].count_nonzero() == 0
    assert model.embed.region.mask.weight[1].count_nonzero() == FEATURES


@pytest.mark.parametrize("size", ["base", "large"])
def test_recipes_match_the_released_configs(size):
    config = load_config(CONFIGS / f"{size}.yaml")
    spec, optimizer = resolve_model(config), config.optimizer
    assert count_parameters(spec) == count_parameters(published_spec(UNITER, size))
    assert (optimizer.lr, optimizer.betas, optimizer.weight_decay, optimizer.clip) == (5e-5, (0.9, 0.98), 0.01, 5.0)
    assert (optimizer.warmup_steps, optimizer.decay, config.train.steps) == (10_000, "linear", 200_000)
    assert config.built_objective.losses == {"itm": 1.0, "wra": 0.1, "mlm": 1.0, "mrfr": 1.0, "mrc-kl": 1.0}
    shares = {task.label: task.share.at(0) for task in config.built_objective.tasks}
    assert [share * 6 for share in shares.values()] == pytest.approx([2, 2, 1, 1])
    assert config.data.sequence == 60 + config.built_objective.tasks[0].objective.regions


@pytest.mark.parametrize("ranks", [1, 2])
def test_tiny_config_runs_on_one_or_two_data_ranks(ranks):
    config = load_config(CONFIGS / "tiny.yaml", [f"layout.data={ranks}"])
    assert config.train.batch == 2 * config.layout.microbatch


def test_written_config_has_init_std():
    config = load_config(CONFIGS / "tiny.yaml")
    assert with_resolved_model(config).model.init_std == resolve_model(config).family.init.std == 0.1
    assert with_resolved_model(load_config(CONFIGS / "base.yaml")).model.init_std == 0.02


def test_written_config_has_the_detector():
    config = load_config(CONFIGS / "tiny.yaml")
    assert with_resolved_model(config).model.detector == (24, 17)
    assert resolve_model(config).size.inputs["detector"] == (24, 17)
    assert with_resolved_model(load_config(CONFIGS / "base.yaml")).model.detector == (2048, 1601)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.detector=null", "model.size custom of uniter needs model.detector"),
        ("model.detector=[24,9]", r"matching.* of 24 features and 17 classes, and model.detector has 24 and 9"),
        (
            "objective={a: {task: masked-regions, share: 1, regions: 8, features: 24, classes: 17}, "
            "b: {task: image-text-matching, share: 1, regions: 4, features: 24, classes: 17}}",
            "different numbers of image regions .a 8, b 4",
        ),
        ("objective=masked-lm", "does not fit uniter: it provides no region_boxes and region_features"),
        ("objective=image-labels", "does not fit uniter"),
        ("model.embedding=32", r"model.embedding \(32\) is not used by uniter"),
        ("model.family=bert", "it provides region_boxes and region_features, which this family does not read"),
    ],
)
def test_invalid_config_is_refused(override, message):
    with pytest.raises(UserError, match=message):
        load_config(CONFIGS / "tiny.yaml", [override])


def test_detector_of_another_family_is_refused():
    with pytest.raises(UserError, match=r"model.detector .* is not used by clip"):
        load_config(CONFIGS.parent / "clip/tiny.yaml", ["model.detector=[24,17]"])


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (UNITER_ALL_HEADS.with_input(SegmentInput(rows=1)), "less than two segments"),
        (change(UNITER_ALL_HEADS, inputs=(TokenInput(), RegionInput())), "less than two segments"),
    ],
)
def test_regions_need_two_segments(family, message):
    spec = tiny_uniter()
    with pytest.raises(UserError, match=message):
        Model(change_family(spec, family))


def change_family(spec: ModelSpec, family: Any) -> ModelSpec:
    return ModelSpec(
        family=family, size=spec.size, vocabulary=spec.vocabulary, context=spec.context, dropout=spec.dropout
    )


def test_size_without_detector_is_refused():
    spec = tiny_uniter()
    bare = ModelSpec(
        family=UNITER_ALL_HEADS,
        size=change(spec.size, inputs={}),
        vocabulary=150,
        context=spec.context,
        dropout=0.0,
    )
    with pytest.raises(UserError, match=r"has no detector: give model\.detector"):
        Model(bare)
