"""Images are read as the processor beside a model of Hugging Face's makes them ready, and as ours is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from megaptm.batch import IMAGE, PATCH
from megaptm.errors import UserError
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.image_processor import COMMON_DEFAULTS, DEFAULTS, PROCESSOR, PROCESSOR_OF_MODEL, read_processor
from megaptm.hub.import_run import import_run
from megaptm.inference.loaded_model import load_model
from megaptm.models import Model, build_model
from megaptm.objectives import build_objective
from megaptm.spec import PixelStatistics
from tests.data_pipeline.images.pictures import encoded, pixels
from tests.families.vision import theirs_in, weights_of
from tests.models.vision import GRID, SIDE, clip_batch, clip_model, tiny_clip, tiny_vit, vit_model

PIXELS = GRID * SIDE
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PHOTO = Image.fromarray(pixels(48, 24))
"""Twice as wide as high: whole numbers of pixels are cut off at any of the sizes below."""
MODELS = {
    "vit": (lambda: vit_model(both=False), transformers.ViTForImageClassification, "image-labels"),
    "clip": (clip_model, transformers.CLIPModel, "image-text"),
}
PUBLISHED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ViT's own": ("vit", {"image_processor_type": "ViTImageProcessor", "size": PIXELS}, {"validation_crop": "none"}),
    # As google/vit-base-patch16-224 and facebook/dino-vits16 have them, and facebook/deit-base-patch16-224.
    "ImageNet's": (
        "vit",
        {"feature_extractor_type": "ViTFeatureExtractor", "size": PIXELS, "resample": 3, **IMAGENET},
        {"validation_crop": "none", "resample": "bicubic"},
    ),
    "a border that is cut off": (
        "vit",
        {"image_processor_type": "DeiTImageProcessor", "size": 8, "crop_size": PIXELS, **IMAGENET},
        {"validation_crop": "none", "resample": "bicubic", "crop_fraction": 0.75},
    ),
    "CLIP's own": (
        "clip",
        {"feature_extractor_type": "CLIPFeatureExtractor", "size": PIXELS, "crop_size": PIXELS},
        {"resample": "bicubic"},
    ),
    "from -1 to 1 without a mean": (
        "clip",
        {
            "image_processor_type": "CLIPImageProcessorFast",
            "size": {"shortest_edge": 12},
            "crop_size": PIXELS,
            "resample": 1,
            "rescale_factor": 1 / 127.5,
            "image_mean": [1, 1, 1],
            "image_std": [1, 1, 1],
        },
        {"resample": "lanczos", "crop_fraction": 0.5},
    ),
    "bytes as they are": (
        "vit",
        {"size": PIXELS, "do_rescale": False, "do_normalize": False},
        {"validation_crop": "none"},
    ),
}


def read_here(model: Model, objective: dict[str, Any]) -> torch.Tensor:
    """[1, ...]: what a model says of the photo."""
    content = encoded(PHOTO, "PNG")
    task: Any = build_objective(objective).for_validation()
    patches = task.patches(content, GRID, np.random.default_rng(0), source="photo", remedy="")
    tokens = torch.full((1, GRID**2 + 1), PATCH)
    tokens[:, 0] = IMAGE
    batch = {"tokens": tokens, "patches": torch.from_numpy(patches)[None]}
    with torch.no_grad():
        if model.spec.name == "vit":
            return model.logits(batch)["image-label"]
        batch |= {name: one for name, one in clip_batch(1, seed=0, all_asked=True).items() if "text" in name}
        return model(batch, features=True).features["image-text"][:, : model.spec.size_of("text").width]


def read_there(folder: Path, kind: type[transformers.PreTrainedModel]) -> torch.Tensor:
    """The same by transformers."""
    given = transformers.AutoImageProcessor.from_pretrained(folder)(PHOTO, return_tensors="pt")
    with torch.no_grad():
        if kind is transformers.ViTForImageClassification:
            return theirs_in(folder, kind)(**given).logits
        texts = {"input_ids": clip_batch(1, seed=0, all_asked=True)["text_tokens"]}
        return theirs_in(folder, kind)(**given, **texts).image_embeds


@pytest.mark.parametrize("name", PUBLISHED)
def test_features_of_an_image_are_theirs_there_and_back(tmp_path: Path, name: str) -> None:
    family, said, options = PUBLISHED[name]
    build, kind, task = MODELS[family]
    begun = build()
    to_hugging_face(begun.spec, weights_of(begun), None, tmp_path / "theirs")
    (tmp_path / "theirs" / PROCESSOR).write_text(json.dumps(said))
    found = from_hugging_face(tmp_path / "theirs")
    assert found.image_options == options
    objective = {task: {"size": PIXELS, **found.image_options}}
    if family == "vit":  # whose names of labels are in the config: CLIP's tokenizer is not here
        import_run(str(tmp_path / "theirs"), tmp_path / "run")
        run = load_model(tmp_path / "run")
        assert (run.config.objective, run.spec.own_pixels) == (objective, found.spec.own_pixels)
        model = run.model
        assert load_model(tmp_path / "theirs").config.objective == objective
    else:
        model = build_model(found.spec).eval()
        model.load_state_dict(found.weights)
    expected = read_there(tmp_path / "theirs", kind)
    assert (read_here(model, objective) - expected).abs().max() <= 1e-5
    if found.spec.own_pixels is not None:
        assert (read_here(begun, objective) - expected).abs().max() > 1e-3, "as if nothing had been taken over"
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out", objective=build_objective(objective))
    assert (read_there(tmp_path / "out", kind) - expected).abs().max() <= 1e-5
    again = from_hugging_face(tmp_path / "out")
    assert (again.spec.own_pixels, again.image_options) == (found.spec.own_pixels, found.image_options)


def test_what_a_file_leaves_out_is_what_transformers_does() -> None:
    for name, ours in DEFAULTS.items():
        theirs = getattr(transformers, f"{name}ImageProcessorPil")
        for field, value in (COMMON_DEFAULTS | ours).items():
            usual = getattr(theirs, field, None)
            usual = [*usual] if isinstance(usual, tuple) else usual or False
            if field in ("size", "crop_size") and isinstance(value, int):
                value = {"height": value, "width": value}
            assert usual == value, (name, field)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (
            {"image_std": [0.2, 0.2]},
            r"image_std is \[0.2, 0.2\]; to import vit it must be 3 numbers from 1e-06 to 1,000,000",
        ),
        ({"image_std": 0}, "image_std is 0"),
        ({"image_mean": ["0.5"] * 3}, "image_mean is"),
        ({"resample": 6}, "resample is 6; to import vit it must be Pillow's 0 to 5"),
        ({"resample": True}, "resample is True"),
        ({"rescale_factor": 0}, "rescale_factor is 0"),
        ({"rescale_factor": 1e-6, "image_std": 1e6}, "rescale_factor is 1e-06.* a factor after which"),
        ({"do_resize": False}, "do_resize is False; to import vit it must be true"),
        ({"do_resize": "no"}, "do_resize is 'no'; to import vit it must be true or false"),
        ({"do_pad": True}, "do_pad is True"),
        ({"size": 8}, f"size is 8; to import vit it must be the {PIXELS} pixels of the model"),
        ({"size": {"height": 6, "width": 8}}, "size is .* a square, of 1 to 16,384 pixels"),
        ({"size": {"shortest_edge": 6}}, "do_center_crop is False; to import vit it must be true if size is"),
        ({"do_center_crop": True, "crop_size": 8}, "crop_size is 8; to import vit it must be at most the 6 of size"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "image_processor_type is 'ConvNext.*; only ViTImage"),
        ({"image_processor_type": ["ViTImageProcessor"]}, "image_processor_type is "),
    ],
)
def test_what_cannot_be_done_here_is_refused(tmp_path: Path, said: dict[str, Any], wrong: str) -> None:
    (tmp_path / PROCESSOR).write_text(json.dumps({"size": PIXELS, **said}))
    with pytest.raises(UserError, match=f"{PROCESSOR}: {wrong}"):
        read_processor(tiny_vit(), tmp_path, remedy="")


def test_a_processor_may_be_a_section_of_another_file(tmp_path: Path) -> None:
    """As `CLIPProcessor` writes it today; that one is heard first, as by transformers."""
    spec = tiny_clip()
    assert read_processor(spec, tmp_path, remedy="") is None
    (tmp_path / PROCESSOR).write_text(json.dumps({"size": PIXELS, "crop_size": PIXELS, "resample": 2}))
    (tmp_path / PROCESSOR_OF_MODEL).write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read_processor(spec, tmp_path, remedy="").options == {}
    section = {"size": PIXELS, "crop_size": PIXELS, "image_mean": 0.25, "image_std": [2, 2, 2]}
    (tmp_path / PROCESSOR_OF_MODEL).write_text(json.dumps({"image_processor": section}))
    found = read_processor(spec, tmp_path, remedy="")
    assert found.options == {"resample": "bicubic"}
    assert found.pixels == PixelStatistics((0.25, 0.25, 0.25), (2.0, 2.0, 2.0))


def test_what_is_the_familys_own_is_said_by_none() -> None:
    spec = tiny_clip()
    other = spec.with_pixels(PixelStatistics((0.0, 0.0, 0.0), spec.pixels.std))
    assert other.pixels != spec.pixels
    assert other.with_pixels(spec.pixels) == spec == replace(other, own_pixels=None)
