"""Models of images that read larger ones: their places are those that Hugging Face makes of the same model's."""

import pytest
import torch
import transformers

from megaptm.batch import CHANNELS, IMAGE, PATCH
from megaptm.errors import UserError
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.hub.resolution import interpolate_positions, resize_position_table
from megaptm.inference.loaded_model import load_model
from megaptm.models import build_model
from tests.families.vision import pixel_values, theirs_in, weights_of
from tests.models.vision import GRID, SIDE, clip_batch, clip_model, vit_model

LARGER = 5
MODELS = {
    "vit": (lambda: vit_model(both=False), transformers.ViTForImageClassification),
    "clip": (clip_model, transformers.CLIPModel),
}


@pytest.mark.parametrize("family", MODELS)
def test_larger_images_are_read_as_hugging_face_reads_them(tmp_path, family):
    build, kind = MODELS[family]
    small = build()
    to_hugging_face(small.spec, weights_of(small), None, tmp_path / "out")
    theirs = theirs_in(tmp_path / "out", kind)
    found = resize_position_table(from_hugging_face(tmp_path / "out"), LARGER**2 + 1)
    model = build_model(found.spec).eval()
    model.load_state_dict(found.weights)
    generator = torch.Generator().manual_seed(1)
    patches = torch.randint(256, (2, LARGER**2, CHANNELS * SIDE**2), generator=generator, dtype=torch.uint8)
    tokens = torch.full((2, LARGER**2 + 1), PATCH)
    tokens[:, 0] = IMAGE
    batch = {"tokens": tokens, "patches": patches}
    shown = {"pixel_values": pixel_values(model, patches), "interpolate_pos_encoding": True}
    with torch.no_grad():
        if family == "vit":
            ours, expected = model.logits(batch)["image-label"], theirs(**shown).logits
        else:
            texts = {name: one for name, one in clip_batch(2, seed=3, all_asked=True).items() if "text" in name}
            said = theirs(input_ids=texts["text_tokens"], **shown)
            features, expected = model(batch | texts, features=True).features["image-text"], said.image_embeds
            ours = features[:, : expected.shape[1]]
    assert (ours - expected).abs().max() <= 1e-5


def test_of_as_many_places_nothing_changes(tmp_path):
    model = vit_model(both=False)
    rows = model.embed.position.weight.detach()
    assert torch.allclose(interpolate_positions(rows, before=GRID, after=GRID), rows, atol=1e-6)
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    found = from_hugging_face(tmp_path / "out")
    same = resize_position_table(found, GRID**2 + 1)
    assert all(same.weights[name] is weight for name, weight in found.weights.items())


def test_a_run_begins_from_a_model_of_smaller_images(tmp_path):
    model = vit_model(both=False)
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out")
    done = import_run(str(tmp_path / "out"), tmp_path / "run", [f"model.context={LARGER**2 + 1}"])
    assert done.config.objective == {"image-labels": {"size": LARGER * SIDE}}
    assert (done.config.model.context, done.config.data.sequence) == (26, 26)
    begun = load_model(tmp_path / "run").model.embed.position.weight
    rows = model.embed.position.weight.detach()
    assert torch.allclose(begun, interpolate_positions(rows, before=GRID, after=LARGER))
    for said, wrong in (("many", "must be a positive integer"), ("27", "must be a square number.*26 or 37")):
        with pytest.raises(UserError, match=wrong):
            import_run(str(tmp_path / "out"), tmp_path / "other", [f"model.context={said}"])
    assert not (tmp_path / "other").exists()
