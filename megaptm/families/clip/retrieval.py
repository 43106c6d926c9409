"""Retrieval with image-text models (CLIP)."""

from __future__ import annotations

import torch

from megaptm.data import open_mix
from megaptm.families.clip.inference import HEAD, image_text_task
from megaptm.families.clip.objectives import ImageText
from megaptm.inference.retrieval import MAX_PAIRS, Retrieval, measure_recall, read_batches
from megaptm.inference.trained_model import TrainedModel
from megaptm.run.corpora import corpus_cache


def retrieval(
    loaded: TrainedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval | None:
    """Evaluate retrieval among the first `rows` held-out pairs (None: all, at most 5,000 as for COCO). Texts whose
    score ties with the correct one, such as equal texts, do not count as errors. None for other models."""
    if not isinstance(loaded.config.built_objective, ImageText):
        return None
    config = loaded.config
    mix = open_mix(
        corpora or config.data.mix,
        split="validation",
        objective=image_text_task(loaded),
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


RETRIEVAL = retrieval
