"""Conversion of `preprocessor_config.json`, the image preprocessing of a Hugging Face model.

It scales an image, crops its center and normalizes its pixels. In megaptm the first two are options of the objective
for held-out images, and the pixel statistics belong to the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from megaptm.errors import UserError, quote_value
from megaptm.families.vit.objectives import ImageLabels, ImageObjective
from megaptm.families.vit.pixels import RESAMPLINGS
from megaptm.families.vit.spec import CHANNELS, MAX_PIXEL_STATISTIC, Channels, patch_input, patch_side, patches_per_side
from megaptm.hub.folder import REMEDY
from megaptm.hub.imported_weights import ImportedModel
from megaptm.objectives import BaseObjective
from megaptm.objectives.composed import objective_tasks
from megaptm.spec import ModelSpec
from megaptm.storage import read_json_object, write_atomically

PROCESSOR = "preprocessor_config.json"
PROCESSOR_OF_MODEL = "processor_config.json"
"""File that transformers reads first, if it has a section for images."""
SECTION = "image_processor"
CLASS_NAME = re.compile(r"(\w+?)(?:FeatureExtractor|ImageProcessor)(?:Fast|Pil)?")
"""Pattern of the old and new class names of image processors."""
MAX_PIXEL_VALUE = 255
"""Maximum value of a pixel."""
MAX_SIDE = 1 << 14
"""Maximum side of an image in pixels, the same as for the option `size` of the objective."""

HALVES = [0.5] * CHANNELS
CLIP_DEFAULTS = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": RESAMPLINGS.index("bicubic"),
    "size": {"shortest_edge": 224},
    "crop_size": 224,
    "do_center_crop": True,
}
VIT_DEFAULTS = {"image_mean": HALVES, "image_std": HALVES, "resample": RESAMPLINGS.index("bilinear"), "size": 224}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": VIT_DEFAULTS,
    "DeiT": {
        **VIT_DEFAULTS,
        "resample": RESAMPLINGS.index("bicubic"),
        "size": 256,
        "crop_size": 224,
        "do_center_crop": True,
    },
    "CLIP": CLIP_DEFAULTS,
    "Bit": CLIP_DEFAULTS,
}
"""Class name of an image processor without its suffix -> default values. Other classes do further steps."""
COMMON_DEFAULTS = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": False,
}
KEEP_ASPECT_RATIO = ("CLIP", "Bit")
"""Image processors for which a single number in `size` means the shorter side; for the others it means both sides."""


@dataclass(frozen=True)
class ImageProcessor:
    """Preprocessing of an image by a Hugging Face model."""

    mean: Channels
    std: Channels
    resample: str
    crop: str
    """Crop of the image: `center`, or `none`, which stretches it to a square."""
    crop_fraction: float
    """Share of each side that the center crop keeps."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of an image objective that differ from its defaults, for this preprocessing."""
        defaults = {
            "resample": ImageObjective.resample,
            "validation_crop": "center",
            "crop_fraction": ImageObjective.crop_fraction,
        }
        values = {"resample": self.resample, "validation_crop": self.crop, "crop_fraction": self.crop_fraction}
        return {name: value for name, value in values.items() if value != defaults[name]}


def write_processor(spec: ModelSpec, folder: Path, objective: BaseObjective) -> None:
    """Write the image preprocessing of this objective's held-out images as `preprocessor_config.json`."""
    side = patches_per_side(spec) * patch_side(spec)
    tasks = [task.objective for task in objective_tasks(objective)]
    # The preprocessing of user-defined objectives is unknown.
    task = next((task for task in tasks if isinstance(task, ImageObjective)), ImageLabels()).for_validation()
    scaled_side = round(side / task.crop_fraction)
    has_crop = task.crop == "center" or scaled_side != side
    content = {
        # CLIP's class crops in all versions of transformers.
        "image_processor_type": "CLIPImageProcessor" if has_crop or spec.family.has_tokens else "ViTImageProcessor",
        **({"processor_class": "CLIPProcessor"} if spec.family.has_tokens else {}),
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": scaled_side}
        if task.crop == "center"
        else {"height": scaled_side, "width": scaled_side},
        "resample": RESAMPLINGS.index(task.resample),
        "do_center_crop": has_crop,
        **({"crop_size": {"height": side, "width": side}} if has_crop else {}),
        "do_rescale": True,
        "rescale_factor": 1 / MAX_PIXEL_VALUE,
        "do_normalize": True,
        "image_mean": [*patch_input(spec.family).mean],
        "image_std": [*patch_input(spec.family).std],
    }
    write_atomically(folder / PROCESSOR, json.dumps(content, indent=1).encode() + b"\n")


def read_processor(spec: ModelSpec, folder: Path, *, remedy: str) -> ImageProcessor | None:
    """Read the image processor of a folder, or None. Raise UserError for settings that megaptm cannot reproduce,
    including another number of pixels than the model's."""
    for name in (PROCESSOR_OF_MODEL, PROCESSOR):
        if (folder / name).is_file():
            content = read_json_object(folder / name, remedy=remedy)
            fields = content.get(SECTION) if name == PROCESSOR_OF_MODEL else content
            if isinstance(fields, Mapping):
                return ProcessorFields(folder / name, fields, spec).parse()
    return None


class ProcessorFields:
    """Fields of `preprocessor_config.json`, validated one by one."""

    def __init__(self, path: Path, fields: Mapping[str, Any], spec: ModelSpec) -> None:
        self.path, self.spec = path, spec
        kind = fields.get("image_processor_type") or fields.get("feature_extractor_type")
        kind = kind or ("CLIPImageProcessor" if spec.family.has_tokens else "ViTImageProcessor")
        match = CLASS_NAME.fullmatch(kind) if isinstance(kind, str) else None
        self.kind = match[1] if match else ""
        if self.kind not in DEFAULTS:
            known = ", ".join(f"{name}ImageProcessor" for name in DEFAULTS)
            raise UserError(f"{path}: image_processor_type is {quote_value(kind)}; only {known} can be imported.")
        self.values = COMMON_DEFAULTS | DEFAULTS[self.kind] | {"rescale_factor": 1 / MAX_PIXEL_VALUE}
        self.values |= {name: value for name, value in fields.items() if value is not None}

    def parse(self) -> ImageProcessor:
        if not self.parse_flag("do_resize"):
            self.refuse("do_resize", "true")
        if self.parse_flag("do_pad"):
            self.refuse("do_pad", "false")
        resample = self.values["resample"]
        if type(resample) is not int or not 0 <= resample < len(RESAMPLINGS):
            self.refuse("resample", f"Pillow's 0 to {len(RESAMPLINGS) - 1}")
        crop, scaled_side = self.parse_size()
        crop_side = self.parse_square("crop_size", scaled_side) if self.parse_flag("do_center_crop") else scaled_side
        if crop == "center" and not self.parse_flag("do_center_crop"):
            self.refuse("do_center_crop", "true if size is the shorter side")
        if crop_side > scaled_side:
            self.refuse("crop_size", f"at most the {scaled_side} of size")
        if crop_side != (side := patches_per_side(self.spec) * patch_side(self.spec)):
            self.refuse("crop_size" if self.parse_flag("do_center_crop") else "size", f"the {side} pixels of the model")
        return ImageProcessor(*self.parse_pixels(), RESAMPLINGS[resample], crop, crop_side / scaled_side)

    def parse_pixels(self) -> tuple[Channels, Channels]:
        """Parse an image processor's pixel statistics: return the mean and standard deviation that give the same
        normalization for pixels scaled to [0, 1]."""
        factor = self.values["rescale_factor"] if self.parse_flag("do_rescale") else 1
        if type(factor) not in (int, float) or not 1 / MAX_PIXEL_STATISTIC <= factor <= MAX_PIXEL_STATISTIC:
            self.refuse("rescale_factor", f"a number from {1 / MAX_PIXEL_STATISTIC:g} to {MAX_PIXEL_STATISTIC:,.0f}")
        mean, std = (0.0,) * CHANNELS, (1.0,) * CHANNELS
        if self.parse_flag("do_normalize"):
            mean = self.parse_channels("image_mean", -MAX_PIXEL_STATISTIC)
            std = self.parse_channels("image_std", 1 / MAX_PIXEL_STATISTIC)
        if not math.isclose(factor, 1 / MAX_PIXEL_VALUE):
            mean, std = (tuple(value / (MAX_PIXEL_VALUE * factor) for value in values) for values in (mean, std))
            if any(not 1 / MAX_PIXEL_STATISTIC <= value <= MAX_PIXEL_STATISTIC for value in std):
                self.refuse("rescale_factor", "a factor after which mean and std are in range")
            if any(abs(value) > MAX_PIXEL_STATISTIC for value in mean):
                self.refuse("rescale_factor", "a factor after which mean and std are in range")
        return mean, std  # type: ignore[return-value]

    def parse_channels(self, name: str, minimum: float) -> tuple[float, ...]:
        """Parse an image processor's value per color channel: return three numbers from a list, or from one number for
        all channels."""
        value = self.values[name]
        numbers = value if isinstance(value, list) else [value] * CHANNELS
        if len(numbers) != CHANNELS or not all(
            type(number) in (int, float) and minimum <= number <= MAX_PIXEL_STATISTIC for number in numbers
        ):
            self.refuse(name, f"{CHANNELS} numbers from {minimum:g} to {MAX_PIXEL_STATISTIC:,.0f}")
        return tuple(map(float, numbers))

    def parse_size(self) -> tuple[str, int]:
        """Parse an image processor's size: return the crop mode and the side in pixels after scaling."""
        size = self.values["size"]
        if type(size) is int and self.kind in KEEP_ASPECT_RATIO:
            size = {"shortest_edge": size}
        if isinstance(size, Mapping) and {*size} == {"shortest_edge"}:
            return "center", self.check_side("size", size["shortest_edge"])
        return "none", self.parse_square("size", None)

    def parse_square(self, name: str, default: int | None) -> int:
        """Parse an image processor's square: return its side, from one number or from height and width."""
        side = self.values.get(name, default)
        if isinstance(side, Mapping) and {*side} == {"height", "width"} and side["height"] == side["width"]:
            side = side["height"]
        return self.check_side(name, side)

    def check_side(self, name: str, side: Any) -> int:
        if type(side) is not int or not 1 <= side <= MAX_SIDE:
            self.refuse(name, f"a square, of 1 to {MAX_SIDE:,} pixels")
        return int(side)

    def parse_flag(self, name: str) -> bool:
        if type(self.values[name]) is not bool:
            self.refuse(name, "true or false")
        return bool(self.values[name])

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise UserError(
            f"{self.path}: {name} is {quote_value(self.values.get(name))}; to import {self.spec.name} it must "
            f"be {expected}."
        )


def apply_processor(model: ImportedModel, folder: Path | None) -> ImportedModel:
    """Return the imported model with the pixel statistics and options of the image processor in the folder, if there is
    one."""
    if folder is None or (processor := read_processor(model.spec, folder, remedy=REMEDY)) is None:
        return model
    family = model.spec.family
    family = family.with_input(replace(patch_input(family), mean=processor.mean, std=processor.std))
    return replace(model, spec=replace(model.spec, family=family), objective_options=processor.options)


def complete_config(model: ImportedModel, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a run's config with the options of the image objective for these images."""
    spec = model.spec
    options: dict[str, Any] = {"size": patches_per_side(spec) * patch_side(spec), **model.objective_options}
    options |= {"text_length": spec.max_text_length} if spec.family.has_tokens else {}
    data = values["data"] | {"sequence": spec.context}
    return values | {"data": data, "objective": {spec.family.objectives[0]: options}}
