"""Images delivered per second, with labels and with texts, compared with plain webdataset on the same shards.

    python benchmarks/images.py [--seconds 1.5] [--rounds 9] [--workers 2]

Synthetic photographs of 500 x 375 pixels, about 45 kB each as JPEG, are built into a corpus with labels and one with
texts. For labels a random crop of each image is resized and flipped half of the time (ViT), for texts a random square
crop of maximum size is resized (CLIP), both to 224 pixels; the peer (`peers/images_webdataset.py`) decodes, crops and
resizes by the same calls to Pillow, and encodes texts by the same tokenizer. Both deliver pixels as bytes, which are
normalized on the model's device. Measured in the consumer itself, then with the same number of worker processes for
both; rounds alternate. On a loaded machine, images per second of CPU time are reliable, and images per second are not.
"""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common.options import Options
from peers.images_webdataset import Crop, Ids, open_loader
from PIL import Image
from rich.console import Console

from data_pipeline.recipe import TokenizerRecipe
from megaptm.data import Loader, open_mix
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.families.vit.corpus.build import build_images
from megaptm.families.vit.corpus.recipe import ImageRecipe
from megaptm.tokenizers import load_tokenizer

SIZE, PATCH, TEXT = 224, 16, 77
LABELS = 8
WORDS = """a an the photo picture of one two some red blue green dark bright small large old new house tree dog cat boat
bird car street man woman child flower field river mountain on in at by with"""
PREFETCH, WARM = 4, 6
"""Batches that each worker prefetches; and batches that are skipped before timing starts."""


@dataclass(frozen=True)
class ImageCorpus:
    """Corpus of images, and the transformation of its images."""

    objective: Mapping[str, Any]
    crop: str
    texts: bool

    def build(self, photos: Path, folder: Path, shard_bytes: int) -> Path:
        """Build a corpus from the photos, and return its folder."""
        tokenizer = TokenizerRecipe(kind="byte-bpe", vocabulary=512, specials="clip")
        options: dict[str, Any] = {"texts": True, "tokenizer": tokenizer} if self.texts else {}
        recipe = ImageRecipe(source=str(photos), validation=0.0, shard_bytes=shard_bytes, **options)
        out = folder / ("texts" if self.texts else "labels")
        build_images(recipe, out, workers=0, console=Console(file=io.StringIO()))
        return out


CORPORA = {
    "labels": ImageCorpus({"image-labels": {"size": SIZE}}, "random", texts=False),
    "texts": ImageCorpus({"image-text": {"size": SIZE, "text_length": TEXT}}, "random-square", texts=True),
}


def write_photos(folder: Path, num_photos: int, width: int, height: int) -> None:
    """Write images with shapes of all sizes, as in photographs, in one folder per label, each with a text file."""
    rng = np.random.default_rng(0)
    for index in range(num_photos):
        label_folder = folder / str(index % LABELS)
        label_folder.mkdir(parents=True, exist_ok=True)
        layers = np.zeros((height, width, 3))
        for power in range(9):
            rough = Image.fromarray(rng.integers(0, 256, (2 + 2**power, 2 + 2**power, 3), dtype=np.uint8))
            layers += np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), dtype=float) / 1.2**power
        Image.fromarray((layers / layers.max() * 255).clip(0, 255).astype(np.uint8)).save(
            label_folder / f"{index:05}.jpg", quality=92
        )
        (label_folder / f"{index:05}.txt").write_text(" ".join(rng.choice(WORDS.split(), rng.integers(6, 20))))


def open_megaptm(corpus: Path, kind: ImageCorpus, batch: int, workers: int) -> Iterator[dict[str, torch.Tensor]]:
    special = load_tokenizer(corpus / "tokenizer").special
    length = (SIZE // PATCH) ** 2 + 1
    mix = open_mix({str(corpus): 1.0}, objective=kind.objective, sequence=length, seed=0, special=special)
    if not workers:  # as in a consumer without workers; megaptm would use a thread
        first = 0
        while True:
            yield batch_to_tensors(stack_samples(mix, range(first, first + batch)))
            first += batch
    with Loader(mix, batch=batch, microbatch=batch, workers=workers, prefetch=PREFETCH) as loader:
        for _, [batch_] in loader:
            yield batch_


def open_webdataset(corpus: Path, kind: ImageCorpus, batch: int, workers: int) -> Iterator[list[torch.Tensor]]:
    shards = [str(shard) for shard in sorted(corpus.glob("*.tar"))]
    beside: tuple[str, Callable[[bytes], Any]] = ("cls", int)
    if kind.texts:
        beside = "txt", Ids(str(corpus / "tokenizer" / "tokenizer.json"), TEXT)
    crop = Crop(kind.crop, SIZE)
    yield from open_loader(shards, batch=batch, workers=workers, prefetch=PREFETCH, image=crop, beside=beside)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread in torch, which computes nothing here."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cpu_seconds() -> float:
    """Return the CPU time of this process and its workers."""
    process = psutil.Process()
    times = [child.cpu_times() for child in (process, *process.children(recursive=True))]
    return sum(time_.user + time_.system for time_ in times)


def measure_rates(batches: Iterator[Any], batch: int, seconds: float, workers: int) -> tuple[float, float]:
    """Return images per second, and per second of CPU time, after workers have filled their queues."""
    with closing(batches):  # type: ignore[type-var]  # generators both
        for _ in range(WARM * max(1, workers)):
            next(batches)
        start, start_cpu, images = time.perf_counter(), cpu_seconds(), 0
        while time.perf_counter() - start < seconds:
            next(batches)
            images += batch
        return images / (time.perf_counter() - start), images / max(cpu_seconds() - start_cpu, 0.01)


def compare(name: str, corpus: Path, options: Any, workers: int) -> tuple[float, float]:
    """Print a row of the table. Return the ratio of megaptm's images per second to the peer's, and the ratio of images
    per second of CPU time."""
    rates = {"megaptm": [], "webdataset": []}  # type: ignore[var-annotated]
    for _ in range(options.rounds):
        for loader, open_batches in {"megaptm": open_megaptm, "webdataset": open_webdataset}.items():
            batches = open_batches(corpus, CORPORA[name], options.batch, workers)
            rates[loader].append(measure_rates(batches, options.batch, options.seconds, workers))
    mode = f"{workers} worker processes" if workers else "consumer"
    cells = "".join(
        f"{statistics.median(rate for rate, _ in values):>8,.0f} per second, "
        f"{1000 / statistics.median(cpu_rate for _, cpu_rate in values):.2f} ms of CPU ({loader})"
        for loader, values in rates.items()
    )
    # Ratios of rounds, not of medians: the load of the machine varies less within one round.
    ratio, cpu_ratio = (
        statistics.median(own[index] / peer[index] for own, peer in zip(*rates.values(), strict=True))
        for index in (0, 1)
    )
    print(f"{name:<8}{mode:<20}{cells}{ratio:>8.2f}{cpu_ratio:>6.2f}", flush=True)
    return ratio, cpu_ratio


def main() -> None:
    arguments = Options(__doc__)
    arguments.add("--seconds", default=1.5, short=0.1)
    arguments.add("--rounds", default=9, short=1)
    arguments.add("--workers", default=2, short=1)
    arguments.add("--batch", default=32, short=4)
    arguments.add("--images", default=512, short=24)
    arguments.add("--width", default=500, short=100, help="width of an image in pixels; its height is 3/4 of that")
    arguments.add_argument("--only", choices=CORPORA)
    options = arguments.read()

    metrics = []
    with tempfile.TemporaryDirectory() as name_, one_thread():
        folder = Path(name_)
        write_photos(folder / "photos", options.images, options.width, options.width * 3 // 4)
        total = sum(file.stat().st_size for file in (folder / "photos").rglob("*.jpg"))
        print(f"{options.images} images of {total / options.images / 1000:,.0f} kB")
        for name in [options.only] if options.only else CORPORA:
            corpus = CORPORA[name].build(folder / "photos", folder, total // 8)
            ratios = [compare(name, corpus, options, workers) for workers in (0, options.workers)]
            ratio, cpu_ratio = (min(values) for values in zip(*ratios, strict=True))
            metrics.append(f"METRIC images_{name}_over_webdataset {ratio:.2f} ratio goal >=1.0")
            metrics.append(f"METRIC images_{name}_a_cpu_second_over_webdataset {cpu_ratio:.2f} ratio goal >=1.0")
    print("\n".join(metrics))


if __name__ == "__main__":
    main()
