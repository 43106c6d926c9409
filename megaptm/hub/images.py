"""What a folder of Hugging Face's has beside a model of images: names of labels, and how pixels are prepared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.errors import UserError, shown
from megaptm.spec import ModelSpec
from megaptm.storage import read_object, write_whole
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.labels import label_tokenizer

PROCESSOR = "preprocessor_config.json"
ROUNDED = 1e-4
"""How far apart numbers of a processor are that are the same."""
BILINEAR = 2
"""Pillow's number of it."""


def label_names(tokenizer: Tokenizer | None, labels: int) -> dict[int, str]:
    """Label -> name; of those that a corpus has not, as transformers calls them."""
    known = 0 if tokenizer is None else tokenizer.vocabulary
    return {
        label: tokenizer.name(label) if tokenizer is not None and label < known else f"LABEL_{label}"
        for label in range(labels)
    }


def write_processor(spec: ModelSpec, folder: Path) -> None:
    """`preprocessor_config.json`: what training does to a held-out image, but that `ViTImageProcessor` takes all of it,
    and not the middle; `CLIPImageProcessor` takes that."""
    assert spec.size.patch is not None
    side = spec.grid * spec.size.patch
    square: dict[str, Any] = {"height": side, "width": side}
    if spec.family.has_tokens:
        how = {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "CLIPProcessor",
            "size": {"shortest_edge": side},
            "do_center_crop": True,
            "crop_size": square,
            "do_convert_rgb": True,
        }
    else:
        how = {"image_processor_type": "ViTImageProcessor", "size": square}
    content = {
        **how,
        "do_resize": True,
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [*spec.family.pixel_mean],
        "image_std": [*spec.family.pixel_std],
    }
    write_whole(folder / PROCESSOR, json.dumps(content, indent=1).encode() + b"\n")


def refuse_other_pixels(spec: ModelSpec, folder: Path, *, remedy: str) -> None:
    """Raise where a folder's processor, if it has one, makes other numbers of pixels than are made here: of these the
    model has learned nothing."""
    if not (folder / PROCESSOR).is_file():
        return
    said = read_object(folder / PROCESSOR, remedy=remedy)
    ours = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [*spec.family.pixel_mean],
        "image_std": [*spec.family.pixel_std],
    }
    for name, wanted in ours.items():
        if name in said and not _near(said[name], wanted):
            raise UserError(
                f"{folder / PROCESSOR}: {name} is {shown(str(said[name]))}; pixels are {wanted} to {spec.name}, and no "
                "other can be imported."
            )


def _near(said: Any, wanted: Any) -> bool:
    """Whether it is the same, but for how numbers are rounded."""
    if isinstance(wanted, list):
        return isinstance(said, list) and len(said) == len(wanted) and all(map(_near, said, wanted))
    if isinstance(wanted, bool):
        return said is wanted
    return type(said) in (int, float) and abs(said - wanted) < ROUNDED


def read_labels(folder: Path, config_file: str, *, remedy: str, labels: int) -> Tokenizer:
    """The names of labels in a folder's config; of those that are there twice, each with its number."""
    config: Mapping[str, Any] = read_object(folder / config_file, remedy=remedy)
    said = config.get("id2label")
    table = said if isinstance(said, Mapping) else {}
    names = [str(table.get(str(label), f"LABEL_{label}")) for label in range(labels)]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return label_tokenizer([f"{name} ({label})" if name in twice else name for label, name in enumerate(names)])
