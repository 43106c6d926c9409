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

from data_pipeline.annotate.meanings import read_meanings, write_meanings
from megaptm.batch import IGNORED, MicroBatch
from megaptm.batch_schedule import BatchSchedule
from megaptm.config import load, resolve_model
from megaptm.data import Loader, open_mix, validation_batches
from megaptm.data.statistics import unigram_loss
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.regions import RegionMaskedLM
from megaptm.tokenizers import load as load_tokenizer
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus
from tests.engines import filled_engine
from tests.ranks import run_ranks

CONFIGS = Path(__file__).parents[2] / "configs"
MOST = {
    "uniter": {"itm": 0.6, "mlm": 0.1, "mrfr": 0.4, "mrc-kl": 0.7},
    # Some of its words are asked without an image.
    "unimo": {"cmcl": 0.3, "mlm": 0.3, "mrfr": 0.4, "mrc-kl": 0.7},
}
"""Loss -> the share of a guess's that is left; of features and classes it is the noise of the detector."""


@dataclass(frozen=True)
class Lesson:
    """Means of losses on held-out rows."""

    before: dict[str, float]
    after: dict[str, float]
    guessed: dict[str, float]
    """By who knows how often each answer comes: of hidden regions apart for shapes and for the ground, which boxes
    tell."""
    words: float
    """Of hidden words of texts with their images."""
    words_beside_others: float
    """The same where an image is that of another row."""


def learn(config_file: str, corpus: str, vocabulary: int) -> Lesson:
    """Train a config. Runs in a rank's process."""
    from megaptm.config.learning_rate import learning_rate
    from megaptm.train.loop import mean_losses

    config = load(config_file, [f"data.mix={{{corpus}: 1}}", f"model.vocabulary={vocabulary}"])
    rows = {"batch": config.train.batch, "microbatch": config.layout.microbatch}
    told = {"objective": config.built_objective, "sequence": config.data.sequence, "seed": config.train.seed}
    told |= {"special": load_tokenizer(Path(corpus) / "tokenizer").special}
    held_out = validation_batches(open_mix(config.data.mix, split="validation", **told), **rows, max_steps=24)
    [words] = [one.objective for one in tasks_of(config.built_objective) if isinstance(one.objective, RegionMaskedLM)]
    pairs = validation_batches(
        open_mix(config.data.mix, split="validation", **told | {"objective": words}), **rows, max_steps=8
    )
    engine = filled_engine(
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
            engine.train_step(batches, step=step, lr=learning_rate(step, config.optimizer, steps=config.train.steps))
    after = mean_losses(engine, iter(held_out))
    others = [[with_other_images(batch) for batch in step] for step in pairs]
    of_own, of_others = (mean_losses(engine, iter(batches))["mlm"] for batches in (pairs, others))
    return Lesson(before, after, guessed, of_own, of_others)


def with_other_images(batch: MicroBatch) -> MicroBatch:
    """Each row's text with the regions of the row before it."""
    behind = batch["tokens"].shape[1] - batch["region_boxes"].shape[1]
    moved = {name: batch[name].roll(1, 0) for name in ("region_features", "region_boxes")}
    for name in ("tokens", "document_ids"):
        moved[name] = torch.cat([batch[name][:, :behind], batch[name][:, behind:].roll(1, 0)], 1)
    return batch | moved


def guesses(batches: list[MicroBatch]) -> dict[str, float]:
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    features, likely = ([*of_kinds(batches, field)] for field in ("masked_region_features", "region_distributions"))
    far = [(one - one.mean(0)).square() for one in features]
    apart = [F.kl_div(one.mean(0).log().expand_as(one), one, reduction="none") for one in likely]
    return {
        "itm": math.log(2),
        "cmcl": found_by_chance(batches),
        "mlm": unigram_loss(labels[labels != IGNORED].bincount().numpy()),
        "mrfr": torch.cat(far).mean().item(),
        "mrc-kl": torch.cat(apart).mean().item(),
    }


def found_by_chance(batches: list[MicroBatch]) -> float:
    """Nats of who takes any text of the batch or another image for right; each batch is compared by itself."""
    found = []
    for batch in batches:
        if (asked := batch.get("num_positive_texts", torch.zeros(0)) > 0).any():
            texts = batch["text_starts"][asked] != IGNORED
            found += (
                math.log(int(texts.sum()) + int(asked.sum()) - 1) - batch["num_positive_texts"][asked].log()
            ).tolist()
    return sum(found) / len(found) if found else math.nan


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


@pytest.mark.drill
@pytest.mark.parametrize("family", MOST)
def test_words_regions_and_what_belongs_together_are_learned_by_the_tiny_config(family: str, tmp_path: Path) -> None:
    """Far below who sees no other kind."""
    region_corpus(tmp_path / "corpus", tokenizer=TOKENIZERS[family], validation=0.2)
    # Captions are rewritten by phrases in tokens of this corpus.
    meanings, tokenizer = tmp_path / "meanings.json", load_tokenizer(tmp_path / "corpus/tokenizer")
    write_meanings(read_meanings(CONFIGS / "unimo/shapes.tsv"), tokenizer, meanings)
    config = (CONFIGS / family / "tiny.yaml").read_text().replace("../", f"{CONFIGS}/")
    (tmp_path / "tiny.yaml").write_text(config.replace("corpora/shapes.json", str(meanings)))
    told = (str(tmp_path / "tiny.yaml"), str(tmp_path / "corpus"), TOKENIZERS[family].vocabulary)
    [lesson] = run_ranks(1, learn, *told)
    print(lesson)
    for loss, most in MOST[family].items():
        assert lesson.before[loss] > 0.9 * lesson.guessed[loss], loss
        assert lesson.after[loss] < most * lesson.guessed[loss], loss
    assert lesson.words < 0.2 * lesson.words_beside_others, "words are known by their image"
