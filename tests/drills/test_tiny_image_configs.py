"""Tiny configs of families that read images or regions: each is trained on the corpus that its comment builds, killed,
resumed on another layout, evaluated, exported, and loaded in `transformers` if that has such a model."""

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
from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.families.vit.spec import IMAGE, PATCH
from megaptm.inference.loaded_model import LoadedModel
from megaptm.tokenizers import load_tokenizer
from megaptm.track import read_metrics
from tests import ROOT
from tests.data_pipeline.images.pictures import build
from tests.drills.killed_runs import THREADS, command, kill_half_way, measure_cost
from tests.drills.program import checkpoints, finish, resumed_at
from tests.drills.tiny_corpora import commands_of, run_in
from tests.families.groups import VISION
from tests.hub.reloaded import reload

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(3600), pytest.mark.usefixtures("one_thread")]

RESUMED_LAYOUTS = {
    "vit": ("layout.pipeline=2",),
    "clip": ("layout.tensor=2",),
    "uniter": ("layout.data=2",),
    "unimo": ("layout.data=2", "layout.microbatch=16"),
}
"""Family -> layout of two processes on which its run resumes."""
RETRIEVED = "unimo/tiny-retrieved"
SIDES = ("texts_of_images", "images_of_texts")
MARGIN = 0.1
"""Nats per label."""
MAX_SECONDS = 1500.0
"""Maximum seconds of a training."""


@dataclass(frozen=True)
class FinishedImageRun:
    """Finished run."""

    loaded: LoadedModel
    validations: list[dict[str, float]]
    """One record per validated step, in order."""
    report: dict[str, Any]
    """Output of `megaptm evaluate`."""

    @property
    def family(self) -> str:
        return self.loaded.spec.name


@pytest.fixture(scope="module", params=VISION)
def finished(request: pytest.FixtureRequest, documented_corpora: Callable[[str], Path]) -> FinishedImageRun:
    family = request.param
    folder = documented_corpora(family)
    run = folder / "runs" / f"{family}-tiny"
    more = []
    if family == "clip":
        build("shapes", folder / "corpora/shapes-labels", validation=0.1)
        more = ["--zero-shot", "corpora/shapes-labels"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # the working directory of a config's relative paths
        with measure_cost(request.config, family) as spent:
            spent.cpu += kill_half_way(family, run, seconds=MAX_SECONDS)
            done = finish("train", str(run), *RESUMED_LAYOUTS[family], THREADS, seconds=MAX_SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads(command(evaluate_command, str(run), *more, "--json"))
        loaded = megaptm.load(run.resolve())
    by_step = {record["step"]: record for record in read_metrics(run) if "validation/loss" in record}
    return FinishedImageRun(loaded, [*by_step.values()], report)


def test_run_was_killed_and_resumed(finished: FinishedImageRun) -> None:
    run, steps = finished.loaded.folder, finished.loaded.config.train.steps
    assert len(resumed_at(run)) == 1
    assert 0 < resumed_at(run)[0] < steps
    assert checkpoints(run)[-1] == steps == finished.loaded.step
    assert finished.loaded.config.layout.processes == 2


def test_validation_loss_decreases(finished: FinishedImageRun) -> None:
    first, last = finished.validations[0], finished.validations[-1]
    assert (first["step"], last["step"]) == (
        finished.loaded.config.train.validate_every,
        finished.loaded.config.train.steps,
    )
    assert last["validation/loss"] < first["validation/loss"]
    assert all(math.isfinite(value) for value in last.values())


def test_each_loss_is_below_baselines(finished: FinishedImageRun) -> None:
    for name, loss in finished.report["losses"].items():
        assert loss["model"] < min(loss["unigram"], loss["uniform"]) - MARGIN, name


def test_retrieval_beats_chance(finished: FinishedImageRun) -> None:
    if finished.family == "vit":
        assert "retrieval" not in finished.report
        return
    retrieval = finished.report["retrieval"]
    for side in SIDES:
        for first, share in retrieval[side].items():
            assert share > 4 * int(first) / retrieval["pairs"], (side, first)
    if finished.family == "clip":
        assert finished.report["zero_shot"]["accuracy"] > 3 * finished.report["zero_shot"]["chance"]


def test_retrieved_texts_do_not_lower_retrieval(finished: FinishedImageRun) -> None:
    """UNIMO finds nearly as many shapes as possible. An image does not tell the wording of its caption."""
    if finished.family != "unimo":
        return
    folder = finished.loaded.folder.parents[1]
    run_in(folder, commands_of(ROOT / f"configs/{RETRIEVED}.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = finish("train", f"configs/{RETRIEVED}.yaml", THREADS, seconds=MAX_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr
        with_retrieved = json.loads(command(evaluate_command, f"runs/{RETRIEVED.replace('/', '-')}", "--json"))[
            "retrieval"
        ]
    max_shares = max_retrieval(folder / "corpora/shapes-bpe")
    alone = finished.report["retrieval"]
    print(f"maximum: {max_shares}; alone: {alone}; with retrieved texts: {with_retrieved}")
    for side, share in max_shares.items():
        for retrieval in (alone, with_retrieved):
            assert retrieval[side]["1"] > 0.9 * share
            assert retrieval[side]["5"] > 0.9


def max_retrieval(folder: Path) -> dict[str, float]:
    """Return the maximum shares of held-out pairs that are found first: captions with the same content cannot be told
    apart, and of captions with the same text any counts as right."""
    corpus = Corpus.open(folder)
    tokenizer = load_tokenizer(folder / "tokenizer")
    texts = [tokenizer.decode(tokens) for tokens in corpus.documents("validation")]
    contents = [tuple(sorted(re.findall(r"\w+ \w+ (?:left|right)", text))) for text in texts]
    groups = [[text for text, other in zip(texts, contents, strict=True) if other == content] for content in contents]
    return {
        "texts_of_images": sum(1 / len({*group}) for group in groups) / len(texts),
        "images_of_texts": sum(1 / len(group) for group in groups) / len(texts),
    }


def test_export_matches_transformers(finished: FinishedImageRun, tmp_path: Path) -> None:
    run, out = finished.loaded.folder, tmp_path / "exported"
    if finished.family not in ("vit", "clip"):
        with pytest.raises(UserError, match="has no counterpart at Hugging Face"):
            command(export_group, "hf", str(run), str(out))
        assert not out.exists()
        return
    command(export_group, "hf", str(run), str(out))
    hf_model, images = reload(out), held_out_images(finished.loaded, tmp_path)
    opened_images = [Image.open(path).convert("RGB") for path in images]
    pixels = transformers.AutoImageProcessor.from_pretrained(out)(opened_images, return_tensors="pt")
    with torch.inference_mode():
        if finished.family == "vit":
            assert are_close(hf_model(**pixels).logits, label_logits(finished.loaded, images))
            return
        texts = ["a red circle", "blue cross"]
        processor = transformers.AutoProcessor.from_pretrained(out)
        inputs = processor(text=texts, images=opened_images, return_tensors="pt", padding=True)
        outputs = hf_model(**inputs)
        assert are_close(outputs.image_embeds, finished.loaded.encode_images([str(path) for path in images]))
        assert are_close(outputs.text_embeds, finished.loaded.encode(texts))


def label_logits(loaded: LoadedModel, images: list[Path]) -> Tensor:
    """Return the logits, [images, labels]."""
    task: Any = loaded.config.built_objective
    grid, rng = task.patches_per_side(loaded.spec.context), np.random.default_rng(0)
    patches = [
        task.for_validation().decode_patches(path.read_bytes(), grid, rng, source=str(path), remedy="")
        for path in images
    ]
    tokens = torch.full((len(images), loaded.spec.context), PATCH)
    tokens[:, 0] = IMAGE
    return loaded.model.logits({"tokens": tokens, "patches": torch.from_numpy(np.stack(patches))})["image-label"]


def are_close(first: Tensor, second: Tensor) -> bool:
    assert first.shape == second.shape
    return bool((first - second).abs().max() < 1e-4)


def held_out_images(loaded: LoadedModel, folder: Path, num_images: int = 8) -> list[Path]:
    """Write some held-out images to files."""
    corpus = Corpus.open(loaded.folder.parents[1] / next(iter(loaded.config.data.mix)))
    shard = corpus.open_shard(corpus.split("validation").shards[0])
    paths = []
    for document in np.linspace(0, len(shard) - 1, num_images).astype(int).tolist():
        paths.append(folder / f"{document}.png")
        paths[-1].write_bytes(shard.blob("png", document))
    return paths
