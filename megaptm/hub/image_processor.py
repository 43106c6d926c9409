"""Conversion of `preprocessor_config.json`, the image preprocessing of a Hugging Face model.

It scales an image, crops its center and normalizes its pixels. In megaptm the first two are options of the objective
for held-out images, and the pixel statistics belong to the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from megaptm.batch import CHANNELS
from megaptm.errors import UserError, shown
from megaptm.objectives import BaseObjective
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.images import ImageLabels, ImageObjective
from megaptm.objectives.pixels import RESAMPLINGS
from megaptm.spec import MOST_OF_PIXELS, ModelSpec, PixelStatistics
from megaptm.storage import read_json_object, write_atomically

PROCESSOR = "preprocessor_config.json"
OF_ALL = "processor_config.json"
"""File that transformers reads first, if it has a section for images."""
SECTION = "image_processor"
KIND = re.compile(r"(\w+?)(?:FeatureExtractor|ImageProcessor)(?:Fast|Pil)?")
"""Old and new class names."""
LEVELS = 255
"""Largest pixel value."""
LARGEST = 1 << 14
"""Largest side in pixels, the same as for the option `size` of the objective."""

HALVES = [0.5] * CHANNELS
OF_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": RESAMPLINGS.index("bicubic"),
    "size": {"shortest_edge": 224},
    "crop_size": 224,
    "do_center_crop": True,
}
OF_VIT = {"image_mean": HALVES, "image_std": HALVES, "resample": RESAMPLINGS.index("bilinear"), "size": 224}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ViT": OF_VIT,
    "DeiT": {**OF_VIT, "resample": RESAMPLINGS.index("bicubic"), "size": 256, "crop_size": 224, "do_center_crop": True},
    "CLIP": OF_CLIP,
    "Bit": OF_CLIP,
}
"""Class name without its suffix -> default values. Other classes do further steps."""
ALWAYS = {"do_resize": True, "do_center_crop": False, "do_rescale": True, "do_normalize": True, "do_pad": False}
KEEP_SHAPE = ("CLIP", "Bit")
"""Classes for which a single number in `size` means the shorter side; for the others it means both sides."""


@dataclass(frozen=True)
class ImageProcessor:
    """Preprocessing of an image."""

    pixels: PixelStatistics
    resample: str
    crop: str
    """`middle`, or `whole`: the image is stretched to a square."""
    inner: float
    """Share of each side that the center crop keeps."""

    @property
    def options(self) -> dict[str, Any]:
        """Options of an objective that differ from its defaults."""
        usual = {"resample": ImageObjective.resample, "held_out_crop": "middle", "inner": ImageObjective.inner}
        said = {"resample": self.resample, "held_out_crop": self.crop, "inner": self.inner}
        return {name: value for name, value in said.items() if value != usual[name]}


def write_processor(spec: ModelSpec, folder: Path, objective: BaseObjective) -> None:
    """Write the preprocessing of this objective's held-out images."""
    assert spec.size.patch is not None
    side = spec.grid * spec.size.patch
    tasks = [task.objective for task in tasks_of(objective)]
    # The preprocessing of user-defined objectives is unknown.
    task = next((one for one in tasks if isinstance(one, ImageObjective)), ImageLabels()).held_out()
    scaled = round(side / task.inner)
    cut = task.crop == "middle" or scaled != side
    content = {
        # CLIP's class crops in all versions of transformers.
        "image_processor_type": "CLIPImageProcessor" if cut or spec.family.has_tokens else "ViTImageProcessor",
        **({"processor_class": "CLIPProcessor"} if spec.family.has_tokens else {}),
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": scaled} if task.crop == "middle" else {"height": scaled, "width": scaled},
        "resample": RESAMPLINGS.index(task.resample),
        "do_center_crop": cut,
        **({"crop_size": {"height": side, "width": side}} if cut else {}),
        "do_rescale": True,
        "rescale_factor": 1 / LEVELS,
        "do_normalize": True,
        "image_mean": [*spec.pixels.mean],
        "image_std": [*spec.pixels.std],
    }
    write_atomically(folder / PROCESSOR, json.dumps(content, indent=1).encode() + b"\n")


def read_processor(spec: ModelSpec, folder: Path, *, remedy: str) -> ImageProcessor | None:
    """Return the image processor of a folder, or None. Raise UserError for settings that megaptm cannot reproduce,
    including another number of pixels than the model's."""
    for name in (OF_ALL, PROCESSOR):
        if (folder / name).is_file():
            content = read_json_object(folder / name, remedy=remedy)
            said = content.get(SECTION) if name == OF_ALL else content
            if isinstance(said, Mapping):
                return _Said(folder / name, said, spec).processor()
    return None


class _Said:
    """Fields of a file, validated one by one."""

    def __init__(self, path: Path, said: Mapping[str, Any], spec: ModelSpec) -> None:
        self.path, self.spec = path, spec
        kind = said.get("image_processor_type") or said.get("feature_extractor_type")
        kind = kind or ("CLIPImageProcessor" if spec.family.has_tokens else "ViTImageProcessor")
        found = KIND.fullmatch(kind) if isinstance(kind, str) else None
        self.kind = found[1] if found else ""
        if self.kind not in DEFAULTS:
            known = ", ".join(f"{one}ImageProcessor" for one in DEFAULTS)
            raise UserError(f"{path}: image_processor_type is {shown(kind)}; only {known} can be imported.")
        self.values = ALWAYS | DEFAULTS[self.kind] | {"rescale_factor": 1 / LEVELS}
        self.values |= {name: value for name, value in said.items() if value is not None}

    def processor(self) -> ImageProcessor:
        if not self.flag("do_resize"):
            self.refuse("do_resize", "true")
        if self.flag("do_pad"):
            self.refuse("do_pad", "false")
        resample = self.values["resample"]
        if type(resample) is not int or not 0 <= resample < len(RESAMPLINGS):
            self.refuse("resample", f"Pillow's 0 to {len(RESAMPLINGS) - 1}")
        crop, scaled = self.scaled()
        cut = self.square("crop_size", scaled) if self.flag("do_center_crop") else scaled
        if crop == "middle" and not self.flag("do_center_crop"):
            self.refuse("do_center_crop", "true where size is that of the shorter side")
        if cut > scaled:
            self.refuse("crop_size", f"at most the {scaled} of size")
        assert self.spec.size.patch is not None
        if cut != (side := self.spec.grid * self.spec.size.patch):
            self.refuse("crop_size" if self.flag("do_center_crop") else "size", f"the {side} pixels of the model")
        return ImageProcessor(self.pixels(), RESAMPLINGS[resample], crop, cut / scaled)

    def pixels(self) -> PixelStatistics:
        """Return the statistics that normalize pixels from 0 to 1 equally."""
        factor = self.values["rescale_factor"] if self.flag("do_rescale") else 1
        if type(factor) not in (int, float) or not 1 / MOST_OF_PIXELS <= factor <= MOST_OF_PIXELS:
            self.refuse("rescale_factor", f"a number from {1 / MOST_OF_PIXELS:g} to {MOST_OF_PIXELS:,.0f}")
        mean, std = (0.0,) * CHANNELS, (1.0,) * CHANNELS
        if self.flag("do_normalize"):
            mean = self.of_channels("image_mean", -MOST_OF_PIXELS)
            std = self.of_channels("image_std", 1 / MOST_OF_PIXELS)
        if not math.isclose(factor, 1 / LEVELS):
            mean, std = (tuple(one / (LEVELS * factor) for one in numbers) for numbers in (mean, std))
            if any(not 1 / MOST_OF_PIXELS <= one <= MOST_OF_PIXELS for one in std):
                self.refuse("rescale_factor", "one that leaves numbers of pixels some size")
            if any(abs(one) > MOST_OF_PIXELS for one in mean):
                self.refuse("rescale_factor", "one that leaves numbers of pixels some size")
        return PixelStatistics(mean, std)  # type: ignore[arg-type]

    def of_channels(self, name: str, least: float) -> tuple[float, ...]:
        """Return three numbers from a list, or from one number for all channels."""
        said = self.values[name]
        numbers = said if isinstance(said, list) else [said] * CHANNELS
        good = len(numbers) == CHANNELS and all(
            type(one) in (int, float) and least <= one <= MOST_OF_PIXELS for one in numbers
        )
        if not good:
            self.refuse(name, f"{CHANNELS} numbers from {least:g} to {MOST_OF_PIXELS:,.0f}")
        return tuple(map(float, numbers))

    def scaled(self) -> tuple[str, int]:
        """Return the crop mode and the scaled side in pixels."""
        said = self.values["size"]
        if type(said) is int and self.kind in KEEP_SHAPE:
            said = {"shortest_edge": said}
        if isinstance(said, Mapping) and {*said} == {"shortest_edge"}:
            return "middle", self.pixels_of("size", said["shortest_edge"])
        return "whole", self.square("size", None)

    def square(self, name: str, otherwise: int | None) -> int:
        """Return the side of a square, from one number or from height and width."""
        said = self.values.get(name, otherwise)
        if isinstance(said, Mapping) and {*said} == {"height", "width"} and said["height"] == said["width"]:
            said = said["height"]
        return self.pixels_of(name, said)

    def pixels_of(self, name: str, said: Any) -> int:
        if type(said) is not int or not 1 <= said <= LARGEST:
            self.refuse(name, f"a square, of 1 to {LARGEST:,} pixels")
        return int(said)

    def flag(self, name: str) -> bool:
        if type(self.values[name]) is not bool:
            self.refuse(name, "true or false")
        return bool(self.values[name])

    def refuse(self, name: str, wanted: str) -> NoReturn:
        raise UserError(
            f"{self.path}: {name} is {shown(self.values.get(name))}; of {self.spec.name} it must be {wanted} to be "
            "imported."
        )
