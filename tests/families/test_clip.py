"""CLIP: as many parameters as published, the same as Hugging Face's in features, loss and every gradient, there and
back, and learning which text is of which image."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from megaptm.batch import IGNORED
from megaptm.families.clip import CLIP
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.models import Model, build_model, initial_value
from megaptm.models.image_text import LARGEST
from megaptm.models.model import even_chunks
from megaptm.objectives.pixels import from_patches
from megaptm.plan.count import count
from megaptm.spec import published
from tests.models.vision import SIDE, TEXT, clip_batch, clip_model

CONFIGS = Path(__file__).parents[2] / "configs/clip"
HEAD = "image-text"


@pytest.mark.parametrize(
    ("size", "number"),
    [("b-32", 151_277_313), ("b-16", 149_620_737), ("l-14", 427_616_513), ("l-14-336", 427_944_193)],
)
def test_the_formula_gives_the_published_count(size, number):
    assert count(published(CLIP, size)) == number


def test_the_formula_counts_what_is_built():
    model = clip_model()
    rows = model.spec.padded_vocabulary - model.spec.vocabulary
    built = sum(parameter.numel() for parameter in model.parameters()) - rows * model.spec.token_width
    assert count(model.spec, with_heads=True) == built


def pixel_values(patches: torch.Tensor) -> torch.Tensor:
    """As Hugging Face's processor gives them."""
    images = np.stack([from_patches(one, SIDE) for one in patches.numpy()])
    mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (CLIP.pixel_mean, CLIP.pixel_std))
    return (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / std


def weights_of(model: Model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def theirs_in(folder: Path) -> transformers.PreTrainedModel:
    """With transformers' own loader, which must find every key and no other."""
    found, told = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert not told["mismatched_keys"]
    return found.eval()


def differences(folder: Path) -> tuple[float, float]:
    """The largest of any feature, cosine or the loss, and of the gradient of any parameter."""
    model, batch = clip_model(), clip_batch(5, seed=5, all_asked=True)
    to_hugging_face(model.spec, weights_of(model), None, folder)
    theirs = theirs_in(folder)
    said = theirs(input_ids=batch["text_tokens"], pixel_values=pixel_values(batch["patches"]), return_loss=True)
    features = model(batch, features=True)[HEAD]
    images, texts, scale = features.split([(features.shape[1] - 1) // 2] * 2 + [1], -1)
    loss, number = model(batch)[HEAD]
    gaps = [images - said.image_embeds, texts - said.text_embeds]
    gaps += [scale.mean() * images @ texts.t() - said.logits_per_image, loss / number - said.loss]
    said.loss.backward()
    (loss / number).backward()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    gradients = from_hugging_face(theirs).weights
    moved = [(one.grad - gradients[name]).abs().max().item() for name, one in model.named_parameters()]
    return max(gap.abs().max().item() for gap in gaps), max(moved)


def test_features_cosines_loss_and_every_gradient_are_hugging_faces(tmp_path):
    assert max(differences(tmp_path / "theirs")) <= 1e-5


def test_an_exported_model_comes_back(tmp_path):
    model = clip_model()
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    found = from_hugging_face(tmp_path / "out")
    assert found.weights.keys() == weights_of(model).keys()
    assert all(found.weights[name].equal(weight) for name, weight in weights_of(model).items())
    assert (found.spec.context, found.spec.context_of("text"), found.spec.vocabulary) == (10, TEXT, 150)
    assert found.spec.size_of("text") == model.spec.size_of("text")


def test_the_temperature_stays_at_a_hundred_and_may_come_back():
    model, batch = clip_model(), clip_batch(4, seed=1)
    scale = model.head[HEAD].scale
    slopes = []
    for sign in (1, -1):
        with torch.no_grad():
            scale.fill_(LARGEST + 1)
        scale.grad = None
        last = model(batch, features=True)[HEAD][:, -1]
        assert torch.allclose(last, torch.full_like(last, 100.0))
        (sign * last.sum()).backward()
        slopes.append(scale.grad.item())
    assert slopes[0] > 0
    assert slopes[1] == 0


def test_a_row_without_a_text_is_compared_with_none():
    model, batch = clip_model(), clip_batch(6, seed=2)
    asked = batch["text_end"] != IGNORED
    with torch.no_grad():
        some, few = model(batch)[HEAD], model({name: field[asked] for name, field in batch.items()})[HEAD]
    assert some[1] == few[1] == asked.sum()
    assert some[0].item() == pytest.approx(few[0].item(), rel=1e-6)


def test_what_stands_behind_a_text_changes_nothing():
    model, batch = clip_model(), clip_batch(4, seed=3, all_asked=True)
    other = batch["text_tokens"].clone()
    other[torch.arange(TEXT) > batch["text_end"][:, None]] = 7
    with torch.no_grad():
        assert model(batch)[HEAD][0].equal(model({**batch, "text_tokens": other})[HEAD][0])


def test_parts_of_a_pipeline_are_the_whole():
    model, batch = clip_model(), clip_batch(4, seed=4)
    stream, weights = None, weights_of(model)
    for chunk in even_chunks(model.spec, 4):
        part = Model(model.spec, chunk).eval()
        part.load_state_dict({name: weights[name] for name in part.state_dict()})
        with torch.no_grad():
            stream = part(batch, stream)
    with torch.no_grad():
        whole = model(batch)
    assert stream[HEAD][0].item() == pytest.approx(whole[HEAD][0].item(), rel=1e-6)


def test_an_untrained_model_begins_as_the_papers():
    spec = replace(published(CLIP, "b-32"), vocabulary=256)
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in build_model(spec).named_parameters()}

    def std(name: str) -> float:
        return initial_value(spec, name, tuple(shapes[name]), 1).std().item()

    assert initial_value(spec, "head.image-text.scale", (1,), 1).exp().item() == pytest.approx(1 / 0.07, rel=1e-6)
    assert std("head.image-text.text.weight") == pytest.approx(512**-0.5, rel=0.02)
    assert std("head.image-text.image.weight") == pytest.approx(768**-0.5, rel=0.02)
    assert std("text.3.ffn.down.weight") == pytest.approx((512 * 24) ** -0.5, rel=0.02)
    assert std("image.3.ffn.up.weight") == pytest.approx((2 * 768) ** -0.5, rel=0.02)
    assert std("embed.text_position.weight") == pytest.approx(0.01, rel=0.05)
    assert std("embed.patch.project.weight") == pytest.approx((3 * 3 * 32**2) ** -0.5, rel=0.02)
    assert math.exp(LARGEST) == pytest.approx(100)
