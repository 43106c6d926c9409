"""Retrieval by vectors of texts and images (arXiv:2012.15409)."""

# N pairs

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from megaptm.data import Mix
from megaptm.families.unimo.contrast import CrossModalContrast
from megaptm.families.unimo.head_costs import MAX_COMPARED_IMAGES
from megaptm.families.uniter.inference import find_task, measure_task_retrieval
from megaptm.families.vit.retrieval import MAX_PAIRS, Retrieval, read_batches
from megaptm.inference.loaded_model import EvaluationResult, LoadedModel
from megaptm.inference.trained_model import TrainedModel


def measure_vector_retrieval(
    loaded: TrainedModel, corpora: dict[str, float] | None = None, *, rows: int | None = None
) -> Retrieval:
    """Evaluate retrieval between images and texts by vectors among the first `rows` held-out pairs. None: 5,000 pairs,
    as for COCO."""
    return measure_task_retrieval(loaded, CrossModalContrast, _compare_vectors, corpora, rows or MAX_PAIRS)


def _compare_vectors(loaded: TrainedModel, mix: Mix, number: int) -> Tensor:
    """Return the cosines of images and texts, [N, N]."""
    images, texts, width = [], [], loaded.spec.width
    for batch in read_batches(mix, number):
        with torch.inference_mode():
            inputs = {name: field.to(loaded.device) for name, field in batch.items()}
            features = loaded.model(inputs, features=True).features["cmcl"].float()
            # First image and first text of a sample, of all slots that it has.
            images.append(features[:, :width].clone())
            texts.append(features[:, MAX_COMPARED_IMAGES * width :][:, :width].clone())
    return torch.cat(images).cpu() @ torch.cat(texts).cpu().t()


class VectorModel(LoadedModel):
    """Trained model with comparable vectors of images and texts."""

    @classmethod
    def fits(cls, model: TrainedModel) -> bool:
        return find_task(model, CrossModalContrast) is not None

    def evaluate_further(
        self, corpora: dict[str, float], rows: int | None, options: Mapping[str, Any]
    ) -> list[EvaluationResult]:
        return [measure_vector_retrieval(self, corpora, rows=rows)]


LOADED_MODEL = VectorModel
