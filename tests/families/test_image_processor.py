"""Image processors: equal preprocessing in megaptm and transformers, after import and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from megaptm.errors import UserError
from megaptm.families.vit.image_processor import (
    COMMON_DEFAULTS,
    DEFAULTS,
    PROCESSOR,
    PROCESSOR_OF_MODEL,
    read_processor,
)
from megaptm.families.vit.spec import IMAGE, PATCH
from megaptm.hub.huggingface import from_hugging_face, to_hugging_face
from megaptm.hub.import_run import import_run
from megaptm.inference.loaded_model import load_model
from megaptm.models.model import Model
from megaptm.objectives import build_objective
from tests.data_pipeline.images.pictures import encoded, pixels
from tests.families.vision import load_reference, weights_of
from tests.models.vision import GRID, SIDE, clip_batch, clip_model, tiny_clip, tiny_vit, vit_model

PIXELS = GRID * SIDE
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PHOTO = Image.fromarray(pixels(48, 24))
"""Twice as wide as high, so that all crops below have integer sizes."""
MODELS = {
    "vit": (lambda: vit_model(both=False), transformers.ViTForImageClassification, "image-labels"),
    "clip": (clip_model, transformers.CLIPModel, "image-text"),
}
PUBLISHED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ViT's own": ("vit", {"image_processor_type": "ViTImageProcessor", "size": PIXELS}, {"validation_crop": "none"}),
    # As in google/vit-base-patch16-224, facebook/dino-vits16 and facebook/deit-base-patch16-224.
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


def model_output(model: Model, objective: dict[str, Any]) -> torch.Tensor:
    """Return megaptm's output [1, ...] for the photo."""
    content = encoded(PHOTO, "PNG")
    task: Any = build_objective(objective).for_validation()
    patches = task.decode_patches(content, GRID, np.random.default_rng(0), source="photo", remedy="")
    tokens = torch.full((1, GRID**2 + 1), PATCH)
    tokens[:, 0] = IMAGE
    batch = {"tokens": tokens, "patches": torch.from_numpy(patches)[None]}
    with torch.no_grad():
        if model.spec.name == "vit":
            return model.logits(batch)["image-label"]
        batch |= {name: field for name, field in clip_batch(1, seed=0, all_paired=True).items() if "text" in name}
        return model(batch, features=True).features["image-text"][:, : model.spec.size_of("text").width]


def reference_output(folder: Path, model_class: type[transformers.PreTrainedModel]) -> torch.Tensor:
    """Return transformers' output for the photo."""
    inputs = transformers.AutoImageProcessor.from_pretrained(folder)(PHOTO, return_tensors="pt")
    with torch.no_grad():
        if model_class is transformers.ViTForImageClassification:
            return load_reference(folder, model_class)(**inputs).logits
        texts = {"input_ids": clip_batch(1, seed=0, all_paired=True)["text_tokens"]}
        return load_reference(folder, model_class)(**inputs, **texts).image_embeds


@pytest.mark.parametrize("name", PUBLISHED)
def test_processor_round_trip(tmp_path: Path, name: str) -> None:
    family, processor, options = PUBLISHED[name]
    build, model_class, task = MODELS[family]
    original = build()
    to_hugging_face(original.spec, weights_of(original), None, tmp_path / "theirs")
    (tmp_path / "theirs" / PROCESSOR).write_text(json.dumps(processor))
    imported = from_hugging_face(tmp_path / "theirs")
    assert imported.objective_options == options
    objective = {task: {"size": PIXELS, **imported.objective_options}}
    if family == "vit":  # its label names are in the config; CLIP would need a tokenizer
        import_run(str(tmp_path / "theirs"), tmp_path / "run")
        run = load_model(tmp_path / "run")
        assert (run.config.objective, run.spec.family.inputs) == (objective, imported.spec.family.inputs)
        model = run.model
        assert load_model(tmp_path / "theirs").config.objective == objective
    else:
        model = Model(imported.spec).eval()
        model.load_state_dict(imported.weights)
    expected = reference_output(tmp_path / "theirs", model_class)
    assert (model_output(model, objective) - expected).abs().max() <= 1e-5
    if imported.spec.family.inputs != original.spec.family.inputs:
        assert (model_output(original, objective) - expected).abs().max() > 1e-3, "as if nothing had been taken over"
    to_hugging_face(model.spec, weights_of(model), None, tmp_path / "out", objective=build_objective(objective))
    assert (reference_output(tmp_path / "out", model_class) - expected).abs().max() <= 1e-5
    again = from_hugging_face(tmp_path / "out")
    assert again.spec.family.inputs == imported.spec.family.inputs
    assert again.objective_options == imported.objective_options


def test_defaults_equal_transformers() -> None:
    for name, defaults in DEFAULTS.items():
        processor_class = getattr(transformers, f"{name}ImageProcessorPil")
        for field, value in (COMMON_DEFAULTS | defaults).items():
            expected = getattr(processor_class, field, None)
            expected = [*expected] if isinstance(expected, tuple) else expected or False
            if field in ("size", "crop_size") and isinstance(value, int):
                value = {"height": value, "width": value}
            assert expected == value, (name, field)


@pytest.mark.parametrize(
    ("fields", "message"),
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
def test_unsupported_field_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    (tmp_path / PROCESSOR).write_text(json.dumps({"size": PIXELS, **fields}))
    with pytest.raises(UserError, match=f"{PROCESSOR}: {message}"):
        read_processor(tiny_vit(), tmp_path, remedy="")


def test_processor_as_a_section(tmp_path: Path) -> None:
    """`CLIPProcessor` writes such a file now; transformers reads it first."""
    spec = tiny_clip()
    assert read_processor(spec, tmp_path, remedy="") is None
    (tmp_path / PROCESSOR).write_text(json.dumps({"size": PIXELS, "crop_size": PIXELS, "resample": 2}))
    (tmp_path / PROCESSOR_OF_MODEL).write_text(json.dumps({"processor_class": "CLIPProcessor"}))
    assert read_processor(spec, tmp_path, remedy="").options == {}
    section = {"size": PIXELS, "crop_size": PIXELS, "image_mean": 0.25, "image_std": [2, 2, 2]}
    (tmp_path / PROCESSOR_OF_MODEL).write_text(json.dumps({"image_processor": section}))
    processor = read_processor(spec, tmp_path, remedy="")
    assert processor.options == {"resample": "bicubic"}
    assert (processor.mean, processor.std) == ((0.25, 0.25, 0.25), (2.0, 2.0, 2.0))
