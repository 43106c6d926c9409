"""The whole life of each family's tiny config, as it is: trained on real text, killed, resumed on another layout,
evaluated, exported, and reloaded in `transformers`, where it must say what it said here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

import megaptm
from megaptm.batch import IGNORED, MicroBatch
from megaptm.commands.evaluate import evaluate
from megaptm.commands.export import export
from megaptm.config import Config, load
from megaptm.data import Mix, open_mix
from megaptm.data.loader import as_tensors, stacked
from megaptm.data.statistics import unigram_loss
from megaptm.errors import UserError
from megaptm.families import CATALOGUE, RECURRENT
from megaptm.hub.counterparts import find_counterpart
from megaptm.inference.evaluate import MICROBATCHES
from megaptm.inference.loaded_model import LoadedModel
from megaptm.spec import ModelSpec
from megaptm.track import read_metrics
from tests.drills.lives import THREADS, command, killed_half_way, spending
from tests.drills.program import checkpoints, finish, resumed_at
from tests.drills.tiny_corpora import tiny_config
from tests.hub.reloaded import documents_of, inputs_of, joint_losses_of, losses_of, losses_of_rows_that_go_on, reload

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800), pytest.mark.usefixtures("one_thread")]

FAMILIES = [name for name in CATALOGUE | RECURRENT if tiny_config(name).is_file()]
ROWS = 1024
CLEARLY = 0.1
"""Nats for each answer."""
OF_CLASSES = 0.01
"""The same, where answers are few classes, each with some certainty from the start."""
WORDS = ("lm", "mlm", "permutation-lm", "bidirectional-lm")
"""Losses of what is asked about words."""


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
    if (taught := load(tiny_config(family)).distill) is not None and not checkpoints(folder / taught.teacher):
        assert finish("train", str(tiny_config("bert")), THREADS).returncode == 0
    with spending(request.config, family) as spent:
        spent.cpu += killed_half_way(family, run)
        done = finish("train", str(run), f"layout.{divided(family)}=2", THREADS)
        assert done.returncode == 0, done.stdout + done.stderr
    loaded = megaptm.load(run)
    # As many as are evaluated: the baseline of all takes longer than the model.
    monkeypatch_module.setattr("megaptm.inference.evaluate.COUNTED_SAMPLES", ROWS)
    told = json.loads(command(evaluate, str(run), "--rows", str(ROWS), "--json"))
    return Life(
        loaded=loaded,
        validations=[*{record["step"]: record for record in read_metrics(run) if "validation/loss" in record}.values()],
        losses={name: loss["model"] for name, loss in told["losses"].items()},
        baselines={name: min(loss["unigram"], loss["uniform"]) for name, loss in told["losses"].items()},
        batches=held_out(loaded, ROWS, lanes=MICROBATCHES * loaded.config.layout.microbatch),
    )


def divided(family: str) -> str:
    """What two processes divide, where a run goes on: layers, or rows where no layout but that is for a family, or for
    a student."""
    taught = family in CATALOGUE and load(tiny_config(family)).distill is not None
    return "data" if family in RECURRENT or taught else "pipeline"


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def held_out(loaded: LoadedModel, rows: int, *, lanes: int) -> list[MicroBatch]:
    """The first held-out rows, or all that there are; of rows that go on `lanes` at a time."""
    mix = opened(loaded, lanes)
    if goes_on(loaded):
        lanes = min(lanes, opened(loaded, 1).fresh_samples)
        mix = opened(loaded, lanes)
    numbers = range(min(rows, mix.fresh_samples))
    return [as_tensors(stacked(mix, numbers[at : at + lanes])) for at in numbers[::lanes]]


def opened(loaded: LoadedModel, lanes: int) -> Mix:
    """Held-out text."""
    config = loaded.config
    return open_mix(
        config.data.mix,
        split="validation",
        objective=config.objective,
        sequence=config.data.sequence,
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=loaded.tokenizer.special,
        lanes=lanes,
    )


def goes_on(loaded: LoadedModel) -> bool:
    """Whether its rows go on where others ended, and it remembers these."""
    return loaded.config.built_objective.unit == "lane"


def mean_losses(loaded: LoadedModel, batches: list[MicroBatch]) -> dict[str, float]:
    """Nats for each answer."""
    found, pasts = [], loaded.model.empty_pasts(len(batches[0]["tokens"])) if goes_on(loaded) else {}
    with torch.inference_mode():
        for batch in batches:
            found.append(loaded.model(batch, pasts=pasts).losses)
            pasts = {stack: past.moved_on() for stack, past in pasts.items()}
    return {name: float(sum(one[name][0] for one in found) / sum(one[name][1] for one in found)) for name in found[0]}


def is_known_there(spec: ModelSpec) -> bool:
    if spec.family.drawn:  # two models
        return True
    try:
        return bool(find_counterpart(spec))
    except UserError:
        return False


def main_loss(losses: dict[str, float], prefix: str = "") -> float:
    """Of what is asked about words."""
    return next(losses[name] for name in (f"{prefix}{one}" for one in WORDS) if name in losses)


def test_it_was_killed_and_went_on(life: Life) -> None:
    run, config = life.loaded.folder, life.loaded.config
    assert len(resumed_at(run)) == 1
    assert 0 < resumed_at(run)[0] < config.train.steps
    assert checkpoints(run)[-1] == config.train.steps == life.loaded.step
    assert getattr(config.layout, divided(life.spec.name)) == 2


def test_it_learns_on_held_out_text(life: Life) -> None:
    first, last = life.validations[0], life.validations[-1]
    assert (first["step"], last["step"]) == (life.loaded.config.train.validate_every, life.loaded.config.train.steps)
    assert last["validation/loss"] < first["validation/loss"] - CLEARLY
    # At its start it is a die with as many sides as there are tokens.
    assert main_loss(life.losses) < np.log(life.spec.vocabulary) - 10 * CLEARLY


def test_it_knows_more_than_how_often_words_are(life: Life) -> None:
    """Asked about words alone: the ends of texts and T5's sentinels are easy, and would hide what is hard."""
    special = torch.tensor(sorted(life.loaded.tokenizer.special.specials))
    names = [name for name in life.batches[0] if name in ("labels", "backwards_labels")]
    batches = [
        batch | {name: batch[name].masked_fill(torch.isin(batch[name], special), IGNORED) for name in names}
        for batch in life.batches
    ]
    answers = np.concatenate([batch[name].numpy().ravel() for batch in batches for name in names])
    entropy = unigram_loss(np.bincount(answers[answers != IGNORED]))
    assert main_loss(mean_losses(life.loaded, batches)) < entropy - CLEARLY


def test_each_loss_by_itself_is_below_how_often_answers_are(life: Life) -> None:
    """And below where it began, which is about as high as saying all answers equally often."""
    for name in life.losses:
        assert life.losses[name] < life.baselines[name] - OF_CLASSES, name


def test_training_and_evaluation_measure_the_same(life: Life) -> None:
    config: Config = life.loaded.config
    rows = config.train.batch * config.train.validate_batches
    last = life.validations[-1]
    for name, loss in mean_losses(life.loaded, held_out(life.loaded, rows, lanes=config.train.batch)).items():
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
    if goes_on(life.loaded):
        found = losses_of_rows_that_go_on(theirs, life.spec, life.batches)
    elif family.drawn:
        found = joint_losses_of(reload(out / "generator"), theirs, family, life.batches)
    else:
        found = losses_of(theirs, family, life.batches)
    assert main_loss(found) == pytest.approx(main_loss(life.losses), abs=1e-4)
    for name, loss in found.items():
        assert loss == pytest.approx(life.losses[name], abs=1e-4), name
