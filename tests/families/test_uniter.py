"""UNITER: as many parameters as published; layers, six losses and gradients of the released code, each loss where it is
known without, and what is hidden is not seen."""

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

from megaptm.batch import IGNORED, MASKED_REGION
from megaptm.config import load, resolve_model
from megaptm.config.model import with_resolved_model
from megaptm.errors import UserError
from megaptm.families.bert.huggingface import MASKED, encoder
from megaptm.families.uniter import UNITER
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.import_run import complete_weights
from megaptm.hub.tensor_rules import TensorRule, import_weights, pair
from megaptm.models import Model, build_model, fill
from megaptm.models.model import even_chunks
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, Size, change, published
from tests.models.regions import ALL, CLASSES, FEATURES, REGIONS, TEXT, tiny_uniter, uniter_batch, uniter_model
from tests.models.test_parts import equals_the_whole
from tests.models.tiny import tiny_batch, tiny_spec
from tests.parity.reference import inputs_of, model_of, random_reference

CONFIGS = Path(__file__).parents[2] / "configs/uniter"
GOLDEN = Path(__file__).parents[1] / "golden/uniter_losses.safetensors"
IMAGES = "uniter.img_embeddings"
ROWS = (
    *encoder("uniter"),
    *MASKED,
    *pair("embed.region.project", f"{IMAGES}.img_linear"),
    *pair("embed.region.project_norm", f"{IMAGES}.img_layer_norm"),
    *pair("embed.region.box", f"{IMAGES}.pos_linear"),
    *pair("embed.region.box_norm", f"{IMAGES}.pos_layer_norm"),
    *pair("embed.region.norm", f"{IMAGES}.LayerNorm"),
    TensorRule("embed.region.mask.weight", (f"{IMAGES}.mask_embedding.weight",)),
    *pair("head.itm.pooler", "uniter.pooler.dense"),
    *pair("head.itm.classify", "itm_output"),
    *pair("head.mrfr.transform", "feat_regress.net.0"),
    *pair("head.mrfr.norm", "feat_regress.net.2"),
    TensorRule("head.mrfr.bias", ("feat_regress.bias",)),
    *(
        row
        for head in ("mrc", "mrc-kl")
        for ours, place in (("transform", 0), ("norm", 2), ("classify", 3))
        for row in pair(f"head.{head}.{ours}", f"region_classifier.net.{place}")
    ),
)
"""Of the released code's parameters, which keeps one classifier for two of its losses."""


def test_it_begins_as_its_bert() -> None:
    """Of a text alone it says the same; the pooler of BERT's question is that of whether a text and an image match; and
    what reads regions and asks about them begins as in a new model."""
    theirs, batch = random_reference(tiny_spec("bert")), tiny_batch("bert")
    found = from_hugging_face(theirs, family="uniter", detector=(FEATURES, CLASSES))
    assert (found.spec.name, found.spec.context, found.spec.size.detector) == ("uniter", 24, (FEATURES, CLASSES))
    assert found.weights["head.itm.pooler.weight"].equal(theirs.bert.pooler.dense.weight)
    new = ("embed.region.", "head.itm.classify.", "head.mrfr.", "head.mrc-kl.")
    assert all(name.startswith(new) for name in found.absent)
    assert all(any(name.startswith(one) for name in found.absent) for one in new)
    model = model_of(found.spec, complete_weights(found, seed=0))
    real = batch["document_ids"] > 0
    said = theirs(**inputs_of("bert", batch)).prediction_logits
    read = {name: batch[name] for name in ("tokens", "segments", "document_ids")}
    assert (model.logits(read)["mlm"][..., : said.shape[-1]] - said)[real].abs().max() <= 1e-5
    without = type(theirs.bert)(theirs.config, add_pooling_layer=False)
    assert "head.itm.pooler" in from_hugging_face(without, family="uniter").fresh
    with pytest.raises(UserError, match=r"model.detector is for models of image regions, which bert is not"):
        from_hugging_face(theirs, detector=(FEATURES, CLASSES))


@pytest.mark.parametrize(("size", "number"), [("base", 109_898_752), ("large", 335_695_872)])
def test_the_formula_gives_the_published_count(size, number):
    assert count_parameters(published(UNITER, size)) == number


def test_the_formula_counts_what_is_built():
    spec = tiny_uniter()
    with torch.device("meta"):
        model = build_model(spec)
    padding = (spec.padded_vocabulary - spec.vocabulary) * (spec.token_width + 1)  # and a bias each
    assert (
        count_parameters(spec, with_heads=True) == sum(parameter.numel() for parameter in model.parameters()) - padding
    )


@cache
def golden() -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(GOLDEN, "pt") as file:
        meta = {name: json.loads(value) for name, value in file.metadata().items()}
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118  # no mapping


def golden_model() -> Model:
    known, meta = golden()
    told = meta["config"]
    size = Size(
        layers=told["num_hidden_layers"],
        width=told["hidden_size"],
        heads=told["num_attention_heads"],
        ffn=told["intermediate_size"],
        detector=(meta["img_dim"], meta["classes"]),
    )
    spec = ModelSpec(
        family=ALL, size=size, vocabulary=told["vocab_size"], context=told["max_position_embeddings"], dropout=0.0
    )
    model = build_model(spec).eval()
    theirs = {name.removeprefix("weight."): value for name, value in known.items() if name.startswith("weight.")}
    weights, missing = import_weights(ROWS, spec, theirs)
    assert not missing
    told_now = model.load_state_dict(weights, strict=True)
    assert not told_now.missing_keys
    return model


def golden_batch(*, hidden: bool) -> dict[str, Tensor]:
    """Their rows, in which regions follow a text at once, as ours, in which they follow its padding."""
    known, _ = golden()
    ids, masks = known["input.input_ids"], known["input.img_masks"].long()
    text, regions = ids.shape[1], masks.shape[1]
    kinds = masks * MASKED_REGION if hidden else torch.zeros_like(masks)
    return {
        "tokens": torch.cat([ids, kinds], 1),
        "positions": torch.arange(text + regions).expand(len(ids), -1),
        "segments": (torch.arange(text + regions) >= text).long().expand(len(ids), -1),
        "document_ids": 1 - torch.cat([known["input.txt_pad"], known["input.img_pad"]], 1).long(),
        "region_features": known["input.img_feat"],
        "region_boxes": known["input.img_pos_feat"],
    }


def asked_of_regions() -> dict[str, Tensor]:
    """Places of hidden regions, two a row, and what was there."""
    known, _ = golden()
    text, masks = known["input.input_ids"].shape[1], known["input.img_masks"] == 1
    features, classes = known["input.feat_targets"], known["input.label_targets"]
    rows, regions = masks.nonzero().unbind(1)
    slots = torch.cat([torch.arange(number) for number in masks.sum(1)])
    places = torch.zeros(len(masks), 2, dtype=torch.int64)
    likely = torch.full((*places.shape, classes.shape[1]), float(IGNORED))
    seen = torch.full((*places.shape, features.shape[1]), float(IGNORED))
    labels = torch.full_like(places, IGNORED)
    places[rows, slots], likely[rows, slots], seen[rows, slots] = text + regions, classes, features
    labels[rows, slots] = classes[:, 1:].argmax(1) + 1
    return {
        "masked_positions": places,
        "masked_region_features": seen,
        "region_labels": labels,
        "region_distributions": likely,
    }


def test_layers_say_what_those_of_the_released_code_say():
    known, meta = golden()
    with torch.no_grad():
        ours = golden_model().encode(golden_batch(hidden=False))
    text = known["input.input_ids"].shape[1]
    for row, (words, regions) in enumerate(zip(meta["text_lengths"], meta["image_lengths"], strict=True)):
        theirs = known["hidden"][-1, row]
        assert torch.allclose(ours[row, :words], theirs[:words], atol=1e-5)
        assert torch.allclose(ours[row, text : text + regions], theirs[words : words + regions], atol=1e-5)


def losses_of_what_is_hidden() -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
    """Ours, with their numbers of labels; and theirs, of each label."""
    known, _ = golden()
    model = golden_model()
    labels = known["input.txt_labels"]
    asked = labels != -1
    places = torch.zeros(len(labels), 2, dtype=torch.int64)
    answers = torch.full_like(places, IGNORED)
    for row, here in enumerate(asked):
        places[row, : here.sum()], answers[row, : here.sum()] = here.nonzero()[:, 0], labels[row, here]
    said = model(golden_batch(hidden=False) | {"masked_positions": places, "labels": answers}).losses
    said |= model(golden_batch(hidden=True) | asked_of_regions()).losses
    return said, {loss: known[loss.replace("-", "_")] for loss in said}


def test_losses_of_hidden_words_and_regions_are_those_of_the_released_code():
    said, known = losses_of_what_is_hidden()
    assert {*said} == {"mlm", "mrfr", "mrc", "mrc-kl"}
    for loss, (ours, number) in said.items():
        assert number == known[loss].numel(), loss
        assert torch.allclose(ours / number, known[loss].mean(), rtol=1e-5), loss


def losses_of_pairs() -> tuple[dict[str, tuple[Tensor, Tensor]], list[tuple[Tensor, Tensor]]]:
    """Ours of matching and transport; and of two tables our gradient and theirs."""
    known, _ = golden()
    model = golden_model()
    said = model(golden_batch(hidden=False) | {"matched": known["input.itm_targets"]}).losses
    (said["itm"][0] / 3 + 0.1 * said["wra"][0] / 3).backward()
    assert model.embed is not None
    words, regions = model.embed.token.weight.grad[:60], model.embed.region.project.weight.grad
    tables = {"uniter.embeddings.word_embeddings": words, f"{IMAGES}.img_linear": regions}
    return said, [(ours, known[f"grad_itm_wra.{theirs}.weight"]) for theirs, ours in tables.items()]


def test_matching_and_transport_are_those_of_the_released_code_and_so_are_their_gradients():
    known, _ = golden()
    said, gradients = losses_of_pairs()
    (itm, rows), (wra, pairs) = said["itm"], said["wra"]
    assert rows == pairs == 3
    assert torch.allclose(itm, known["itm"].sum(), atol=1e-5)
    assert torch.allclose(wra, known["wra_positive"].sum() - known["wra_negative"].sum(), atol=1e-5)
    assert torch.allclose(itm / rows + 0.1 * wra / pairs, known["itm_wra_loss"], atol=1e-6)
    for ours, theirs in gradients:
        assert torch.allclose(ours, theirs, atol=1e-6)


def differences() -> tuple[float, float]:
    """The largest of any mean loss, and of the gradient of either table."""
    known, _ = golden()
    (hidden, each), (pairs, gradients) = losses_of_what_is_hidden(), losses_of_pairs()
    losses = [(ours / number - each[loss].mean()).abs() for loss, (ours, number) in hidden.items()]
    losses += [(pairs["itm"][0] / 3 - known["itm"].mean()).abs(), (pairs["wra"][0] / 3 - known["wra"]).abs()]
    return max(losses).item(), max((ours - theirs).abs().max().item() for ours, theirs in gradients)


def heads_that_say(bias: Tensor) -> Model:
    """Whatever they read, the heads of hidden regions and of matching say this, the first numbers of it."""
    model = uniter_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head."):
                parameter.zero_()
            if name in ("head.mrfr.bias", *(f"head.{head}.classify.bias" for head in ("mrc", "mrc-kl", "itm"))):
                parameter.copy_(bias[: len(parameter)])
    return model


def test_each_loss_is_what_its_formula_says():
    bias = torch.linspace(-1, 2, FEATURES)
    batch = uniter_batch(8, seed=3)
    said = heads_that_say(bias)(batch).losses
    asked = batch["region_labels"] != IGNORED
    missing = (bias - batch["masked_region_features"][asked]).square()
    assert torch.allclose(said["mrfr"][0], missing.sum(), rtol=1e-5)
    assert said["mrfr"][1] == missing.numel()
    likely = bias[:CLASSES].softmax(-1)
    assert torch.allclose(said["mrc"][0], -likely[batch["region_labels"][asked]].log().sum(), rtol=1e-5)
    wanted = batch["region_distributions"][asked]
    assert torch.allclose(said["mrc-kl"][0], (wanted * (wanted / likely).log()).sum(), rtol=1e-4)
    assert said["mrc-kl"][1] == wanted.numel()
    told = batch["matched"] != IGNORED
    assert torch.allclose(said["itm"][0], -bias[:2].softmax(-1)[batch["matched"][told]].log().sum(), rtol=1e-5)
    assert said["itm"][1] == said["wra"][1] == told.sum()
    assert torch.allclose(said["mlm"][0], said["mlm"][1] * math.log(150), rtol=1e-5)  # a table times nothing


def test_what_says_what_the_detector_says_has_no_loss():
    batch = uniter_batch(4, seed=3)
    bias = torch.linspace(-1, 2, FEATURES)
    asked = batch["region_labels"] != IGNORED
    batch["masked_region_features"][asked] = bias
    batch["region_distributions"][asked] = bias[:CLASSES].softmax(-1)
    said = heads_that_say(bias)(batch).losses
    assert said["mrfr"][0] == 0
    assert abs(said["mrc-kl"][0].item()) < 1e-5


def test_words_that_are_alike_and_regions_that_are_alike_are_a_cosine_apart():
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


def test_what_is_hidden_or_padding_is_not_seen():
    model, batch = uniter_model(), uniter_batch(6, seed=3)
    changed = {name: field.clone() for name, field in batch.items()}
    hidden = batch["tokens"][:, TEXT:] == MASKED_REGION
    there = batch["document_ids"] > 0
    changed["region_features"][hidden] += 5
    changed["region_features"][~there[:, TEXT:]] += 5
    changed["region_boxes"][~there[:, TEXT:]] += 5
    changed["tokens"][:, :TEXT][~there[:, :TEXT]] = 3
    with torch.no_grad():
        said, again = (model.encode(one) for one in (batch, changed))
        assert torch.allclose(said[there], again[there], atol=1e-6)
        changed["region_features"][~hidden] += 1
        assert not torch.allclose(said[there], model.encode(changed)[there], atol=1e-2)
        changed = {**batch, "region_boxes": batch["region_boxes"] + 0.1}
        assert not torch.allclose(said[there], model.encode(changed)[there], atol=1e-3)


def test_regions_have_no_order_and_a_text_needs_none():
    model, batch = uniter_model(), uniter_batch(4, seed=3)
    batch["document_ids"][:] = 1
    turned = dict(batch)
    for name in ("tokens", "region_features", "region_boxes"):
        skip = TEXT if name == "tokens" else 0
        turned[name] = torch.cat([batch[name][:, :skip], batch[name][:, skip:].flip(1)], 1)
    with torch.no_grad():
        said = model.encode(batch)
        assert torch.allclose(said[:, :TEXT], model.encode(turned)[:, :TEXT], atol=1e-5)
        text = {name: batch[name][:, :TEXT] for name in ("tokens", "segments", "positions", "document_ids")}
        assert model.encode(text).shape == (4, TEXT, 32)


def test_parts_of_a_pipeline_are_the_whole_and_share_the_map_of_features():
    """The last one turns it around."""
    model = uniter_model(layers=4)
    equals_the_whole(model, uniter_batch(4, seed=4), 2)
    first, last = (
        {name for name, _ in Model(model.spec, chunk).named_parameters()} for chunk in even_chunks(model.spec, 2)
    )
    assert "embed.region.project.weight" in first & last
    assert {name.partition(".")[0] for name in last} == {"embed", "encoder", "head"}
    assert not any("region.box" in name for name in last)


def test_rows_of_nothing_hidden_begin_at_zero():
    model = build_model(tiny_uniter(layers=2))
    fill(model, seed=1)
    assert model.embed is not None
    assert model.embed.region.mask.weight[0].count_nonzero() == 0
    assert model.embed.region.mask.weight[1].count_nonzero() == FEATURES


@pytest.mark.parametrize("size", ["base", "large"])
def test_recipes_are_those_of_the_released_configs(size):
    config = load(CONFIGS / f"{size}.yaml")
    spec, told = resolve_model(config), config.optimizer
    assert count_parameters(spec) == count_parameters(published(UNITER, size))
    assert (told.lr, told.betas, told.weight_decay, told.clip) == (5e-5, (0.9, 0.98), 0.01, 5.0)
    assert (told.warmup_steps, told.decay, config.train.steps) == (10_000, "linear", 200_000)
    assert config.built_objective.losses == {"itm": 1.0, "wra": 0.1, "mlm": 1.0, "mrfr": 1.0, "mrc-kl": 1.0}
    shares = {task.label: task.share.at(0) for task in config.built_objective.tasks}
    assert [share * 6 for share in shares.values()] == pytest.approx([2, 2, 1, 1])
    assert config.data.sequence == 60 + config.built_objective.tasks[0].objective.regions


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_tiny_config_is_of_one_data_rank_or_two(ranks):
    config = load(CONFIGS / "tiny.yaml", [f"layout.data={ranks}"])
    assert config.train.batch == 2 * config.layout.microbatch


def test_a_config_keeps_what_weights_begin_with():
    config = load(CONFIGS / "tiny.yaml")
    assert with_resolved_model(config).model.init_std == resolve_model(config).family.init_std == 0.1
    assert with_resolved_model(load(CONFIGS / "base.yaml")).model.init_std == 0.02


def test_a_config_keeps_the_detectors_numbers():
    config = load(CONFIGS / "tiny.yaml")
    assert with_resolved_model(config).model.detector == (24, 17)
    assert resolve_model(config).size.detector == (24, 17)
    assert with_resolved_model(load(CONFIGS / "base.yaml")).model.detector == (2048, 1601)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.detector=null", "model.size custom of uniter needs model.detector"),
        ("model.detector=[24,9]", r"matching.* of 24 features and 17 classes, and model.detector has 24 and 9"),
        (
            "objective={a: {task: masked-regions, share: 1, regions: 8, features: 24, classes: 17}, "
            "b: {task: image-text-matching, share: 1, regions: 4, features: 24, classes: 17}}",
            "different numbers of image regions .a 8, b 4",
        ),
        ("objective=masked-lm", "does not fit uniter: it provides no image regions"),
        ("objective=image-labels", "does not fit uniter"),
        ("model.embedding=32", r"model.embedding \(32\) is not used by uniter"),
        ("model.family=bert", "it provides image regions after a text"),
    ],
)
def test_what_a_config_cannot_mean_is_one_sentence(override, said):
    with pytest.raises(UserError, match=said):
        load(CONFIGS / "tiny.yaml", [override])


def test_a_detector_means_nothing_to_others():
    with pytest.raises(UserError, match=r"model.detector .* is not used by clip"):
        load(CONFIGS.parent / "clip/tiny.yaml", ["model.detector=[24,17]"])


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (change(ALL, segments=1), "less than two segments"),
        (change(ALL, inputs=("token", "region")), "less than two segments"),
    ],
)
def test_what_does_not_go_with_regions_is_one_sentence(family, said):
    spec = tiny_uniter()
    with pytest.raises(UserError, match=said):
        build_model(change_family(spec, family))


def change_family(spec: ModelSpec, family: Any) -> ModelSpec:
    return ModelSpec(
        family=family, size=spec.size, vocabulary=spec.vocabulary, context=spec.context, dropout=spec.dropout
    )


def test_a_size_without_a_detector_is_one_sentence():
    spec = tiny_uniter()
    bare = ModelSpec(
        family=ALL, size=change(spec.size, detector=None), vocabulary=150, context=spec.context, dropout=0.0
    )
    with pytest.raises(UserError, match=r"has no detector: give model\.detector"):
        build_model(bare)
