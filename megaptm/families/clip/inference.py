"""Inference with image-text models (CLIP): vectors, zero-shot classification (arXiv:2103.00020, 3.1), and retrieval."""

# N samples, E features of a side, C classes

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from megaptm.console import Console
from megaptm.data import open_mix
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.clip.objectives import TEXT, ImageText, text_input
from megaptm.families.vit.retrieval import MAX_PAIRS, Retrieval, measure_recall, read_batches
from megaptm.families.vit.spec import IMAGE, PATCH
from megaptm.families.vit.token_types import LABELS
from megaptm.inference.encode import check_encode_options
from megaptm.inference.loaded_model import EvaluationResult, LoadedModel
from megaptm.inference.trained_model import TrainedModel
from megaptm.run.corpora import corpus_cache
from megaptm.storage import regular_file
from megaptm.tokenizers import load_tokenizer

HEAD = "image-text"
Image = str | Path | bytes
"""Type of an image: its file, or the content of the file."""
TEMPLATES = ("a photo of a {}.",)
"""Default prompt template of a class (CLIP, arXiv:2103.00020, 3.1.4)."""


def text_vectors(loaded: TrainedModel, texts: Sequence[str], *, batch: int = 64) -> Tensor:
    """Return CLIP's normalized vectors of texts [N, E], float32 on the CPU, in the joint space with images."""
    task = _image_text_task(loaded)
    special, length = loaded.tokenizer.special, min(task.text_length, loaded.spec.max_text_length or task.text_length)
    rows = [text_input(ids, special, length) for ids in loaded.tokenizer.encode_batch(list(texts))]
    if not rows:
        raise UserError("texts is empty: give at least one text.")
    return torch.cat([_text_features(loaded, rows[start : start + batch]) for start in range(0, len(rows), batch)])


def image_vectors(loaded: TrainedModel, images: Sequence[Image], *, batch: int = 64) -> Tensor:
    """Return CLIP's normalized vectors of images [N, E], float32 on the CPU, from files or their bytes. Raise UserError
    for a file that is no image."""
    task = _image_text_task(loaded).for_validation()
    assert isinstance(task, ImageText)
    if batch < 1:
        raise UserError(f"batch ({batch}) must be 1 or more.")
    if not len(images):
        raise UserError("images is empty: give at least one image.")
    vectors = []
    for start in range(0, len(images), batch):
        patches = [
            task.decode_patches(
                _read_image(image),
                task.patches_per_side(loaded.spec.context),
                np.random.default_rng(0),
                source=f"images[{number}]",
                remedy="give a JPEG, PNG, WebP, GIF, BMP or TIFF",
            )
            for number, image in enumerate(images[start : start + batch], start)
        ]
        vectors.append(_image_features(loaded, torch.from_numpy(np.stack(patches))))
    return torch.cat(vectors)


def class_vectors(loaded: TrainedModel, names: Sequence[str], templates: str | Sequence[str] = TEMPLATES) -> Tensor:
    """Return CLIP's vector for each class name, [C, E]: the normalized mean of the vectors of its texts."""
    templates = [templates] if isinstance(templates, str) else templates
    if not templates:
        raise UserError("templates is empty: give at least one, such as 'a photo of a {}.'")
    if invalid := [template for template in templates if "{}" not in template]:
        raise UserError(f"template ({invalid[0]}) has no {{}} for the name of a class: write 'a photo of a {{}}.'")
    vectors = [text_vectors(loaded, [template.replace("{}", name) for name in names]) for template in templates]
    return F.normalize(torch.stack(vectors).mean(0), dim=-1)


@dataclass(frozen=True)
class ZeroShot:
    """Result of zero-shot classification."""

    names: tuple[str, ...]
    cosines: Tensor
    """Cosine similarity of each image and class name, [N, C]."""
    labels: np.ndarray | None = None
    """Labels of the images, int64 [N], if known."""

    @property
    def predictions(self) -> list[str]:
        """Return the most likely class name of each image in zero-shot classification."""
        return [self.names[index] for index in self.cosines.argmax(-1).tolist()]

    def accuracy(self, top: int = 1) -> float:
        """Zero-shot classification: return the share of images whose label is among the `top` most likely class
        names."""
        assert self.labels is not None, "accuracy needs a corpus with labels"
        best = self.cosines.topk(min(top, len(self.names))).indices
        return float((best == torch.from_numpy(self.labels)[:, None]).any(-1).float().mean())

    @property
    def chance(self) -> float:
        """Zero-shot classification: return the accuracy of predicting the most frequent label for every image."""
        assert self.labels is not None
        return float(np.bincount(self.labels).max() / len(self.labels))

    def to_json(self) -> dict[str, object]:
        """Return the result of zero-shot classification as JSON values."""
        return {"zero_shot": {"images": len(self.cosines), "accuracy": self.accuracy(), "chance": self.chance}}

    def show(self, console: Console) -> None:
        console.print(
            f"zero-shot classification of {len(self.cosines):,} images, {len(self.names):,} classes: top-1 accuracy "
            f"{self.accuracy():.1%}, top-5 {self.accuracy(5):.1%}; most frequent class {self.chance:.1%}",
            highlight=False,
        )


def _image_text_task(loaded: TrainedModel) -> ImageText:
    task = loaded.config.built_objective
    if not isinstance(task, ImageText):
        raise UserError(f"{loaded.spec.name} has no joint space of images and texts: use a model of clip.")
    task.check(loaded.tokenizer.special, loaded.spec.context)
    return task


def _read_image(image: Image) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        return regular_file(image).read_bytes()
    except OSError as error:
        raise UserError(f"{image} cannot be read ({error.strerror}): give the path of an image file.") from None


def _text_features(loaded: TrainedModel, rows: Sequence[tuple[np.ndarray, int]]) -> Tensor:
    tokens = torch.from_numpy(np.stack([ids for ids, _ in rows]))
    batch = {f"{TEXT}tokens": tokens, "text_end": torch.tensor([end for _, end in rows])}
    return _compute_features(loaded, batch, without="image")[1]


def _image_features(loaded: TrainedModel, patches: Tensor) -> Tensor:
    kinds = torch.full((len(patches), loaded.spec.context), PATCH)
    kinds[:, 0] = IMAGE
    return _compute_features(loaded, {"tokens": kinds, "patches": patches}, without="text")[0]


def _compute_features(loaded: TrainedModel, batch: dict[str, Tensor], *, without: str) -> tuple[Tensor, Tensor]:
    """Return the features that CLIP's head compares, of images and texts. One side, `without`, may have no input."""
    samples = len(next(iter(batch.values())))
    zeros = torch.zeros(1, samples, loaded.spec.size_of(without).width, device=loaded.device)
    with torch.inference_mode():
        inputs = {name: field.to(loaded.device) for name, field in batch.items()}
        features = loaded.model.logits(inputs, ended={without: zeros})[HEAD]
    images, texts = features.float().cpu()[:, :-1].chunk(2, -1)
    return images, texts


def measure_retrieval(
    loaded: TrainedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval:
    """Evaluate the retrieval between images and texts among the first `rows` held-out pairs (None: all, at most 5,000
    as for COCO). Texts whose score ties with the correct one, such as equal texts, do not count as errors."""
    config = loaded.config
    mix = open_mix(
        corpora or config.data.mix,
        split="validation",
        objective=_image_text_task(loaded),
        sequence=config.data.sequence,
        seed=config.train.seed,
        special=loaded.tokenizer.special,
        cache=corpus_cache(config),
    )
    number = min(mix.fresh_samples, rows or MAX_PAIRS)
    images, texts = [], []
    for batch in read_batches(mix, number):
        with torch.inference_mode():
            output = loaded.model({name: field.to(loaded.device) for name, field in batch.items()}, features=True)
        sides = output.features[HEAD].float().cpu()[:, :-1].chunk(2, -1)
        images.append(sides[0])
        texts.append(sides[1])
    return measure_recall(torch.cat(images) @ torch.cat(texts).t())


class ImageTextModel(LoadedModel):
    """Trained image-text model."""

    models = "models of images and texts (CLIP)"
    evaluate_options = ("zero_shot", "templates")

    @classmethod
    def fits(cls, model: TrainedModel) -> bool:
        return isinstance(model.config.built_objective, ImageText)

    def evaluate_further(
        self, corpora: dict[str, float], rows: int | None, options: Mapping[str, Any]
    ) -> list[EvaluationResult]:
        results: list[EvaluationResult] = [measure_retrieval(self, corpora, rows=rows)]
        if options["zero_shot"]:
            templates = options["templates"] or TEMPLATES
            results.append(self.zero_shot(corpus=options["zero_shot"], templates=templates, rows=rows))
        return results

    def encode(self, texts: str | Sequence[str], *, pool: str = "mean", batch: int = 16) -> Tensor:
        """Return the normalized vector of each text in the joint space, float32 [texts, width] on the CPU, for any
        `pool`."""
        check_encode_options(pool, batch)
        return text_vectors(self, [texts] if isinstance(texts, str) else texts, batch=batch)

    def encode_images(self, images: Image | Sequence[Image], *, batch: int = 64) -> Tensor:
        """Return a vector of each image (a file or its bytes), float32 [images, width] on the CPU: normalized, in the
        joint space. `self.encode(texts) @ self.encode_images(images).T` gives similarities. Images are cropped as in
        validation."""
        return image_vectors(self, [images] if isinstance(images, str | Path | bytes) else images, batch=batch)

    def zero_shot(
        self,
        names: str | Sequence[str] | None = None,
        images: Image | Sequence[Image] | None = None,
        *,
        corpus: str | Path | None = None,
        templates: Sequence[str] = TEMPLATES,
        rows: int | None = None,
    ) -> ZeroShot:
        """Classify images by names, with the mean of the text vectors of `templates` for each name (CLIP,
        arXiv:2103.00020, 3.1.4). Either `images`, or the first `rows` held-out images of a labeled corpus, whose label
        names are the default `names`."""
        if (images is None) == (corpus is None):
            raise UserError("images and corpus: give one of them, images or a corpus with labels.")
        if rows is not None and rows < 1:
            raise UserError(f"rows ({rows}) must be 1 or more.")
        names = [names] if isinstance(names, str) else names
        if images is not None:
            if not names:
                raise UserError("names is empty: give the names of the classes.")
            images = [images] if isinstance(images, str | Path | bytes) else images
            return ZeroShot(tuple(names), image_vectors(self, images) @ class_vectors(self, names, templates).t())
        opened = Corpus.open(str(corpus), corpus_cache(self.config))
        if opened.manifest.dtype != LABELS:
            raise UserError(
                f"{corpus} has no labels: build it with `megaptm corpus images FOLDER` from a folder per class, "
                "without texts=true."
            )
        label_names = load_tokenizer(opened.folder / "tokenizer")
        names = names or [label_names.name(index) for index in range(label_names.vocabulary)]
        if len(names) != label_names.vocabulary:
            raise UserError(
                f"names has {len(names)} names, but {corpus} has {label_names.vocabulary} labels: give a name for each "
                "label, or no names."
            )
        task = _image_text_task(self)
        mix = open_mix(
            {str(corpus): 1.0},
            split="validation",
            objective=task.as_image_labels(),
            sequence=self.spec.context,
            seed=0,
            special=label_names.special,
            cache=corpus_cache(self.config),
        )
        classes, cosines, labels = class_vectors(self, names, templates), [], []
        number = mix.fresh_samples if rows is None else min(rows, mix.fresh_samples)
        for batch in read_batches(mix, number):
            cosines.append(_image_features(self, batch["patches"]) @ classes.t())
            labels.append(batch["image_label"].numpy())
        return ZeroShot(tuple(names), torch.cat(cosines), np.concatenate(labels))


LOADED_MODEL = ImageTextModel
