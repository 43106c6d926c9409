"""Retrieval by matching scores of each text with each image (arXiv:1909.11740, section 4)."""

# N pairs, W positions of a text

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from megaptm.data import Mix, open_mix
from megaptm.families.uniter.objectives import ImageTextMatching, RegionObjective
from megaptm.families.vit.retrieval import BATCH_PAIRS, Retrieval, measure_recall, read_batches
from megaptm.inference.loaded_model import EvaluationResult, LoadedModel
from megaptm.inference.trained_model import TrainedModel
from megaptm.objectives.composed import Task, objective_tasks
from megaptm.run.corpora import corpus_cache

MAX_MATCHED = 128
"""Default number of pairs for matching scores: 16,384 samples, each text with each image."""
IMAGE_FIELDS = ("region_features", "region_boxes")


def measure_matching_retrieval(
    loaded: TrainedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval:
    """Evaluate retrieval between images and texts by matching scores among the first `rows` held-out pairs. None: 128
    pairs."""
    return measure_task_retrieval(loaded, ImageTextMatching, _match_pairs, corpora, rows or MAX_MATCHED)


def measure_task_retrieval(
    loaded: TrainedModel,
    kind: type[RegionObjective],
    compare: Callable[[TrainedModel, Mix, int], Tensor],
    corpora: dict[str, float] | None,
    rows: int,
) -> Retrieval:
    """Compare held-out images and texts by the first task of a class that the model was trained with."""
    task = find_task(loaded, kind)
    assert task is not None, "`LoadedModel.fits` has found it"
    mix = open_pairs(loaded, task, corpora)
    return measure_recall(compare(loaded, mix, min(mix.fresh_samples, rows)))


def find_task(loaded: TrainedModel, kind: type[RegionObjective]) -> Task | None:
    """Return the first task of a class that a model of images and texts was trained with, if any."""
    tasks = objective_tasks(loaded.config.built_objective)
    return next((task for task in tasks if isinstance(task.objective, kind)), None)


def open_pairs(loaded: TrainedModel, task: Task, corpora: dict[str, float] | None) -> Mix:
    """Return UNITER's held-out samples of images and texts, with only a text and its own image."""
    config, trained = loaded.config, task.objective
    assert isinstance(trained, RegionObjective)
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


def _match_pairs(loaded: TrainedModel, mix: Mix, number: int) -> Tensor:
    """Return the log-odds that image and text match for each pair, [N, N]."""
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


class MatchingModel(LoadedModel):
    """Trained model that scores whether an image and a text match."""

    @classmethod
    def fits(cls, model: TrainedModel) -> bool:
        return find_task(model, ImageTextMatching) is not None

    def evaluate_further(
        self, corpora: dict[str, float], rows: int | None, options: Mapping[str, Any]
    ) -> list[EvaluationResult]:
        return [measure_matching_retrieval(self, corpora, rows=rows)]


LOADED_MODEL = MatchingModel
