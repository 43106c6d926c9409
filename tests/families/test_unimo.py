"""UNIMO: as many parameters as its table says; RoBERTa where it reads text, its regions and losses written out; and who
sees whom."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.batch import IGNORED, MASKED_REGION, MAX_COMPARED_IMAGES, MAX_COMPARED_TEXTS
from megaptm.config import load, resolve_model
from megaptm.errors import UserError
from megaptm.families.unimo import UNIMO
from megaptm.hub.huggingface import from_hugging_face
from megaptm.hub.import_run import complete
from megaptm.models import Model, build_model
from megaptm.models.cross_modal import TEMPERATURE
from megaptm.plan.count import count_parameters
from megaptm.spec import ModelSpec, change, published
from tests.models.regions import CLASSES, FEATURES, TEXT
from tests.models.tiny import tiny_spec
from tests.models.unified import LENGTHS, OTHER, tiny_unimo, unimo_batch, unimo_model
from tests.parity.reference import model_of, random_reference

CONFIGS = Path(__file__).parents[2] / "configs/unimo"


@pytest.mark.parametrize(("size", "number"), [("base", 125_634_048), ("large", 356_415_488)])
def test_the_formula_gives_what_roberta_has_and_a_reader_of_regions(size: str, number: int) -> None:
    """The paper says none. RoBERTa's without its one row of segments; a map of features, one of five numbers of a box,
    and a norm."""
    spec = published(UNIMO, size)
    width = spec.width
    regions = (2048 + 1) * width + (5 + 1) * width + 2 * width
    roberta = {"base": 124_055_040, "large": 354_310_144}[size]
    assert count_parameters(spec) == roberta - width + regions == number


def test_the_formula_counts_what_is_built() -> None:
    spec = tiny_unimo()
    with torch.device("meta"):
        model = build_model(spec)
    padding = (spec.padded_vocabulary - spec.vocabulary) * (spec.token_width + 1)  # and a bias each
    assert (
        count_parameters(spec, with_heads=True) == sum(parameter.numel() for parameter in model.parameters()) - padding
    )


def differences() -> tuple[float, float]:
    """From RoBERTa, with whose weights it begins, of a text alone: the largest of logits, and of the gradient of the
    token table. Its one row of segments, which every token adds, is added to places."""
    theirs = random_reference(roberta := tiny_spec("roberta"))
    found = from_hugging_face(theirs, family="unimo", detector=(FEATURES, CLASSES))
    assert (found.spec.name, found.spec.context, found.spec.size.detector) == ("unimo", 24, (FEATURES, CLASSES))
    assert all(name.startswith(("embed.region.", "head.m")) for name in found.absent)
    assert found.weights["encoder.1.ffn.up.weight"].equal(theirs.roberta.encoder.layer[1].intermediate.dense.weight)
    model = model_of(found.spec, complete(found, seed=0))
    tokens = torch.randint(3, roberta.vocabulary, (3, 12), generator=torch.Generator().manual_seed(0))
    ours = model.logits({"tokens": tokens, "order": torch.zeros_like(tokens)})["mlm"][..., : roberta.vocabulary]
    said = theirs(tokens).logits
    for logits in (ours, said):
        logits.square().mean().backward()
    assert model.embed is not None
    gradient = model.embed.token.weight.grad[: roberta.vocabulary]  # type: ignore[index]  # it has one
    known = theirs.roberta.embeddings.word_embeddings.weight.grad
    return (ours - said).abs().max().item(), (gradient - known).abs().max().item()


def test_of_a_text_alone_it_says_what_roberta_says() -> None:
    assert max(differences()) <= 1e-5


def test_a_region_is_the_norm_of_two_maps_sum_and_what_is_hidden_is_zeros() -> None:
    model, batch = unimo_model(), unimo_batch(4, seed=3)
    assert model.embed is not None
    known = dict(model.embed.named_parameters(prefix=""))
    hidden = batch["tokens"][:, TEXT:] == MASKED_REGION
    features = batch["region_features"].masked_fill(hidden[:, :, None], 0)
    left, top, right, bottom, _, _, area = batch["region_boxes"].unbind(-1)
    boxes = torch.stack([left, top, right, bottom, area], -1)
    summed = F.linear(features, known["region.project.weight"], known["region.project.bias"])
    summed = summed + F.linear(boxes, known["region.box.weight"], known["region.box.bias"])
    wanted = F.layer_norm(summed, (32,), known["region.norm.weight"], known["region.norm.bias"], 1e-5)
    ours = model.embed(batch, "encoder", lambda x: x)[TEXT:].transpose(0, 1)
    assert torch.allclose(ours, wanted, atol=1e-6)
    assert hidden.any()


def heads_that_say(bias: Tensor) -> Model:
    """Whatever they read, the heads of hidden regions say this, the first numbers of it."""
    model = unimo_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("head."):
                parameter.zero_()
            if name in ("head.mrfr.bias", "head.mrc-kl.classify.bias"):
                parameter.copy_(bias[: len(parameter)])
    return model


def test_losses_of_what_is_hidden_are_what_their_formulas_say() -> None:
    bias = torch.linspace(-1, 2, FEATURES)
    batch = unimo_batch(8, seed=3)
    said = heads_that_say(bias)(batch).losses
    asked = (batch["masked_region_features"] != IGNORED).all(-1)
    missing = (bias - batch["masked_region_features"][asked]).square()
    assert torch.allclose(said["mrfr"][0], missing.sum(), rtol=1e-5)
    assert said["mrfr"][1] == missing.numel()
    likely, wanted = bias[:CLASSES].softmax(-1), batch["region_distributions"][asked]
    assert torch.allclose(said["mrc-kl"][0], (wanted * (wanted / likely).log()).sum(), rtol=1e-4)
    assert said["mrc-kl"][1] == wanted.numel()
    assert torch.allclose(said["mlm"][0], said["mlm"][1] * math.log(150), rtol=1e-5)  # a table times nothing


def test_the_contrast_is_its_formula_over_all_pairs_of_the_batch() -> None:
    """Written out: of an image with all texts, and of its caption with all images, what right pairs have of the sum;
    among the right ones those of its caption with another image like its own."""
    model, batch = unimo_model(), unimo_batch(6, seed=3)
    with torch.no_grad():
        x_BSD = model.encode(batch)
        loss, number = model(batch).losses["cmcl"]
    images, texts = (
        [
            [F.normalize(x_BSD[row, place], dim=0) for place in places.tolist() if place != IGNORED]
            for row, places in enumerate(batch[field])
        ]
        for field in ("image_starts", "text_starts")
    )
    assert {*map(len, images)} == {1, 2}
    right = batch["num_positive_texts"].tolist()
    asked = [row for row, answer in enumerate(right) if answer != IGNORED]
    wanted = 0.0
    for row in asked:
        above, below = [], []
        for other in asked:
            scores = [float(images[row][0] @ text) / TEMPERATURE for text in texts[other]]
            shown = [float(image @ texts[row][0]) / TEMPERATURE for image in images[other]]
            below += scores + (shown[1:] if other == row else shown)
            above += scores[: right[row]] + shown[1:] if other == row else []
        wanted += math.log(sum(map(math.exp, below))) - math.log(sum(map(math.exp, above)))
    assert number == len(asked) < 6
    assert loss.item() == pytest.approx(wanted, rel=1e-5)


def test_each_image_and_each_text_is_read_by_itself() -> None:
    model, batch = unimo_model(), unimo_batch(3, seed=3)
    batch["order"][:] = 0
    head = model.head["cmcl"]  # type: ignore[index]  # a whole model has heads
    number = MAX_COMPARED_IMAGES + MAX_COMPARED_TEXTS

    def features(batch: dict[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            x_SBD = model.encode(batch).transpose(0, 1)
            said = head.features(x_SBD, batch=batch)
        return [*said[2:, : 32 * number].split(32, 1)]

    before = features(batch)
    begins = batch["text_starts"][2].tolist()
    # The last row has two images, and two texts.
    for changed in (0, 1, MAX_COMPARED_IMAGES, MAX_COMPARED_IMAGES + 1):
        other = {name: field.clone() for name, field in batch.items()}
        if changed >= MAX_COMPARED_IMAGES:
            text = changed - MAX_COMPARED_IMAGES
            other["tokens"][:, begins[text] + LENGTHS[text] - 1] += 1
            other["tokens"] %= 150
        else:
            other["region_features"][:, OTHER * changed : OTHER * (1 + changed)] += 1.0
        after = features(other)
        same = [torch.allclose(one, two, atol=1e-6) for one, two in zip(before, after, strict=True)]
        assert same == [which != changed for which in range(number)]


def test_what_is_hidden_or_padding_is_not_seen() -> None:
    model, batch = unimo_model(), unimo_batch(6, seed=3)
    hidden, there = batch["tokens"][:, TEXT:] == MASKED_REGION, batch["document_ids"] > 0
    changed = {name: field.clone() for name, field in batch.items()}
    changed["region_features"][hidden | ~there[:, TEXT:]] += 5
    changed["region_boxes"][~there[:, TEXT:]] += 5
    changed["tokens"][:, :TEXT][~there[:, :TEXT]] = 3
    with torch.no_grad():
        said = model.encode(batch)
        assert torch.allclose(said[there], model.encode(changed)[there], atol=1e-6)
        changed["region_features"][~hidden] += 1
        assert not torch.allclose(said[there], model.encode(changed)[there], atol=1e-2)


def test_recipes_mix_images_pairs_and_texts_as_the_paper_does() -> None:
    for size in ("base", "large"):
        config = load(CONFIGS / f"{size}.yaml")
        assert count_parameters(resolve_model(config)) == count_parameters(published(UNIMO, size))
        assert config.optimizer.lr == 5e-5
        shares = {task.label: task.share.at(0) for task in config.built_objective.tasks}
        of_text = shares["spans"] + shares["fragments"]
        of_images = shares["areas"] + shares["classes"]
        of_pairs = sum(shares.values()) - of_text - of_images
        assert of_images == pytest.approx(of_pairs)
        assert of_text == pytest.approx(5 * of_pairs)
    assert config.built_objective.losses == {"mlm": 1.0, "mrfr": 1.0, "mrc-kl": 1.0, "cmcl": 1.0}
    # As many tokens as it has learned positions, which regions do not need.
    spans = config.built_objective.tasks[0].objective
    assert spans.text_length(config.data.sequence) == resolve_model(config).context == 512


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("model.context=40", r"data.sequence \(64\), of which 9 are image regions, must not exceed the 40 learned"),
        ("model.detector=[24,9]", r"classes.* of 24 features and 17 classes, and model.detector has 24 and 9"),
        ("model.detector=[20,17]", r"spans.* reads regions of 24 features, and model.detector has 20"),
        ("objective=masked-lm", "does not fit unimo: it provides no image regions"),
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
        ("model.family=roberta", "it provides image regions after a text"),
    ],
)
def test_what_a_config_cannot_mean_is_one_sentence(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(CONFIGS / "tiny.yaml", [override])


@pytest.mark.parametrize(
    "row",
    [{"region_norms": "twice"}, {"region_boxes": 6}, {"hidden_regions": "nothing"}],
    ids=lambda row: next(iter(row)),
)
def test_words_of_a_table_that_are_unknown_are_one_sentence(row: dict[str, object]) -> None:
    spec = tiny_unimo()
    family = change(UNIMO, **row)
    with pytest.raises(UserError, match=f"{next(iter(row))} is .* which is unknown; use one of"):
        build_model(ModelSpec(family=family, size=spec.size, vocabulary=150, context=spec.context, dropout=0.0))
