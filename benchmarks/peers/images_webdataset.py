"""Plain webdataset over shards of images: shuffled, decoded, cropped, scaled and batched by torch's DataLoader, as in
its examples. Imported, so that rounds can alternate."""

import io
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image
from tokenizers import Tokenizer
from torch.utils.data import DataLoader

ASPECT = (math.log(3 / 4), math.log(4 / 3))


class Crop:
    """Convert the bytes of a JPEG to uint8 [3, size, size].

    - `random`: a random crop, with an aspect ratio from 3/4 to 4/3, flipped with a probability of one half
    - other kinds: a random square crop of maximum size

    The JPEG decoder downscales as far as possible before the crop is resized.
    """

    def __init__(self, kind: str, size: int):
        self.kind, self.size = kind, size

    def __call__(self, content: bytes) -> torch.Tensor:
        rng, size = np.random.default_rng(), self.size
        image = Image.open(io.BytesIO(content))
        width, height = image.size
        box = self.part(width, height, rng)
        shrink = min(box[2] - box[0], box[3] - box[1]) / size
        if image.format == "JPEG" and shrink >= 2:
            image.draft("RGB", (int(width / shrink), int(height / shrink)))
        across, down = image.size[0] / width, image.size[1] / height
        part = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
        shown = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=part)
        if self.kind == "random" and rng.integers(2):
            shown = shown.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(shown)).permute(2, 0, 1).contiguous()

    def part(self, width: int, height: int, rng: np.random.Generator) -> tuple[float, float, float, float]:
        if self.kind == "random":
            for _ in range(10):
                area, ratio = rng.uniform(0.05, 1) * width * height, math.exp(rng.uniform(*ASPECT))
                across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
                if 0 < across <= width and 0 < down <= height:
                    left, upper = rng.integers(width - across + 1), rng.integers(height - down + 1)
                    return left, upper, left + across, upper + down
        side = min(width, height)
        left, upper = rng.integers(width - side + 1), rng.integers(height - side + 1)
        return left, upper, left + side, upper + side


class Ids:
    """Token ids of a text, int64 [positions], with start and end tokens."""

    def __init__(self, file: str, length: int):
        self.file, self.length = file, length
        self.tokenizer: Tokenizer | None = None

    def __call__(self, text: bytes) -> torch.Tensor:
        if self.tokenizer is None:  # in the worker
            self.tokenizer = Tokenizer.from_file(self.file)
            self.begin, self.end = (self.tokenizer.token_to_id(f"<|{name}oftext|>") for name in ("start", "end"))
        ids = self.tokenizer.encode(text.decode(), add_special_tokens=False).ids[: self.length - 2]
        shown = torch.full((self.length,), self.end)
        shown[: len(ids) + 1] = torch.tensor([self.begin, *ids])
        return shown


def open_loader(
    shards: list[str],
    *,
    batch: int,
    workers: int,
    prefetch: int,
    image: Crop,
    beside: tuple[str, Callable[[bytes], Any]],
) -> Iterator[list[torch.Tensor]]:
    """Yield batches of images [B, 3, size, size] and of the entries `beside` (suffix and reader), without end. Each
    worker has its own shards."""
    name, read = beside
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=100, empty_check=False)
        .shuffle(1000)
        .to_tuple("jpg", name)
        .map_tuple(image, read)
        .repeat()
    )
    ahead = {"prefetch_factor": prefetch} if workers else {}
    return iter(DataLoader(dataset, batch_size=batch, num_workers=workers, **ahead))
