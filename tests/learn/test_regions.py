"""Pretraining on words and image regions: masked words and regions are predicted from each other, and matching pairs
are recognized, on validation images."""

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

from megaptm.batch import IGNORED, MicroBatch
from megaptm.batch_schedule import BatchSchedule
from megaptm.config import load_config, resolve_model
from megaptm.data import Loader, open_mix, read_validation
from megaptm.data.statistics import unigram_loss
from megaptm.families.unimo.corpus.meanings import read_meanings, write_meanings
from megaptm.families.uniter.objectives import RegionMaskedLM
from megaptm.objectives.composed import objective_tasks
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.engines import filled_engine
from tests.ranks import run_ranks

CONFIGS = Path(__file__).parents[2] / "configs"
MAX_RATIOS = {
    "uniter": {"itm": 0.6, "mlm": 0.1, "mrfr": 0.4, "mrc-kl": 0.7},
    # Some masked words of UNIMO are in texts without images.
    "unimo": {"cmcl": 0.3, "mlm": 0.3, "mrfr": 0.4, "mrc-kl": 0.7},
}
"""Loss -> maximum ratio to the loss of constant predictions. The noise of the detector limits features and classes."""


@dataclass(frozen=True)
class Lesson:
    """Mean losses on validation samples."""

    before: dict[str, float]
    after: dict[str, float]
    constant: dict[str, float]
    """Losses of constant predictions, for regions one of shapes and one of the background, whose boxes differ."""
    mlm_with_own_image: float
    mlm_with_other_image: float
    """Loss of masked words with the image of another sample."""


def train_and_evaluate(config_file: str, corpus: str, vocabulary: int) -> Lesson:
    """Train a config. Runs in the process of a rank."""
    from megaptm.config.learning_rate import learning_rate
    from megaptm.train.loop import mean_losses

    config = load_config(config_file, [f"data.mix={{{corpus}: 1}}", f"model.vocabulary={vocabulary}"])
    batch_sizes = {"batch": config.train.batch, "microbatch": config.layout.microbatch}
    options = {"objective": config.built_objective, "sequence": config.data.sequence, "seed": config.train.seed}
    options |= {"special": load_tokenizer(Path(corpus) / "tokenizer").special}
    validation_mix = open_mix(config.data.mix, split="validation", **options)
    validation = [*read_validation(validation_mix, **batch_sizes, max_steps=24)]
    [mlm] = [
        task.objective for task in objective_tasks(config.built_objective) if isinstance(task.objective, RegionMaskedLM)
    ]
    mlm_mix = open_mix(config.data.mix, split="validation", **options | {"objective": mlm})
    with_own_image = [*read_validation(mlm_mix, **batch_sizes, max_steps=8)]
    engine = filled_engine(
        resolve_model(config),
        config.layout,
        config.optimizer,
        losses=config.built_objective.losses,
        seed=config.train.seed,
    )
    constant, before = constant_losses([*chain.from_iterable(validation)]), mean_losses(engine, iter(validation))
    mix = open_mix(config.data.mix, split="train", schedule=BatchSchedule(config.train.batch), **options)
    with Loader(mix, **batch_sizes) as loader:
        for step, batches in islice(loader, config.train.steps):
            engine.train_step(batches, step=step, lr=learning_rate(step, config.optimizer, steps=config.train.steps))
    after = mean_losses(engine, iter(validation))
    with_other_image = [[roll_images(batch) for batch in step] for step in with_own_image]
    own, other = (mean_losses(engine, iter(batches))["mlm"] for batches in (with_own_image, with_other_image))
    return Lesson(before, after, constant, own, other)


def roll_images(batch: MicroBatch) -> MicroBatch:
    """Return each sample's text with the regions of the sample before it."""
    first_region = batch["tokens"].shape[1] - batch["region_boxes"].shape[1]
    rolled = {name: batch[name].roll(1, 0) for name in ("region_features", "region_boxes")}
    for name in ("tokens", "document_ids"):
        rolled[name] = torch.cat([batch[name][:, :first_region], batch[name][:, first_region:].roll(1, 0)], 1)
    return batch | rolled


def constant_losses(batches: list[MicroBatch]) -> dict[str, float]:
    """Return the losses of the best constant predictions."""
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    features = list(split_by_region_kind(batches, "masked_region_features"))
    distributions = list(split_by_region_kind(batches, "region_distributions"))
    errors = [(values - values.mean(0)).square() for values in features]
    divergences = [
        F.kl_div(values.mean(0).log().expand_as(values), values, reduction="none") for values in distributions
    ]
    return {
        "itm": math.log(2),
        "cmcl": uniform_contrast_loss(batches),
        "mlm": unigram_loss(labels[labels != IGNORED].bincount().numpy()),
        "mrfr": torch.cat(errors).mean().item(),
        "mrc-kl": torch.cat(divergences).mean().item(),
    }


def uniform_contrast_loss(batches: list[MicroBatch]) -> float:
    """Return the contrastive loss of equal scores for all texts of a batch and all other images."""
    losses = []
    for batch in batches:
        if (has_positives := batch.get("num_positive_texts", torch.zeros(0)) > 0).any():
            texts = batch["text_starts"][has_positives] != IGNORED
            num_candidates = int(texts.sum()) + int(has_positives.sum()) - 1
            losses += (math.log(num_candidates) - batch["num_positive_texts"][has_positives].log()).tolist()
    return sum(losses) / len(losses) if losses else math.nan


def split_by_region_kind(batches: list[MicroBatch], field: str) -> Iterator[Tensor]:
    """Yield labels [N, ...] of masked shapes, then of masked backgrounds, whose boxes are wide."""
    labels, is_wide = [], []
    for batch in batches:
        boxes = batch["region_boxes"]
        regions = batch["masked_positions"][:, : batch[field].shape[1]] - (batch["tokens"].shape[1] - boxes.shape[1])
        samples = torch.arange(len(regions))[:, None]
        is_label = batch[field][:, :, 0] != IGNORED
        labels.append(batch[field][is_label].float())
        is_wide.append(boxes[samples, regions.clamp(min=0), 4][is_label] > 0.5)
    for kind in (False, True):
        yield torch.cat(labels)[torch.cat(is_wide) == kind]


@pytest.mark.drill
@pytest.mark.parametrize("family", MAX_RATIOS)
def test_tiny_config_learns_from_words_and_regions(family: str, tmp_path: Path) -> None:
    region_corpus(tmp_path / "corpus", tokenizer=TOKENIZERS[family], validation=0.2)
    # Phrases for rewriting captions, in tokens of this corpus.
    meanings, tokenizer = tmp_path / "meanings.json", load_tokenizer(tmp_path / "corpus/tokenizer")
    write_meanings(read_meanings(CONFIGS / "unimo/shapes.tsv"), tokenizer, meanings)
    config = (CONFIGS / family / "tiny.yaml").read_text().replace("../", f"{CONFIGS}/")
    (tmp_path / "tiny.yaml").write_text(config.replace("corpora/shapes.json", str(meanings)))
    arguments = (str(tmp_path / "tiny.yaml"), str(tmp_path / "corpus"), TOKENIZERS[family].vocabulary)
    [lesson] = run_ranks(1, train_and_evaluate, *arguments)
    print(lesson)
    for loss, max_ratio in MAX_RATIOS[family].items():
        assert lesson.before[loss] > 0.9 * lesson.constant[loss], loss
        assert lesson.after[loss] < max_ratio * lesson.constant[loss], loss
    assert lesson.mlm_with_own_image < 0.2 * lesson.mlm_with_other_image
