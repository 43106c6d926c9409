"""Words and regions of images learn to be known by each other: hidden ones of either kind, and whether they belong
together, on held-out images."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from data_pipeline.images.region_shapes import DETECTOR, write_region_shapes
from data_pipeline.recipe import TokenizerRecipe
from megaptm.batch import IGNORED, MicroBatch
from megaptm.batch_schedule import BatchSchedule
from megaptm.config import load, resolve_model
from megaptm.data import Loader, open_mix, validation_batches
from megaptm.data.statistics import unigram_loss
from tests.data_pipeline.images.pictures import build
from tests.ranks import run_ranks

CONFIG = Path(__file__).parents[2] / "configs/uniter/tiny.yaml"
LOSSES = ("itm", "mlm", "mrfr", "mrc-kl")


@dataclass(frozen=True)
class Lesson:
    """Means of losses on held-out rows."""

    before: dict[str, float]
    after: dict[str, float]
    guessed: dict[str, float]
    """By who knows how often each answer comes: of hidden regions apart for shapes and for the ground, which boxes
    tell."""


def learn(corpus: str) -> Lesson:
    """Train the tiny config. Runs in a rank's process."""
    from megaptm.config.learning_rate import learning_rate
    from megaptm.parallel.engine import Engine
    from megaptm.tokenizers import load as load_tokenizer
    from megaptm.train.loop import mean_losses

    config = load(CONFIG, [f"data.mix={{{corpus}: 1}}", "model.vocabulary=120"])
    rows = {"batch": config.train.batch, "microbatch": config.layout.microbatch}
    told = {"objective": config.built_objective, "sequence": config.data.sequence, "seed": config.train.seed}
    told |= {"special": load_tokenizer(Path(corpus) / "tokenizer").special}
    held_out = validation_batches(open_mix(config.data.mix, split="validation", **told), **rows, most=24)
    engine = Engine(
        resolve_model(config),
        config.layout,
        config.optimizer,
        losses=config.built_objective.losses,
        seed=config.train.seed,
    )
    guessed, before = guesses([*chain.from_iterable(held_out)]), mean_losses(engine, iter(held_out))
    mix = open_mix(config.data.mix, split="train", schedule=BatchSchedule(config.train.batch), **told)
    with Loader(mix, **rows) as loader:
        for step, batches in islice(loader, config.train.steps):
            engine.step(batches, step=step, lr=learning_rate(step, config.optimizer, steps=config.train.steps))
    return Lesson(before, mean_losses(engine, iter(held_out)), guessed)


def guesses(batches: list[MicroBatch]) -> dict[str, float]:
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    features, likely = ([*of_kinds(batches, field)] for field in ("hidden_features", "region_distributions"))
    far = [(one - one.mean(0)).square() for one in features]
    apart = [F.kl_div(one.mean(0).log().expand_as(one), one, reduction="none") for one in likely]
    return {
        "itm": math.log(2),
        "mlm": unigram_loss(labels[labels != IGNORED].bincount().numpy()),
        "mrfr": torch.cat(far).mean().item(),
        "mrc-kl": torch.cat(apart).mean().item(),
    }


def of_kinds(batches: list[MicroBatch], field: str) -> Iterator[Tensor]:
    """[N, ...]: answers about hidden shapes, and about hidden ground, whose boxes are wide."""
    answers, wide = [], []
    for batch in batches:
        boxes = batch["region_boxes"]
        places = batch["masked_positions"][:, : batch[field].shape[1]] - (batch["tokens"].shape[1] - boxes.shape[1])
        rows = torch.arange(len(places))[:, None]
        asked = batch[field][:, :, 0] != IGNORED
        answers.append(batch[field][asked].float())
        wide.append(boxes[rows, places.clamp(min=0), 4][asked] > 0.5)
    for kind in (False, True):
        yield torch.cat(answers)[torch.cat(wide) == kind]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("regions")
    write_region_shapes(place / "source")
    cased = TokenizerRecipe(kind="wordpiece", vocabulary=120, lowercase=False)
    options = {"texts": True, "regions": True, "detector": DETECTOR, "tokenizer": cased, "validation": 0.2}
    build(place / "source", place / "corpus", **options)
    return place / "corpus"


@pytest.mark.drill
def test_words_regions_and_what_belongs_together_are_learned_by_the_tiny_config(corpus):
    """Far below who sees no other kind: what is left of features and classes is the noise of the detector."""
    [lesson] = run_ranks(1, learn, str(corpus))
    print(lesson)
    most = {"itm": 0.6, "mlm": 0.1, "mrfr": 0.4, "mrc-kl": 0.7}
    for loss in LOSSES:
        assert lesson.before[loss] > 0.9 * lesson.guessed[loss], loss
        assert lesson.after[loss] < most[loss] * lesson.guessed[loss], loss
