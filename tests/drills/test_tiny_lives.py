"""The whole life of each family's tiny config, as it is: trained on real text, killed, resumed on another layout,
evaluated, exported, and reloaded in `transformers`, where it must say what it said here."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import megaptm
from megaptm.batch import IGNORED, MicroBatch
from megaptm.commands.evaluate import evaluate
from megaptm.commands.export import export
from megaptm.config import Config, load
from megaptm.data import open_mix
from megaptm.data.loader import as_tensors, stacked
from megaptm.data.statistics import unigram_loss
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import counterpart_of
from megaptm.inference.loaded_model import LoadedModel
from megaptm.spec import ModelSpec
from megaptm.track import read_metrics
from tests.drills.conftest import SPENT, Spent
from tests.drills.program import checkpoints, family_of, finish, last_step, resumed_at, start, wait_for
from tests.drills.tiny_corpora import tiny_config
from tests.hub.reloaded import documents_of, inputs_of, joint_losses_of, losses_of, reload
from tests.processes import survivors

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800)]

FAMILIES = [name for name in CATALOGUE if tiny_config(name).is_file()]
ROWS = 1024
CLEARLY = 0.1
"""Nats for each answer."""
OF_CLASSES = 0.01
"""The same, where answers are few classes, each with some certainty from the start."""
NOT_YET = {
    ("deberta-v3", "replaced-token"): "its tiny config is too short: it says so",
    ("macbert", "sentence-order"): "1,200 steps do not teach which of two texts comes first: 0.691 of 0.693 nats",
}
"""Losses of tiny configs that do not come below their baselines."""
# One thread a process: two that share a busy core wait for each other more than they compute.
THREADS = "train.threads=1"


@dataclass(frozen=True)
class Life:
    """A run that has come to its end, and its model on held-out rows."""

    loaded: LoadedModel
    validations: list[dict[str, float]]
    """In order of steps, each once."""
    losses: dict[str, float]
    """Nats for each answer of `ROWS` held-out rows, as `megaptm evaluate` has them."""
    baselines: dict[str, float]
    """The same of who knows only how often each answer is, or not even that, whichever is less."""
    batches: list[MicroBatch]
    """Those rows."""

    @property
    def spec(self) -> ModelSpec:
        return self.loaded.spec


@pytest.fixture(scope="module", params=FAMILIES)
def life(
    request: pytest.FixtureRequest,
    documented_corpora: Callable[[str], Path],
    monkeypatch_module: pytest.MonkeyPatch,
) -> Life:
    family = request.param
    folder = documented_corpora(family)
    monkeypatch_module.chdir(folder)  # where a config's corpora and runs are
    run = folder / "runs" / f"{family}-tiny"
    with spending(request.config, family) as spent:
        spent.cpu += killed_half_way(family, run)
        done = finish("train", str(run), "layout.pipeline=2", THREADS)
        assert done.returncode == 0, done.stdout + done.stderr
    loaded = megaptm.load(run)
    # As many as are evaluated: the baseline of all takes longer than the model.
    monkeypatch_module.setattr("megaptm.inference.evaluate.COUNTED_ROWS", ROWS)
    told = json.loads(command(evaluate, str(run), "--rows", str(ROWS), "--json"))
    return Life(
        loaded=loaded,
        validations=[*{record["step"]: record for record in read_metrics(run) if "validation/loss" in record}.values()],
        losses={name: loss["model"] for name, loss in told["losses"].items()},
        baselines={name: min(loss["unigram"], loss["uniform"]) for name, loss in told["losses"].items()},
        batches=held_out(loaded, ROWS),
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@contextmanager
def spending(config: pytest.Config, family: str) -> Iterator[Spent]:
    """What a training costs, for the table at the end; of who is killed, the test must add it."""
    before, begun, spent = children_seconds(), time.monotonic(), Spent(family)
    yield spent
    spent.cpu += children_seconds() - before
    spent.wall = time.monotonic() - begun
    config.stash.setdefault(SPENT, []).append(spent)


def children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def killed_half_way(family: str, run: Path) -> float:
    """Start a run, and kill all its processes when it has a checkpoint and has made half of its steps.

    CPU seconds that nobody waited for, and that are not in `children_seconds` therefore.
    """
    steps = load(tiny_config(family)).train.steps
    job = start("train", str(tiny_config(family)), THREADS)
    wait_for(lambda: run.is_dir() and checkpoints(run) and last_step(run) >= steps // 2, job, every=0.1)
    ranks = family_of(job)
    used = sum(sum(process.cpu_times()[:2]) for process in ranks)
    job.kill()
    for process in ranks:
        process.kill()
    job.communicate(timeout=60)
    assert not survivors(ranks)
    assert checkpoints(run)[-1] < steps
    return used


def command(one: object, *words: str) -> str:
    done = CliRunner().invoke(one, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def held_out(loaded: LoadedModel, rows: int) -> list[MicroBatch]:
    """The first held-out rows, or all that there are."""
    config = loaded.config
    mix = open_mix(
        config.data.mix,
        split="validation",
        objective=config.objective,
        sequence=config.data.sequence,
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=loaded.tokenizer.special,
    )
    numbers = range(min(rows, mix.fresh_samples))
    return [as_tensors(stacked(mix, numbers[at : at + 32])) for at in numbers[::32]]


def mean_losses(loaded: LoadedModel, batches: list[MicroBatch]) -> dict[str, float]:
    """Nats for each answer."""
    with torch.inference_mode():
        found = [loaded.model(batch) for batch in batches]
    return {name: float(sum(one[name][0] for one in found) / sum(one[name][1] for one in found)) for name in found[0]}


def is_known_there(spec: ModelSpec) -> bool:
    if spec.family.drawn:  # two models
        return True
    try:
        return bool(counterpart_of(spec))
    except UserError:
        return False


def main_loss(losses: dict[str, float], prefix: str = "") -> float:
    """Of what is asked about words."""
    return next(losses[name] for name in (f"{prefix}lm", f"{prefix}mlm") if name in losses)


def test_it_was_killed_and_went_on(life: Life) -> None:
    run, config = life.loaded.folder, life.loaded.config
    assert len(resumed_at(run)) == 1
    assert 0 < resumed_at(run)[0] < config.train.steps
    assert checkpoints(run)[-1] == config.train.steps == life.loaded.step
    assert config.layout.pipeline == 2


def test_it_learns_on_held_out_text(life: Life) -> None:
    first, last = life.validations[0], life.validations[-1]
    assert (first["step"], last["step"]) == (life.loaded.config.train.validate_every, life.loaded.config.train.steps)
    assert last["validation/loss"] < first["validation/loss"] - CLEARLY
    # At its start it is a die with as many sides as there are tokens.
    assert main_loss(life.losses) < np.log(life.spec.vocabulary) - 10 * CLEARLY


def test_it_knows_more_than_how_often_words_are(life: Life) -> None:
    """Asked about words alone: the ends of texts and T5's sentinels are easy, and would hide what is hard."""
    special = torch.tensor(sorted(life.loaded.tokenizer.special.specials))
    batches = [
        batch | {"labels": batch["labels"].masked_fill(torch.isin(batch["labels"], special), IGNORED)}
        for batch in life.batches
    ]
    answers = np.concatenate([batch["labels"].numpy().ravel() for batch in batches])
    entropy = unigram_loss(np.bincount(answers[answers != IGNORED]))
    assert main_loss(mean_losses(life.loaded, batches)) < entropy - CLEARLY


def test_each_loss_by_itself_is_below_how_often_answers_are(life: Life) -> None:
    """And below where it began, which is about as high as saying all answers equally often."""
    for name in [name for name in life.losses if (life.spec.name, name) not in NOT_YET]:
        assert life.losses[name] < life.baselines[name] - OF_CLASSES, name


def test_training_and_evaluation_measure_the_same(life: Life) -> None:
    config: Config = life.loaded.config
    rows = config.train.batch * config.train.validate_batches
    last = life.validations[-1]
    for name, loss in mean_losses(life.loaded, held_out(life.loaded, rows)).items():
        assert loss == pytest.approx(last.get(f"validation/{name}", last["validation/loss"]), rel=1e-4), name
    assert mean_losses(life.loaded, life.batches) == pytest.approx(life.losses, rel=1e-5)


def test_transformers_says_the_same(life: Life, tmp_path: Path) -> None:
    run, family, out = life.loaded.folder, life.spec.family, tmp_path / "exported"
    if not is_known_there(life.spec):
        with pytest.raises(UserError, match="has no counterpart at Hugging Face"):
            command(export, "hf", str(run), str(out))
        assert not out.exists()
        return
    command(export, "hf", str(run), str(out))
    theirs = reload(out, passed_over="discriminator_predictions." if family.name == "deberta-v3" else "-")

    text = Path(os.__file__).read_text(encoding="utf-8")[:5000]
    ids = transformers.AutoTokenizer.from_pretrained(out)(text, add_special_tokens=False).input_ids
    assert ids == life.loaded.tokenizer.encode(text).tolist()

    if any(block.last_layer == "mask-decoder" for block in family.stacks.values()):
        # They have no mask decoder, so the loss is not theirs: what the encoder says is.
        with torch.inference_mode():
            for documents in chain.from_iterable(documents_of(family, batch) for batch in life.batches[:1]):
                said = theirs.base_model(**inputs_of(documents))[0]
                assert (said - life.loaded.model.encode(documents)).abs().max() < 1e-4
        same = replace(life.loaded, model=megaptm.load(out).model)
        assert mean_losses(same, life.batches) == pytest.approx(life.losses, rel=1e-5)
        return
    if family.drawn:
        found = joint_losses_of(reload(out / "generator"), theirs, family, life.batches)
    else:
        found = losses_of(theirs, family, life.batches)
    assert main_loss(found) == pytest.approx(main_loss(life.losses), abs=1e-4)
    for name, loss in found.items():
        assert loss == pytest.approx(life.losses[name], abs=1e-4), name
