"""Retrieval with models of text and image regions: by matching scores of each text with each image (UNITER,
arXiv:1909.11740, section 4), or by vectors (UNIMO, arXiv:2012.15409)."""

# N pairs, W positions of a text

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from megaptm.batch import MAX_COMPARED_IMAGES
from megaptm.data import Mix, open_mix
from megaptm.inference.image_text import BATCH_PAIRS, MAX_PAIRS, Retrieval, measure_recall, read_batches
from megaptm.inference.trained_model import TrainedModel
from megaptm.objectives.composed import Task, tasks_of
from megaptm.objectives.contrast import CrossModalContrast
from megaptm.objectives.regions import ImageTextMatching
from megaptm.run.corpora import corpus_cache

MAX_MATCHED = 128
"""Default number of pairs for matching scores: 16,384 samples, each text with each image."""
IMAGE_FIELDS = ("region_features", "region_boxes")


def region_retrieval(
    loaded: TrainedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval | None:
    """Evaluate retrieval among the first `rows` held-out pairs. None: 5,000 by vectors, as for COCO; 128 by matching
    scores.

    Vectors are preferred if the model was trained for both. Return None if it was trained for neither.
    """
    tasks = tasks_of(loaded.config.built_objective)
    for objective, max_pairs, compare in (
        (CrossModalContrast, MAX_PAIRS, _compare_vectors),
        (ImageTextMatching, MAX_MATCHED, _match_pairs),
    ):
        if (task := next((task for task in tasks if isinstance(task.objective, objective)), None)) is not None:
            mix = _open_pairs(loaded, task, corpora)
            number = min(mix.fresh_samples, rows or max_pairs)
            return measure_recall(compare(loaded, mix, number))
    return None


def _open_pairs(loaded: TrainedModel, task: Task, corpora: dict[str, float] | None) -> Mix:
    """Return held-out samples with only a text and its own image."""
    config, trained = loaded.config, task.objective
    assert isinstance(trained, ImageTextMatching | CrossModalContrast)
    single_pair = trained.single_pair
    own = {name: weight for name, weight in config.data.mix.items() if name in (task.corpora or [name])}
    return open_mix(
        corpora or own,
        split="validation",
        objective=single_pair,
        sequence=config.data.sequence - (trained.regions - single_pair.regions),  # texts as long as in training
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=loaded.tokenizer.special,
        cache=corpus_cache(config),
    )


def _compare_vectors(loaded: TrainedModel, mix: Mix, number: int) -> Tensor:
    """Return [N, N]: cosines of images and texts."""
    images, texts, width = [], [], loaded.spec.width
    for batch in read_batches(mix, number):
        with torch.inference_mode():
            inputs = {name: field.to(loaded.device) for name, field in batch.items()}
            features = loaded.model(inputs, features=True).features["cmcl"].float()
            # First image and first text of a sample, of all slots that it has.
            images.append(features[:, :width].clone())
            texts.append(features[:, MAX_COMPARED_IMAGES * width :][:, :width].clone())
    return torch.cat(images).cpu() @ torch.cat(texts).cpu().t()


def _match_pairs(loaded: TrainedModel, mix: Mix, number: int) -> Tensor:
    """Return [N, N]: log-odds that image and text match."""
    batches = [*read_batches(mix, number)]
    names = [name for name in batches[0] if name != "matched"]
    # Copied to the GPU once, not for each image: every copy would synchronize.
    pairs = {name: torch.cat([batch[name] for batch in batches]).to(loaded.device) for name in names}
    text_length = pairs["tokens"].shape[1] - pairs["region_boxes"].shape[1]
    scores = torch.empty(number, number, device=loaded.device)
    with torch.inference_mode():
        for image, start in product(range(number), range(0, number, BATCH_PAIRS)):
            texts = slice(start, min(start + BATCH_PAIRS, number))
            batch = {name: field[texts] for name, field in pairs.items()}
            for name in IMAGE_FIELDS:
                batch[name] = pairs[name][image].expand_as(batch[name])
            for name in ("tokens", "document_ids"):
                batch[name] = batch[name].clone()
                batch[name][:, text_length:] = pairs[name][image, text_length:]
            logits = loaded.model.logits(batch)["itm"].float()
            scores[image, texts] = logits[:, 1] - logits[:, 0]
    return scores.cpu()
