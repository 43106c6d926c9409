"""Retrieval of held-out texts and images, by matching scores and by vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from megaptm.config import load_config, resolve_model
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.families.unimo.contrast import CrossModalContrast
from megaptm.families.unimo.inference import _compare_vectors, measure_vector_retrieval
from megaptm.families.uniter.inference import _match_pairs, measure_matching_retrieval, open_pairs
from megaptm.families.uniter.objectives import ImageTextMatching
from megaptm.families.vit.retrieval import measure_recall
from megaptm.inference.loaded_model import LoadedModel
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.objectives.composed import objective_tasks
from megaptm.objectives.objective import SampleContext
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.models.vision import fill_with_noise

CONFIGS = Path(__file__).parents[2] / "configs"
FIRST = 5


@pytest.fixture(scope="module", params=TOKENIZERS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Return the tiny model of a family with random weights."""
    root = tmp_path_factory.mktemp(request.param)
    region_corpus(root / "corpus", images=40, tokenizer=TOKENIZERS[request.param], validation=0.5)
    tokenizer = load_tokenizer(root / "corpus/tokenizer")
    options = [f"data.mix={{{root}/corpus: 1}}", f"model.vocabulary={tokenizer.vocabulary}"]
    config = load_config(CONFIGS / request.param / "tiny.yaml", options)
    init_weights(model := Model(resolve_model(config)), seed=0)
    return LoadedModel(root, config, 0, fill_with_noise(model, 0.1).eval(), tokenizer, root / "corpus/tokenizer")


def test_scores_match_single_samples(loaded: LoadedModel) -> None:
    tasks = objective_tasks(loaded.config.built_objective)
    task = next(task for task in tasks if task.label in ("matching", "contrast"))
    mix = open_pairs(loaded, task, None)
    order, objective = mix.orders[0], mix.sources[0].task.objective
    spots = [mix.locate(number) for number in range(FIRST)]
    pieces = [order.piece(spot.epoch, spot.position)[0] for spot in spots]
    if isinstance(objective, ImageTextMatching):
        # Samples with the text of one pair and the image of another, made as in training.
        context = SampleContext(mix.special, np.random.default_rng(0), mix.sequence, True)
        rows = [
            [objective.make_sample([text, replace(image, other_segment=True)], context) for text in pieces]
            for image in pieces
        ]
        flat = [row for image_rows in rows for row in image_rows]
        batch = {name: torch.from_numpy(np.stack([row[name] for row in flat])) for name in flat[0] if name != "matched"}
        with torch.inference_mode():
            logits = loaded.model.logits(batch)["itm"]
        expected, scores = (logits[:, 1] - logits[:, 0]).reshape(FIRST, FIRST), _match_pairs(loaded, mix, FIRST)
    else:
        batch = batch_to_tensors(stack_samples(mix, range(FIRST)))
        with torch.inference_mode():
            x_BSD = loaded.model.encode(batch)
        first_region = mix.sequence - batch["region_boxes"].shape[1]
        images, texts = (F.normalize(x_BSD[:, position], dim=-1) for position in (first_region, 0))
        expected, scores = images @ texts.t(), _compare_vectors(loaded, mix, FIRST)
    assert torch.allclose(scores, expected, atol=1e-5)
    assert expected.std() > 1e-3


def test_image_has_as_many_regions_as_in_training(loaded: LoadedModel) -> None:
    task = next(
        task for task in objective_tasks(loaded.config.built_objective) if task.label in ("matching", "contrast")
    )
    """A contrast objective shares its regions between an image and retrieved images."""
    objective: Any = task.objective
    with_retrieved = replace(task, objective=replace(objective, retrieved="a file that is not read"))
    mix = open_pairs(loaded, with_retrieved, None)
    regions = mix.sample(0)["region_boxes"].shape[0]
    shared = objective.regions // 2 if isinstance(objective, CrossModalContrast) else 0
    assert regions == objective.regions - shared
    assert mix.sequence - regions == loaded.config.data.sequence - objective.regions


def test_retrieval_uses_the_first_pairs(loaded: LoadedModel) -> None:
    measure = measure_matching_retrieval if loaded.spec.name == "uniter" else measure_vector_retrieval
    retrieval = measure(loaded, rows=FIRST)
    assert retrieval is not None
    assert retrieval.pairs == FIRST
    assert retrieval.texts_of_images[5] == retrieval.images_of_texts[5] == 1.0
    all_pairs = measure(loaded)
    assert all_pairs is not None
    assert 10 < all_pairs.pairs < 40


def test_recall_of_known_scores() -> None:
    scores = torch.eye(12)
    scores[0] = torch.arange(12.0)  # all other texts are nearer to the first image
    scores[1, 2] = 1.0  # ties with the correct text, and is no error
    retrieval = measure_recall(scores)
    assert retrieval.texts_of_images == pytest.approx({1: 11 / 12, 5: 11 / 12, 10: 11 / 12})
    assert retrieval.images_of_texts[1] == pytest.approx(2 / 12)
