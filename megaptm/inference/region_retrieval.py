"""Retrieval with models of text and image regions: by matching scores of each text with each image (UNITER,
arXiv:1909.11740, section 4), or by vectors (UNIMO, arXiv:2012.15409)."""

# N pairs, W positions of a text

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from megaptm.batch import COMPARED_IMAGES
from megaptm.data import Mix, open_mix
from megaptm.inference.image_text import BATCH_ROWS, MOST_PAIRS, Retrieval, batches_of, recalls
from megaptm.inference.loaded_model import LoadedModel
from megaptm.objectives.composed import Task, tasks_of
from megaptm.objectives.contrast import CrossModalContrast
from megaptm.objectives.regions import ImageTextMatching
from megaptm.run.corpora import cache_of

MOST_MATCHED = 128
"""Default number of pairs for matching scores: 16,384 samples, each text with each image."""
OF_IMAGES = ("region_features", "region_boxes")


def region_retrieval(
    loaded: LoadedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval | None:
    """Evaluate retrieval among the first `rows` held-out pairs. None: 5,000 by vectors, as for COCO; 128 by matching
    scores.

    Vectors are preferred if the model was trained for both. Return None if it was trained for neither.
    """
    tasks = tasks_of(loaded.config.built_objective)
    for kind, most, compare in (
        (CrossModalContrast, MOST_PAIRS, _by_vectors),
        (ImageTextMatching, MOST_MATCHED, _by_match),
    ):
        if (task := next((one for one in tasks if isinstance(one.objective, kind)), None)) is not None:
            mix = _pairs(loaded, task, corpora)
            number = min(mix.fresh_samples, rows or most)
            return recalls(compare(loaded, mix, number))
    return None


def _pairs(loaded: LoadedModel, task: Task, corpora: dict[str, float] | None) -> Mix:
    """Return held-out samples with only a text and its own image."""
    config, asked = loaded.config, task.objective
    assert isinstance(asked, ImageTextMatching | CrossModalContrast)
    alone = asked.alone
    own = {name: weight for name, weight in config.data.mix.items() if name in (task.corpora or [name])}
    return open_mix(
        corpora or own,
        split="validation",
        objective=alone,
        sequence=config.data.sequence - (asked.regions - alone.regions),  # texts as long as in training
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=loaded.tokenizer.special,
        cache=cache_of(config),
    )


def _by_vectors(loaded: LoadedModel, mix: Mix, number: int) -> Tensor:
    """Return [N, N]: cosines of images and texts."""
    images, texts, width = [], [], loaded.spec.width
    for batch in batches_of(mix, number):
        with torch.inference_mode():
            read = {name: one.to(loaded.device) for name, one in batch.items()}
            features = loaded.model(read, features=True)["cmcl"].float()
            # First image and first text of a sample, of all slots that it has.
            images.append(features[:, :width].clone())
            texts.append(features[:, COMPARED_IMAGES * width :][:, :width].clone())
    return torch.cat(images).cpu() @ torch.cat(texts).cpu().t()


def _by_match(loaded: LoadedModel, mix: Mix, number: int) -> Tensor:
    """Return [N, N]: log-odds that image and text match."""
    rows = [*batches_of(mix, number)]
    # Copied to the GPU once, not for each image: every copy would synchronize.
    pairs = {
        name: torch.cat([batch[name] for batch in rows]).to(loaded.device) for name in rows[0] if name != "matched"
    }
    words = pairs["tokens"].shape[1] - pairs["region_boxes"].shape[1]
    scores = torch.empty(number, number, device=loaded.device)
    with torch.inference_mode():
        for image, at in product(range(number), range(0, number, BATCH_ROWS)):
            texts = slice(at, min(at + BATCH_ROWS, number))
            batch = {name: one[texts] for name, one in pairs.items()}
            for name in OF_IMAGES:
                batch[name] = pairs[name][image].expand_as(batch[name])
            for name in ("tokens", "document_ids"):
                batch[name] = batch[name].clone()
                batch[name][:, words:] = pairs[name][image, words:]
            said = loaded.model.logits(batch)["itm"].float()
            scores[image, texts] = said[:, 1] - said[:, 0]
    return scores.cpu()
