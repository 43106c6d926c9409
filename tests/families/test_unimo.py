"""UNIMO: parameter count, equality with RoBERTa on text, regions and losses by their formulas, attention, and
configs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED
from megaptm.config import load_config, resolve_model
from megaptm.errors import UserError
from megaptm.families.unimo import UNIMO
from megaptm.families.unimo.head_costs import MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.families.unimo.head_modules import TEMPERATURE
from megaptm.families.uniter.spec import MASKED_REGION
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.import_run import complete_weights
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, published_spec
from tests.models.regions import CLASSES, FEATURES, TEXT
from tests.models.tiny import tiny_spec
from tests.models.unified import LENGTHS, OTHER_IMAGE, tiny_unimo, unimo_batch, unimo_model
from tests.parity.reference import build_with_weights, make_random_reference

CONFIGS = Path(__file__).parents[2] / "configs/unimo"


@pytest.mark.parametrize(("size", "expected"), [("base", 125_634_048), ("large", 356_415_488)])
def test_published_parameter_count(size: str, expected: int) -> None:
    """The paper gives no count. It is RoBERTa's without its one segment embedding, and with projections of features and
    of five numbers of a box, and a norm."""
    spec = published_spec(UNIMO, size)
    width = spec.width
    regions = (2048 + 1) * width + (5 + 1) * width + 2 * width
    roberta = {"base": 124_055_040, "large": 354_310_144}[size]
    assert count_parameters(spec) == roberta - width + regions == expected


def test_parameter_count_equals_built_model() -> None:
    spec = tiny_unimo()
    with torch.device("meta"):
        model = Model(spec)
    padding = (spec.padded_vocabulary - spec.vocabulary) * (spec.token_width + 1)  # each padding row also has a bias
    assert (
        count_parameters(spec, with_heads=True) == sum(parameter.numel() for parameter in model.parameters()) - padding
    )


def differences() -> tuple[float, float]:
    """Return the largest difference of logits, and of the gradient of the token table, from RoBERTa on text. RoBERTa's
    one segment embedding is added to positions."""
    reference = make_random_reference(roberta := tiny_spec("roberta"))
    imported = from_hugging_face(reference, family="unimo", inputs={"detector": (FEATURES, CLASSES)})
    assert (imported.spec.name, imported.spec.context, imported.spec.size.inputs["detector"]) == (
        "unimo",
        24,
        (FEATURES, CLASSES),
    )
    assert all(name.startswith(("embed.region.", "head.m")) for name in imported.absent)
    assert imported.weights["encoder.1.ffn.up.weight"].equal(
        reference.roberta.encoder.layer[1].intermediate.dense.weight
    )
    model = build_with_weights(imported.spec, complete_weights(imported, seed=0))
    tokens = torch.randint(3, roberta.vocabulary, (3, 12), generator=torch.Generator().manual_seed(0))
    actual = model.logits({"tokens": tokens, "order": torch.zeros_like(tokens)})["mlm"][..., : roberta.vocabulary]
    expected = reference(tokens).logits
    for logits in (actual, expected):
        logits.square().mean().backward()
    assert model.embed is not None
    gradient = model.embed.token.weight.grad[: roberta.vocabulary]  # type: ignore[index]  # it has one
    expected_gradient = reference.roberta.embeddings.word_embeddings.weight.grad
    return (actual - expected).abs().max().item(), (gradient - expected_gradient).abs().max().item()


def test_text_only_equals_roberta() -> None:
    assert max(differences()) <= 1e-5


def test_region_embedding_equals_the_formula() -> None:
    model, batch = unimo_model(), unimo_batch(4, seed=3)
    assert model.embed is not None
    parameters = dict(model.embed.named_parameters(prefix=""))
    hidden = batch["tokens"][:, TEXT:] == MASKED_REGION
    features = batch["region_features"].masked_fill(hidden[:, :, None], 0)
    x1, y1, x2, y2, _, _, area = batch["region_boxes"].unbind(-1)
    boxes = torch.stack([x1, y1, x2, y2, area], -1)
    summed = F.linear(features, parameters["region.project.weight"], parameters["region.project.bias"])
    summed = summed + F.linear(boxes, parameters["region.box.weight"], parameters["region.box.bias"])
    expected = F.layer_norm(summed, (32,), parameters["region.norm.weight"], parameters["region.norm.bias"], 1e-5)
    actual = model.embed(batch, "encoder", lambda x: x)[TEXT:].transpose(0, 1)
    assert torch.allclose(actual, expected, atol=1e-6)
    assert hidden.any()


def model_with_constant_predictions(bias: Tensor) -> Model:
    """Return a model whose region heads predict these values for any input."""
    model = unimo_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head."):
                parameter.zero_()
            if name in ("head.mrfr.bias", "head.mrc-kl.classify.bias"):
                parameter.copy_(bias[: len(parameter)])
    return model


def test_masked_losses_equal_the_formulas() -> None:
    bias = torch.linspace(-1, 2, FEATURES)
    batch = unimo_batch(8, seed=3)
    losses = model_with_constant_predictions(bias)(batch).losses
    is_masked = (batch["masked_region_features"] != IGNORED).all(-1)
    squared_errors = (bias - batch["masked_region_features"][is_masked]).square()
    assert torch.allclose(losses["mrfr"][0], squared_errors.sum(), rtol=1e-5)
    assert losses["mrfr"][1] == squared_errors.numel()
    predicted, expected = bias[:CLASSES].softmax(-1), batch["region_distributions"][is_masked]
    assert torch.allclose(losses["mrc-kl"][0], (expected * (expected / predicted).log()).sum(), rtol=1e-4)
    assert losses["mrc-kl"][1] == expected.numel()
    assert torch.allclose(losses["mlm"][0], losses["mlm"][1] * math.log(150), rtol=1e-5)  # logits are zero


def test_contrastive_loss_equals_the_formula() -> None:
    """Contrast of each image with all texts, and of its caption with all images: log of the positive pairs' share.
    Positive pairs include paraphrases, and the caption with a similar image."""
    model, batch = unimo_model(), unimo_batch(6, seed=3)
    with torch.no_grad():
        x_BSD = model.encode(batch)
        loss, number = model(batch).losses["cmcl"]
    images, texts = (
        [
            [F.normalize(x_BSD[row, position], dim=0) for position in positions.tolist() if position != IGNORED]
            for row, positions in enumerate(batch[field])
        ]
        for field in ("image_starts", "text_starts")
    )
    assert {*map(len, images)} == {1, 2}
    num_positive = batch["num_positive_texts"].tolist()
    compared = [row for row, count in enumerate(num_positive) if count != IGNORED]
    expected = 0.0
    for row in compared:
        positive_scores, all_scores = [], []
        for other in compared:
            text_scores = [float(images[row][0] @ text) / TEMPERATURE for text in texts[other]]
            image_scores = [float(image @ texts[row][0]) / TEMPERATURE for image in images[other]]
            all_scores += text_scores + (image_scores[1:] if other == row else image_scores)
            positive_scores += text_scores[: num_positive[row]] + image_scores[1:] if other == row else []
        expected += math.log(sum(map(math.exp, all_scores))) - math.log(sum(map(math.exp, positive_scores)))
    assert number == len(compared) < 6
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_images_and_texts_are_encoded_separately() -> None:
    model, batch = unimo_model(), unimo_batch(3, seed=3)
    batch["order"][:] = 0
    head = model.head["cmcl"]  # type: ignore[index]  # a whole model has heads
    num_vectors = MAX_COMPARED_IMAGES + MAX_COMPARED_TEXTS

    def features(batch: dict[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            x_SBD = model.encode(batch).transpose(0, 1)
            vectors = head.features(x_SBD, batch=batch)
        return [*vectors[2:, : 32 * num_vectors].split(32, 1)]

    before = features(batch)
    text_starts = batch["text_starts"][2].tolist()
    # The last sample has two images and two texts.
    for changed in (0, 1, MAX_COMPARED_IMAGES, MAX_COMPARED_IMAGES + 1):
        other = {name: field.clone() for name, field in batch.items()}
        if changed >= MAX_COMPARED_IMAGES:
            text = changed - MAX_COMPARED_IMAGES
            other["tokens"][:, text_starts[text] + LENGTHS[text] - 1] += 1
            other["tokens"] %= 150
        else:
            other["region_features"][:, OTHER_IMAGE * changed : OTHER_IMAGE * (1 + changed)] += 1.0
        after = features(other)
        is_unchanged = [
            torch.allclose(vector, changed_vector, atol=1e-6)
            for vector, changed_vector in zip(before, after, strict=True)
        ]
        assert is_unchanged == [index != changed for index in range(num_vectors)]


def test_masked_and_padded_inputs_are_ignored() -> None:
    model, batch = unimo_model(), unimo_batch(6, seed=3)
    hidden, is_token = batch["tokens"][:, TEXT:] == MASKED_REGION, batch["document_ids"] > 0
    changed = {name: field.clone() for name, field in batch.items()}
    changed["region_features"][hidden | ~is_token[:, TEXT:]] += 5
    changed["region_boxes"][~is_token[:, TEXT:]] += 5
    changed["tokens"][:, :TEXT][~is_token[:, :TEXT]] = 3
    with torch.no_grad():
        states = model.encode(batch)
        assert torch.allclose(states[is_token], model.encode(changed)[is_token], atol=1e-6)
        changed["region_features"][~hidden] += 1
        assert not torch.allclose(states[is_token], model.encode(changed)[is_token], atol=1e-2)


def test_recipes_match_the_paper() -> None:
    for size in ("base", "large"):
        config = load_config(CONFIGS / f"{size}.yaml")
        assert count_parameters(resolve_model(config)) == count_parameters(published_spec(UNIMO, size))
        assert config.optimizer.lr == 5e-5
        shares = {task.label: task.share.at(0) for task in config.built_objective.tasks}
        of_text = shares["spans"] + shares["fragments"]
        of_images = shares["areas"] + shares["classes"]
        of_pairs = sum(shares.values()) - of_text - of_images
        assert of_images == pytest.approx(of_pairs)
        assert of_text == pytest.approx(5 * of_pairs)
    assert config.built_objective.losses == {"mlm": 1.0, "mrfr": 1.0, "mrc-kl": 1.0, "cmcl": 1.0}
    # The text has as many tokens as learned positions, which regions do not need.
    spans = config.built_objective.tasks[0].objective
    assert spans.text_length(config.data.sequence) == resolve_model(config).context == 512


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.context=40", r"data.sequence \(64\), of which 9 follow the text, must not exceed the 40 learned"),
        ("model.detector=[24,9]", r"classes.* of 24 features and 17 classes, and model.detector has 24 and 9"),
        ("model.detector=[20,17]", r"spans.* reads regions of 24 features, and model.detector has 20"),
        ("objective=masked-lm", "does not fit unimo: it provides no region_boxes and region_features"),
        ("objective=uniter", "does not fit unimo: it .*attention order"),
        (
            "objective={cross-modal-contrast: {max_paraphrases: 5, max_rewritten_negatives: 4}}",
            r"max_paraphrases \(5\), max_rewritten_negatives \(4\) and the caption are more than",
        ),
        (
            "objective={text-fragments: {min_length: 9, max_length: 4}}",
            r"min_length \(9\) is more than max_length \(4\)",
        ),
        ("objective={masked-areas: {regions: 1}}", r"regions \(1\) must be at least 2: the full image takes"),
        (
            "objective={image-text-spans: {mask_token_prob: 0.9, random_token_prob: 0.2}}",
            r"mask_token_prob \(0.9\) and random_token_prob \(0.2\) sum to more than 1",
        ),
        ("model.family=roberta", "it provides region_boxes and region_features, which this family does not read"),
    ],
)
def test_invalid_config_is_refused(override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(CONFIGS / "tiny.yaml", [override])


@pytest.mark.parametrize(
    "options",
    [{"norms": "twice"}, {"boxes": 6}, {"hidden": "nothing"}],
    ids=lambda options: next(iter(options)),
)
def test_unknown_family_value_is_refused(options: dict[str, object]) -> None:
    spec = tiny_unimo()
    family = UNIMO.with_input(replace(UNIMO.inputs[-1], **options))
    with pytest.raises(UserError, match=f"{next(iter(options))} is .* which is unknown; use one of"):
        Model(ModelSpec(family=family, size=spec.size, vocabulary=150, context=spec.context, dropout=0.0))
