"""Tiny config of each family: trained on real text, killed, resumed on another layout, evaluated, exported, and loaded
in `transformers`, which must compute the same losses."""

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
from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from megaptm.config import Config, load_config
from megaptm.data import Mix, open_mix
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.data.statistics import unigram_loss
from megaptm.distillation.section import distill_section
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.hub.counterparts import find_counterpart
from megaptm.inference.evaluate import MICROBATCHES
from megaptm.inference.loaded_model import LoadedModel
from megaptm.spec import ModelSpec
from megaptm.track import read_metrics
from tests.drills.killed_runs import THREADS, command, kill_half_way, measure_cost
from tests.drills.program import checkpoints, finish, resumed_at
from tests.drills.tiny_corpora import tiny_config
from tests.families.groups import RECURRENT
from tests.hub.reloaded import (
    evaluate_joint_losses,
    evaluate_losses,
    evaluate_recurrent_losses,
    reload,
    rename_inputs,
    split_documents,
)

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1800), pytest.mark.usefixtures("one_thread")]

FAMILIES = [name for name in (*CATALOGUE, *RECURRENT) if tiny_config(name).is_file()]
ROWS = 1024
MARGIN = 0.1
"""Nats per label."""
CLASS_MARGIN = 0.01
"""The same for labels of few classes, which are partly known from the start."""
TEXT_LOSSES = ("lm", "mlm", "permutation-lm", "bidirectional-lm")
"""Losses of predicted tokens."""


@dataclass(frozen=True)
class FinishedRun:
    """Finished run, and its model's losses on held-out samples."""

    loaded: LoadedModel
    validations: list[dict[str, float]]
    """One record per validated step, in order."""
    losses: dict[str, float]
    """Nats per label on `ROWS` held-out samples, as reported by `megaptm evaluate`."""
    baselines: dict[str, float]
    """Unigram or uniform loss of the same labels, whichever is less."""
    batches: list[MicroBatch]
    """Micro-batches of the held-out samples."""

    @property
    def spec(self) -> ModelSpec:
        return self.loaded.spec


@pytest.fixture(scope="module", params=FAMILIES)
def finished(
    request: pytest.FixtureRequest,
    documented_corpora: Callable[[str], Path],
    monkeypatch_module: pytest.MonkeyPatch,
) -> FinishedRun:
    family = request.param
    folder = documented_corpora(family)
    monkeypatch_module.chdir(folder)  # the working directory of a config's relative paths
    run = folder / "runs" / f"{family}-tiny"
    if (distill := distill_section(load_config(tiny_config(family)))) is not None and not checkpoints(
        folder / distill.teacher
    ):
        assert finish("train", str(tiny_config("bert")), THREADS).returncode == 0
    with measure_cost(request.config, family) as spent:
        spent.cpu += kill_half_way(family, run)
        done = finish("train", str(run), f"layout.{divided_axis(family)}=2", THREADS)
        assert done.returncode == 0, done.stdout + done.stderr
    loaded = megaptm.load(run)
    # As many as are evaluated: the unigram loss of all samples takes longer than the model.
    monkeypatch_module.setattr("megaptm.inference.evaluate.COUNTED_SAMPLES", ROWS)
    report = json.loads(command(evaluate_command, str(run), "--rows", str(ROWS), "--json"))
    return FinishedRun(
        loaded=loaded,
        validations=[*{record["step"]: record for record in read_metrics(run) if "validation/loss" in record}.values()],
        losses={name: loss["model"] for name, loss in report["losses"].items()},
        baselines={name: min(loss["unigram"], loss["uniform"]) for name, loss in report["losses"].items()},
        batches=held_out_batches(loaded, ROWS, lanes=MICROBATCHES * loaded.config.layout.microbatch),
    )


def divided_axis(family: str) -> str:
    """Return the axis on which two processes resume: pipeline, or data for families and students that have no other."""
    is_student = family in CATALOGUE and distill_section(load_config(tiny_config(family))) is not None
    return "data" if family in RECURRENT or is_student else "pipeline"


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def held_out_batches(loaded: LoadedModel, rows: int, *, lanes: int) -> list[MicroBatch]:
    """Return the first held-out samples, at most `rows`; for recurrent families, `lanes` at a time."""
    mix = open_held_out(loaded, lanes)
    if uses_lanes(loaded):
        lanes = min(lanes, open_held_out(loaded, 1).fresh_samples)
        mix = open_held_out(loaded, lanes)
    numbers = range(min(rows, mix.fresh_samples))
    return [batch_to_tensors(stack_samples(mix, numbers[at : at + lanes])) for at in numbers[::lanes]]


def open_held_out(loaded: LoadedModel, lanes: int) -> Mix:
    """Open the held-out samples."""
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


def uses_lanes(loaded: LoadedModel) -> bool:
    """Whether samples continue earlier ones, with a recurrence cache."""
    return loaded.config.built_objective.unit == "lane"


def mean_losses(loaded: LoadedModel, batches: list[MicroBatch]) -> dict[str, float]:
    """Return nats per label."""
    results, caches = [], loaded.model.empty_caches(len(batches[0]["tokens"])) if uses_lanes(loaded) else {}
    with torch.inference_mode():
        for batch in batches:
            results.append(loaded.model(batch, caches=caches).losses)
            caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
    return {
        name: float(sum(result[name][0] for result in results) / sum(result[name][1] for result in results))
        for name in results[0]
    }


def has_hf_counterpart(spec: ModelSpec) -> bool:
    if spec.family.sampled:  # two models
        return True
    try:
        return bool(find_counterpart(spec))
    except UserError:
        return False


def main_loss(losses: dict[str, float]) -> float:
    """Return the loss of predicted tokens."""
    return next(losses[name] for name in TEXT_LOSSES if name in losses)


def test_run_was_killed_and_resumed(finished: FinishedRun) -> None:
    run, config = finished.loaded.folder, finished.loaded.config
    assert len(resumed_at(run)) == 1
    assert 0 < resumed_at(run)[0] < config.train.steps
    assert checkpoints(run)[-1] == config.train.steps == finished.loaded.step
    assert getattr(config.layout, divided_axis(finished.spec.name)) == 2


def test_validation_loss_decreases(finished: FinishedRun) -> None:
    first, last = finished.validations[0], finished.validations[-1]
    assert (first["step"], last["step"]) == (
        finished.loaded.config.train.validate_every,
        finished.loaded.config.train.steps,
    )
    assert last["validation/loss"] < first["validation/loss"] - MARGIN
    # The initial loss is the logarithm of the vocabulary.
    assert main_loss(finished.losses) < np.log(finished.spec.vocabulary) - 10 * MARGIN


def test_loss_is_below_unigram_entropy(finished: FinishedRun) -> None:
    """Special tokens are left out: ends of documents and T5's sentinels are easy, and would hide a bad loss."""
    special = torch.tensor(sorted(finished.loaded.tokenizer.special.specials))
    names = [name for name in finished.batches[0] if name in ("labels", "backwards_labels")]
    batches = [
        batch | {name: batch[name].masked_fill(torch.isin(batch[name], special), IGNORED) for name in names}
        for batch in finished.batches
    ]
    labels = np.concatenate([batch[name].numpy().ravel() for batch in batches for name in names])
    entropy = unigram_loss(np.bincount(labels[labels != IGNORED]))
    assert main_loss(mean_losses(finished.loaded, batches)) < entropy - MARGIN


def test_each_loss_is_below_baselines(finished: FinishedRun) -> None:
    """The initial loss is about the uniform one."""
    for name in finished.losses:
        assert finished.losses[name] < finished.baselines[name] - CLASS_MARGIN, name


def test_validation_equals_evaluation(finished: FinishedRun) -> None:
    config: Config = finished.loaded.config
    rows = config.train.batch * config.train.validate_batches
    last = finished.validations[-1]
    for name, loss in mean_losses(
        finished.loaded, held_out_batches(finished.loaded, rows, lanes=config.train.batch)
    ).items():
        assert loss == pytest.approx(last.get(f"validation/{name}", last["validation/loss"]), rel=1e-4), name
    assert mean_losses(finished.loaded, finished.batches) == pytest.approx(finished.losses, rel=1e-5)


def test_export_matches_transformers(finished: FinishedRun, tmp_path: Path) -> None:
    run, family, out = finished.loaded.folder, finished.spec.family, tmp_path / "exported"
    if not has_hf_counterpart(finished.spec):
        with pytest.raises(UserError, match="has no counterpart at Hugging Face"):
            command(export_group, "hf", str(run), str(out))
        assert not out.exists()
        return
    command(export_group, "hf", str(run), str(out))
    hf_model = reload(out, ignored_prefix="discriminator_predictions." if family.name == "deberta-v3" else "-")

    text = Path(os.__file__).read_text(encoding="utf-8")[:5000]
    ids = transformers.AutoTokenizer.from_pretrained(out)(text, add_special_tokens=False).input_ids
    assert ids == finished.loaded.tokenizer.encode(text).tolist()

    if any(block != block.for_encoding for block in family.stacks.values()):
        # transformers has no mask decoder, so the hidden states of the encoder are compared.
        with torch.inference_mode():
            for documents in chain.from_iterable(split_documents(family, batch) for batch in finished.batches[:1]):
                hidden_states = hf_model.base_model(**rename_inputs(documents))[0]
                assert (hidden_states - finished.loaded.model.encode(documents)).abs().max() < 1e-4
        reloaded = replace(finished.loaded, model=megaptm.load(out).model)
        assert mean_losses(reloaded, finished.batches) == pytest.approx(finished.losses, rel=1e-5)
        return
    if uses_lanes(finished.loaded):
        hf_losses = evaluate_recurrent_losses(hf_model, finished.spec, finished.batches)
    elif family.sampled:
        hf_losses = evaluate_joint_losses(reload(out / "generator"), hf_model, family, finished.batches)
    else:
        hf_losses = evaluate_losses(hf_model, family, finished.batches)
    assert main_loss(hf_losses) == pytest.approx(main_loss(finished.losses), abs=1e-4)
    for name, loss in hf_losses.items():
        assert loss == pytest.approx(finished.losses[name], abs=1e-4), name
