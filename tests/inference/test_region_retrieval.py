"""Which held-out texts and images find each other, by whether a model says that they match, and by their vectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from megaptm.config import load, resolve_model
from megaptm.data.loader import as_tensors, stacked
from megaptm.inference.image_text import recalls
from megaptm.inference.loaded_model import LoadedModel
from megaptm.inference.region_retrieval import _by_match, _by_vectors, _pairs, region_retrieval
from megaptm.models import build_model, fill
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.contrast import CrossModalContrast
from megaptm.objectives.objective import SampleContext
from megaptm.objectives.regions import ImageTextMatching
from megaptm.tokenizers import load as load_tokenizer
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.models.vision import moved

CONFIGS = Path(__file__).parents[2] / "configs"
FIRST = 5


@pytest.fixture(scope="module", params=TOKENIZERS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """The tiny model of a family, as noise made it."""
    root = tmp_path_factory.mktemp(request.param)
    region_corpus(root / "corpus", images=40, tokenizer=TOKENIZERS[request.param], validation=0.5)
    tokenizer = load_tokenizer(root / "corpus/tokenizer")
    told = [f"data.mix={{{root}/corpus: 1}}", f"model.vocabulary={tokenizer.vocabulary}"]
    config = load(CONFIGS / request.param / "tiny.yaml", told)
    fill(model := build_model(resolve_model(config)), seed=0)
    return LoadedModel(root, config, 0, moved(model, 0.1).eval(), tokenizer, root / "corpus/tokenizer")


def test_each_text_is_scored_with_each_image(loaded: LoadedModel) -> None:
    tasks = tasks_of(loaded.config.built_objective)
    task = next(one for one in tasks if one.label in ("matching", "contrast"))
    mix = _pairs(loaded, task, None)
    order, objective = mix.orders[0], mix.sources[0].task.objective
    spots = [mix.locate(number) for number in range(FIRST)]
    pieces = [order.piece(spot.epoch, spot.position)[0] for spot in spots]
    if isinstance(objective, ImageTextMatching):
        # A row of the text of one and the image of another, made as training makes such.
        context = SampleContext(mix.special, np.random.default_rng(0), mix.sequence, True)
        rows = [
            [objective.make([text, replace(image, elsewhere=True)], context) for text in pieces] for image in pieces
        ]
        flat = [row for of_image in rows for row in of_image]
        batch = {name: torch.from_numpy(np.stack([row[name] for row in flat])) for name in flat[0] if name != "matched"}
        with torch.inference_mode():
            said = loaded.model.logits(batch)["itm"]
        wanted, found = (said[:, 1] - said[:, 0]).reshape(FIRST, FIRST), _by_match(loaded, mix, FIRST)
    else:
        batch = as_tensors(stacked(mix, range(FIRST)))
        with torch.inference_mode():
            x_BSD = loaded.model.encode(batch)
        places = mix.sequence - batch["region_boxes"].shape[1]
        images, texts = (F.normalize(x_BSD[:, place], dim=-1) for place in (places, 0))
        wanted, found = images @ texts.t(), _by_vectors(loaded, mix, FIRST)
    assert torch.allclose(found, wanted, atol=1e-5)
    assert wanted.std() > 1e-3


def test_an_image_has_as_many_places_as_beside_the_retrieved_ones_of_training(loaded: LoadedModel) -> None:
    task = next(one for one in tasks_of(loaded.config.built_objective) if one.label in ("matching", "contrast"))
    asked: Any = task.objective
    beside = replace(task, objective=replace(asked, retrieved="a file that is not read"))
    mix = _pairs(loaded, beside, None)
    places = mix.sample(0)["region_boxes"].shape[0]
    assert places == (asked.regions - asked.regions // 2 if isinstance(asked, CrossModalContrast) else asked.regions)
    assert mix.sequence - places == loaded.config.data.sequence - asked.regions


def test_held_out_pairs_are_counted(loaded: LoadedModel) -> None:
    found = region_retrieval(loaded, rows=FIRST)
    assert found is not None
    assert found.pairs == FIRST
    assert found.texts_of_images[5] == found.images_of_texts[5] == 1.0
    whole = region_retrieval(loaded)
    assert whole is not None
    assert 10 < whole.pairs < 40


def test_recall_counts_those_whose_own_is_among_the_first() -> None:
    scores = torch.eye(12)
    scores[0] = torch.arange(12.0)  # of the first image all other texts are nearer
    scores[1, 2] = 1.0  # as near as its own, which does not count against that
    found = recalls(scores)
    assert found.texts_of_images == pytest.approx({1: 11 / 12, 5: 11 / 12, 10: 11 / 12})
    assert found.images_of_texts[1] == pytest.approx(2 / 12)
