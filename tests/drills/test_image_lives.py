"""The whole life of the tiny config of each family that reads images or regions of them: trained on a corpus that its
own comment says how to make, killed, resumed on another layout, evaluated, exported, and reloaded in `transformers`
where that has such a model."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import megaptm
from megaptm.batch import IMAGE, PATCH
from megaptm.commands.evaluate import evaluate
from megaptm.commands.export import export
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families import VISION
from megaptm.inference.loaded_model import LoadedModel
from megaptm.tokenizers import load as load_tokenizer
from megaptm.track import read_metrics
from tests import ROOT
from tests.data_pipeline.images.pictures import build
from tests.drills.lives import THREADS, command, killed_half_way, spending
from tests.drills.program import checkpoints, finish, resumed_at
from tests.drills.tiny_corpora import commands_of, run_in
from tests.hub.reloaded import reload

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(3600), pytest.mark.usefixtures("one_thread")]

GOES_ON = {
    "vit": ("layout.pipeline=2",),
    "clip": ("layout.tensor=2",),
    "uniter": ("layout.data=2",),
    "unimo": ("layout.data=2", "layout.microbatch=16"),
}
"""Family -> the layout of two processes on which its run goes on."""
RETRIEVED = "unimo/tiny-retrieved"
SIDES = ("texts_of_images", "images_of_texts")
CLEARLY = 0.1
"""Nats for each answer."""
SECONDS = 1500.0
"""Of a training, at most."""


@dataclass(frozen=True)
class ImageLife:
    """A run that has come to its end."""

    loaded: LoadedModel
    validations: list[dict[str, float]]
    """In order of steps, each once."""
    told: dict[str, Any]
    """What `megaptm evaluate` says."""

    @property
    def family(self) -> str:
        return self.loaded.spec.name


@pytest.fixture(scope="module", params=VISION)
def life(request: pytest.FixtureRequest, documented_corpora: Callable[[str], Path]) -> ImageLife:
    family = request.param
    folder = documented_corpora(family)
    run = folder / "runs" / f"{family}-tiny"
    more = []
    if family == "clip":
        build("shapes", folder / "corpora/shapes-labels", validation=0.1)
        more = ["--zero-shot", "corpora/shapes-labels"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # where a config's corpora and runs are
        with spending(request.config, family) as spent:
            spent.cpu += killed_half_way(family, run, seconds=SECONDS)
            done = finish("train", str(run), *GOES_ON[family], THREADS, seconds=SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(command(evaluate, str(run), *more, "--json"))
        loaded = megaptm.load(run.resolve())
    by_step = {record["step"]: record for record in read_metrics(run) if "validation/loss" in record}
    return ImageLife(loaded, [*by_step.values()], told)


def test_it_was_killed_and_went_on(life: ImageLife) -> None:
    run, steps = life.loaded.folder, life.loaded.config.train.steps
    assert len(resumed_at(run)) == 1
    assert 0 < resumed_at(run)[0] < steps
    assert checkpoints(run)[-1] == steps == life.loaded.step
    assert life.loaded.config.layout.processes == 2


def test_it_learns_on_held_out_images(life: ImageLife) -> None:
    first, last = life.validations[0], life.validations[-1]
    assert (first["step"], last["step"]) == (life.loaded.config.train.validate_every, life.loaded.config.train.steps)
    assert last["validation/loss"] < first["validation/loss"]
    assert all(math.isfinite(value) for value in last.values())


def test_each_loss_by_itself_is_below_how_often_answers_are(life: ImageLife) -> None:
    for name, loss in life.told["losses"].items():
        assert loss["model"] < min(loss["unigram"], loss["uniform"]) - CLEARLY, name


def test_images_and_texts_find_each_other(life: ImageLife) -> None:
    if life.family == "vit":
        assert "retrieval" not in life.told
        return
    found = life.told["retrieval"]
    for side in SIDES:
        for first, share in found[side].items():
            assert share > 4 * int(first) / found["pairs"], (side, first)
    if life.family == "clip":
        assert life.told["zero_shot"]["accuracy"] > 3 * life.told["zero_shot"]["chance"]


def test_beside_what_was_retrieved_for_them_no_fewer_find_each_other(life: ImageLife) -> None:
    """Of UNIMO's drawn shapes nearly as many as there can be: an image says nothing of the words of its caption."""
    if life.family != "unimo":
        return
    folder = life.loaded.folder.parents[1]
    run_in(folder, commands_of(ROOT / f"configs/{RETRIEVED}.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = finish("train", f"configs/{RETRIEVED}.yaml", THREADS, seconds=SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(command(evaluate, f"runs/{RETRIEVED.replace('/', '-')}", "--json"))["retrieval"]
    most = findable(folder / "corpora/shapes-bpe")
    print(f"as many as can: {most}; alone: {life.told['retrieval']}; beside retrieved ones: {told}")
    for side, share in most.items():
        for found in (life.told["retrieval"], told):
            assert found[side]["1"] > 0.9 * share
            assert found[side]["5"] > 0.9


def findable(folder: Path) -> dict[str, float]:
    """Shares of held-out pairs that who knows what a caption says finds first, among those that say the same; of the
    same words any is right."""
    corpus = Corpus.open(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    texts = [tokenizer.decode(tokens) for tokens in corpus.documents("validation")]
    said = [tuple(sorted(re.findall(r"\w+ \w+ (?:left|right)", text))) for text in texts]
    alike = [[text for text, other in zip(texts, said, strict=True) if other == one] for one in said]
    return {
        "texts_of_images": sum(1 / len({*those}) for those in alike) / len(texts),
        "images_of_texts": sum(1 / len(those) for those in alike) / len(texts),
    }


def test_transformers_says_the_same(life: ImageLife, tmp_path: Path) -> None:
    run, out = life.loaded.folder, tmp_path / "exported"
    if life.family not in ("vit", "clip"):
        with pytest.raises(UserError, match="has no counterpart at Hugging Face"):
            command(export, "hf", str(run), str(out))
        assert not out.exists()
        return
    command(export, "hf", str(run), str(out))
    theirs, images = reload(out), held_out_images(life.loaded, tmp_path)
    shown = [Image.open(path).convert("RGB") for path in images]
    pixels = transformers.AutoImageProcessor.from_pretrained(out)(shown, return_tensors="pt")
    with torch.inference_mode():
        if life.family == "vit":
            assert close(theirs(**pixels).logits, label_logits(life.loaded, images))
            return
        texts = ["a red circle", "blue cross"]
        processor = transformers.AutoProcessor.from_pretrained(out)
        given = processor(text=texts, images=shown, return_tensors="pt", padding=True)
        said = theirs(**given)
        assert close(said.image_embeds, life.loaded.encode_images([str(path) for path in images]))
        assert close(said.text_embeds, life.loaded.encode(texts))


def label_logits(loaded: LoadedModel, images: list[Path]) -> Tensor:
    """[images, labels]"""
    task: Any = loaded.config.built_objective
    grid, rng = loaded.spec.grid, np.random.default_rng(0)
    patches = [task.held_out().patches(one.read_bytes(), grid, rng, whose=str(one), remedy="") for one in images]
    tokens = torch.full((len(images), loaded.spec.context), PATCH)
    tokens[:, 0] = IMAGE
    return loaded.model.logits({"tokens": tokens, "patches": torch.from_numpy(np.stack(patches))})["image-label"]


def close(one: Tensor, other: Tensor) -> bool:
    assert one.shape == other.shape
    return bool((one - other).abs().max() < 1e-4)


def held_out_images(loaded: LoadedModel, folder: Path, number: int = 8) -> list[Path]:
    """Files of a few."""
    corpus = Corpus.open(loaded.folder.parents[1] / next(iter(loaded.config.data.mix)))
    shard = corpus.open_shard(corpus.split("validation").shards[0])
    found = []
    for document in np.linspace(0, len(shard) - 1, number).astype(int).tolist():
        found.append(folder / f"{document}.png")
        found[-1].write_bytes(shard.blob("png", document))
    return found
