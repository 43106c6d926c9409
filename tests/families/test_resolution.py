"""Import of image models with a larger resolution: interpolated positions equal Hugging Face's."""

import pytest
import torch
import transformers

from megaptm.errors import UserError
from megaptm.families.vit.resolution import interpolate_positions, resize_position_table
from megaptm.families.vit.spec import CHANNELS, IMAGE, PATCH
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.inference.loaded_model import load_model
from megaptm.models.model import Model
from tests.families.vision import load_reference, pixel_values, weights_of
from tests.models.vision import GRID, SIDE, clip_batch, clip_model, vit_model

LARGER = 5
MODELS = {
    "vit": (lambda: vit_model(both=False), transformers.ViTForImageClassification),
    "clip": (clip_model, transformers.CLIPModel),
}


@pytest.mark.parametrize("family", MODELS)
def test_larger_images_equal_hugging_face(tmp_path, family):
    build, model_class = MODELS[family]
    small = build()
    to_hugging_face(small.spec, weights_of(small), None, tmp_path / "out")
    reference = load_reference(tmp_path / "out", model_class)
    imported = resize_position_table(from_hugging_face(tmp_path / "out"), LARGER**2 + 1)
    model = Model(imported.spec).eval()
    model.load_state_dict(imported.weights)
    generator = torch.Generator().manual_seed(1)
    patches = torch.randint(256, (2, LARGER**2, CHANNELS * SIDE**2), generator=generator, dtype=torch.uint8)
    tokens = torch.full((2, LARGER**2 + 1), PATCH)
    tokens[:, 0] = IMAGE
    batch = {"tokens": tokens, "patches": patches}
    images = {"pixel_values": pixel_values(model, patches), "interpolate_pos_encoding": True}
    with torch.no_grad():
        if family == "vit":
            actual, expected = model.logits(batch)["image-label"], reference(**images).logits
        else:
            texts = {name: field for name, field in clip_batch(2, seed=3, all_paired=True).items() if "text" in name}
            output = reference(input_ids=texts["text_tokens"], **images)
            features, expected = model(batch | texts, features=True).features["image-text"], output.image_embeds
            actual = features[:, : expected.shape[1]]
    assert (actual - expected).abs().max() <= 1e-5


def test_equal_resolution_changes_nothing(tmp_path):
    model = vit_model(both=False)
    rows = model.embed.position.weight.detach()
    assert torch.allclose(interpolate_positions(rows, before=GRID, after=GRID), rows, atol=1e-6)
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    imported = from_hugging_face(tmp_path / "out")
    same = resize_position_table(imported, GRID**2 + 1)
    assert all(same.weights[name] is weight for name, weight in imported.weights.items())


def test_import_with_larger_images(tmp_path):
    model = vit_model(both=False)
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    imported = import_run(str(tmp_path / "out"), tmp_path / "run", [f"model.context={LARGER**2 + 1}"])
    assert imported.config.objective == {"image-labels": {"size": LARGER * SIDE}}
    assert (imported.config.model.context, imported.config.data.sequence) == (26, 26)
    table = load_model(tmp_path / "run").model.embed.position.weight
    rows = model.embed.position.weight.detach()
    assert torch.allclose(table, interpolate_positions(rows, before=GRID, after=LARGER))
    for context, message in (("many", "must be a positive integer"), ("27", "must be a square number.*26 or 37")):
        with pytest.raises(UserError, match=message):
            import_run(str(tmp_path / "out"), tmp_path / "other", [f"model.context={context}"])
    assert not (tmp_path / "other").exists()
