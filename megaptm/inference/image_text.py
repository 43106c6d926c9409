"""Image-text models (CLIP): vectors, zero-shot classification (arXiv:2103.00020, 3.1), and retrieval."""

# N samples, E features of a side, C classes

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

from megaptm.batch import IMAGE, PATCH
from megaptm.console import Console
from megaptm.data import Mix, open_mix
from megaptm.data.loader import as_tensors, stacked
from megaptm.data.manifest import LABELS
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.inference.loaded_model import TEMPLATES, Image, LoadedModel
from megaptm.objectives.images import TEXT, ImageText, shown_text
from megaptm.run.corpora import cache_of
from megaptm.storage import plain_file
from megaptm.tokenizers import load as load_tokenizer

HEAD = "image-text"
RECALLS = (1, 5, 10)


def text_vectors(loaded: LoadedModel, texts: Sequence[str], *, batch: int = 64) -> Tensor:
    """Return normalized text vectors [N, E], float32 on the CPU, in the joint space with images."""
    task = _task(loaded)
    special, places = loaded.tokenizer.special, min(task.texts, loaded.spec.longest or task.texts)
    rows = [shown_text(ids, special, places) for ids in loaded.tokenizer.encode_batch(list(texts))]
    if not rows:
        raise UserError("texts is empty: give at least one.")
    return torch.cat([_text_side(loaded, rows[at : at + batch]) for at in range(0, len(rows), batch)])


def image_vectors(loaded: LoadedModel, images: Sequence[Image], *, batch: int = 64) -> Tensor:
    """Return normalized image vectors [N, E], float32 on the CPU, from files or their bytes. Raise UserError for one
    that is no image."""
    task = _task(loaded).held_out()
    assert isinstance(task, ImageText)
    if batch < 1:
        raise UserError(f"batch ({batch}) must be 1 or more.")
    if not len(images):
        raise UserError("images is empty: give at least one.")
    found = []
    for at in range(0, len(images), batch):
        patches = [
            task.patches(
                _content(image),
                loaded.spec.grid,
                np.random.default_rng(0),
                whose=f"images[{number}]",
                remedy="give a JPEG, PNG, WebP, GIF, BMP or TIFF",
            )
            for number, image in enumerate(images[at : at + batch], at)
        ]
        found.append(_image_side(loaded, torch.from_numpy(np.stack(patches))))
    return torch.cat(found)


def class_vectors(loaded: LoadedModel, names: Sequence[str], templates: str | Sequence[str] = TEMPLATES) -> Tensor:
    """Return [C, E]: for each name the normalized mean of the vectors of its texts."""
    templates = [templates] if isinstance(templates, str) else templates
    if not templates:
        raise UserError("templates is empty: give at least one, such as 'a photo of a {}.'")
    if wrong := [template for template in templates if "{}" not in template]:
        raise UserError(
            f"template ({wrong[0]}) has no {{}} where the name of a class stands: write 'a photo of a {{}}.'"
        )
    each = [text_vectors(loaded, [template.replace("{}", name) for name in names]) for template in templates]
    return F.normalize(torch.stack(each).mean(0), dim=-1)


@dataclass(frozen=True)
class ZeroShot:
    """Result of zero-shot classification."""

    names: tuple[str, ...]
    cosines: Tensor
    """[N, C], of each image with each name."""
    labels: np.ndarray | None = None
    """int64 [N]: labels, if known."""

    @property
    def said(self) -> list[str]:
        """Most likely name of each image."""
        return [self.names[number] for number in self.cosines.argmax(-1).tolist()]

    def accuracy(self, among: int = 1) -> float:
        """Return the share of images whose label is among the `among` most likely names."""
        assert self.labels is not None, "accuracy is of a corpus with labels"
        best = self.cosines.topk(min(among, len(self.names))).indices
        return float((best == torch.from_numpy(self.labels)[:, None]).any(-1).float().mean())

    @property
    def chance(self) -> float:
        """Accuracy of predicting the most frequent label."""
        assert self.labels is not None
        return float(np.bincount(self.labels).max() / len(self.labels))

    def plain(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {"zero_shot": {"images": len(self.cosines), "accuracy": self.accuracy(), "chance": self.chance}}

    def show(self, console: Console) -> None:
        right, among = self.accuracy(), self.accuracy(5)
        console.print(
            f"{len(self.cosines):,} images of {len(self.names):,} classes, by their names: {right:.1%} right, "
            f"{among:.1%} among the first 5 (the most frequent one always: {self.chance:.1%})",
            highlight=False,
        )


def zero_shot(
    loaded: LoadedModel,
    names: str | Sequence[str] | None = None,
    images: Image | Sequence[Image] | None = None,
    *,
    corpus: str | Path | None = None,
    templates: Sequence[str] = TEMPLATES,
    rows: int | None = None,
) -> ZeroShot:
    """Classify images by class names; see `LoadedModel.zero_shot`."""
    if (images is None) == (corpus is None):
        raise UserError("give images, or a corpus with labels.")
    if rows is not None and rows < 1:
        raise UserError(f"rows ({rows}) must be 1 or more.")
    names = [names] if isinstance(names, str) else names
    if images is not None:
        if not names:
            raise UserError("names is empty: give the names of the classes.")
        images = [images] if isinstance(images, str | Path | bytes) else images
        return ZeroShot(tuple(names), image_vectors(loaded, images) @ class_vectors(loaded, names, templates).t())
    opened = Corpus.open(str(corpus), cache_of(loaded.config))
    if opened.manifest.dtype != LABELS:
        raise UserError(
            f"{corpus} has no labels: build it with `megaptm corpus images FOLDER_OF_LABELS`, without texts=true."
        )
    known = load_tokenizer(opened.folder / "tokenizer")
    names = names or [known.name(number) for number in range(known.vocabulary)]
    if len(names) != known.vocabulary:
        raise UserError(f"names has {len(names)}, and {corpus} {known.vocabulary} labels: give one for each, or none.")
    task = _task(loaded)
    mix = open_mix(
        {str(corpus): 1.0},
        split="validation",
        objective=task.of_labels(),
        sequence=loaded.spec.context,
        seed=0,
        special=known.special,
        cache=cache_of(loaded.config),
    )
    classes, cosines, labels = class_vectors(loaded, names, templates), [], []
    number = mix.fresh_samples if rows is None else min(rows, mix.fresh_samples)
    for batch in batches_of(mix, number):
        cosines.append(_image_side(loaded, batch["patches"]) @ classes.t())
        labels.append(batch["image_label"].numpy())
    return ZeroShot(tuple(names), torch.cat(cosines), np.concatenate(labels))


@dataclass(frozen=True)
class Retrieval:
    """Retrieval among all pairs: recall at 1, 5, 10."""

    pairs: int
    texts_of_images: dict[int, float]
    images_of_texts: dict[int, float]

    def plain(self) -> dict[str, object]:
        """Return the result as JSON values."""
        return {"retrieval": asdict(self)}

    def show(self, console: Console) -> None:
        table = Table(box=None, pad_edge=False)
        for heading in (f"found among {self.pairs:,}", *(f"first {k}" for k in RECALLS)):
            table.add_column(heading, justify="left" if heading.startswith("found") else "right")
        for what, shares in (("the text of an image", self.texts_of_images), ("the image", self.images_of_texts)):
            table.add_row(what + (" of a text" if what == "the image" else ""), *(f"{shares[k]:.1%}" for k in RECALLS))
        table.add_row("by chance", *(f"{min(1, k / self.pairs):.1%}" for k in RECALLS))
        console.print(table)


def retrieval(loaded: LoadedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None) -> Retrieval:
    """Evaluate retrieval among the first `rows` held-out pairs (None: all, at most 5,000 as for COCO). Texts whose
    score ties with the correct one, such as equal texts, do not count as errors."""
    config = loaded.config
    mix = open_mix(
        corpora or config.data.mix,
        split="validation",
        objective=_task(loaded),
        sequence=config.data.sequence,
        seed=config.train.seed,
        special=loaded.tokenizer.special,
        cache=cache_of(config),
    )
    number = min(mix.fresh_samples, rows or MOST_PAIRS)
    images, texts = [], []
    for batch in batches_of(mix, number):
        with torch.inference_mode():
            features = loaded.model({name: one.to(loaded.device) for name, one in batch.items()}, features=True)
        sides = features[HEAD].float().cpu()[:, :-1].chunk(2, -1)
        images.append(sides[0])
        texts.append(sides[1])
    return recalls(torch.cat(images) @ torch.cat(texts).t())


def recalls(scores_NN: Tensor) -> Retrieval:
    """Return recalls of similarities [N, N]; correct pairs are on the diagonal."""
    found = []
    for scores in (scores_NN, scores_NN.t()):
        better = (scores > scores.diagonal()[:, None] + TIE).sum(-1)
        found.append({k: float((better < k).float().mean()) for k in RECALLS})
    return Retrieval(len(scores_NN), *found)


BATCH_ROWS = 64
"""Pairs per forward pass; they need little memory without gradients."""
MOST_PAIRS = 5000
TIE = 1e-6
"""Cosines that differ by less count as equal; the order of sums changes them that much."""


def _task(loaded: LoadedModel) -> ImageText:
    task = loaded.config.built_objective
    if not isinstance(task, ImageText):
        raise UserError(f"{loaded.spec.name} did not learn which texts belong to images, as clip does.")
    task.check(loaded.tokenizer.special, loaded.spec.context)
    return task


def _content(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return plain_file(image).read_bytes()
    except OSError as error:
        raise UserError(f"{image} cannot be read ({error.strerror}): name a file of an image.") from None


def batches_of(mix: Mix, number: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches of the first samples of a mix."""
    for at in range(0, number, BATCH_ROWS):
        yield as_tensors(stacked(mix, range(at, min(at + BATCH_ROWS, number))))


def _text_side(loaded: LoadedModel, rows: Sequence[tuple[np.ndarray, int]]) -> Tensor:
    tokens = torch.from_numpy(np.stack([ids for ids, _ in rows]))
    batch = {f"{TEXT}tokens": tokens, "text_end": torch.tensor([end for _, end in rows])}
    return _features(loaded, batch, without="image")[1]


def _image_side(loaded: LoadedModel, patches: Tensor) -> Tensor:
    kinds = torch.full((len(patches), loaded.spec.context), PATCH)
    kinds[:, 0] = IMAGE
    return _features(loaded, {"tokens": kinds, "patches": patches}, without="text")[0]


def _features(loaded: LoadedModel, batch: dict[str, Tensor], *, without: str) -> tuple[Tensor, Tensor]:
    """Return the features of both sides; the side `without` has no input."""
    rows = len(next(iter(batch.values())))
    nothing = torch.zeros(1, rows, loaded.spec.size_of(without).width, device=loaded.device)
    with torch.inference_mode():
        read = {name: one.to(loaded.device) for name, one in batch.items()}
        found = loaded.model.logits(read, ended={without: nothing})[HEAD]
    images, texts = found.float().cpu()[:, :-1].chunk(2, -1)
    return images, texts
