"""`megaptm evaluate`: losses of a model on held-out text, compared with baselines without a model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from megaptm.batch import IGNORED
from megaptm.config import Config
from megaptm.console import Console
from megaptm.data import Mix, open_mix
from megaptm.data.loader import batch_to_tensors, stack_samples
from megaptm.data.shards import Corpus
from megaptm.data.statistics import bits_per_byte, bytes_per_token, unigram_loss
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.trained_model import TrainedModel
from megaptm.models.head_costs import HEADS, head_costs
from megaptm.objectives.objective import Sample, loss_weights_at
from megaptm.resilience.events import EvaluationEvent, Events
from megaptm.run.corpora import corpus_cache
from megaptm.storage import RemoteFileCache, write_atomically
from megaptm.track import Tracker

FILE = "evaluation.json"
PREDICTORS = ("model", "unigram", "uniform")

# Training samples whose labels are counted for the unigram baseline: millions of tokens, a few seconds.
COUNTED_SAMPLES = 20_000
# Without gradients a pass needs a fraction of the memory of a training pass.
MICROBATCHES = 4


@dataclass(frozen=True)
class EvaluatedLoss:
    """Evaluated loss in nats per label, of the model and of two baselines that do not read the input."""

    num_labels: int
    model: float
    unigram: float
    """Loss of the baseline that predicts each label with its frequency in training, with one added to each count. For
    replaced tokens (ELECTRA), which depend on the sampling model: the frequency in the evaluated samples. For
    contrastive losses: as `uniform`."""
    uniform: float
    """Loss of the baseline that predicts every label with equal probability. For contrastive losses: every sample of
    the batch."""


@dataclass(frozen=True)
class Evaluation:
    """Result of `megaptm evaluate` for a model."""

    run: str
    step: int
    objective: str
    corpora: dict[str, float]
    rows: int
    losses: dict[str, EvaluatedLoss]
    weights: dict[str, float]
    """Weights of the losses in the total loss of the evaluation."""
    bytes_per_token: float | None
    """UTF-8 bytes of text per label, if every token is a label (causal-lm)."""

    def total_loss(self, predictor: str) -> float:
        """Return the weighted sum of the losses of `model`, `unigram` or `uniform`, as the objective weights them in
        training."""
        return sum(self.weights[name] * getattr(loss, predictor) for name, loss in self.losses.items())

    def bits_per_byte(self, predictor: str) -> float | None:
        return None if self.bytes_per_token is None else bits_per_byte(self.total_loss(predictor), self.bytes_per_token)

    def to_json(self) -> dict[str, Any]:
        """Return the evaluation as JSON values."""
        bits = {name: self.bits_per_byte(name) for name in PREDICTORS} if self.bytes_per_token is not None else None
        return {**asdict(self), "loss": {name: self.total_loss(name) for name in PREDICTORS}, "bits_per_byte": bits}


def evaluate_model(
    loaded: TrainedModel,
    options: EvaluationOptions,
    *,
    corpora: dict[str, float] | None = None,
    console: Console | None = None,
    tell: Callable[[str], object] = lambda phase: None,
) -> Evaluation:
    """Evaluate a model on held-out samples of the run's corpora, or of other corpora. Raise UserError if an option does
    not apply to the model. The `console` shows progress, `tell` is called at the start of each phase."""
    if options.sequence is not None:
        data = loaded.config.data.model_copy(update={"sequence": options.sequence})
        loaded = replace(loaded, config=loaded.config.model_copy(update={"data": data}))
    config, corpora = loaded.config, corpora or loaded.config.data.mix
    has_lanes = config.built_objective.unit == "lane"
    _check_options(loaded, options)
    held_out, training = (_open_samples(loaded, corpora, split) for split in ("validation", "train"))
    rows = held_out.fresh_samples if options.rows is None else min(options.rows, held_out.fresh_samples)
    if not rows:
        raise UserError(
            f"the validation split of {', '.join(corpora)} is shorter than one sample of {config.data.sequence} "
            "tokens: build the corpus from more text, or with a larger validation=SHARE."
        )
    costs = head_costs(loaded.spec)
    if not (names := [name for name in held_out.losses if costs[name].is_classifier]):
        raise UserError(
            f"{', '.join(held_out.losses)}: the labels are no classes, so there are no baselines to compare with; see "
            "validation/loss in the run's metrics."
        )
    if untrained := {part.split(".")[1] for part in loaded.newly_initialized} & {*names}:
        raise UserError(f"{loaded.folder} has no weights of the head {min(untrained)}: continue its training first.")
    contrasts = {name for name in names if HEADS[name].contrasts}
    # A sample is contrasted with a whole batch, as in training.
    batch_size = config.train.batch if contrasts else MICROBATCHES * config.layout.microbatch
    if has_lanes:
        batch_size = min(batch_size, rows)
        held_out = _open_samples(loaded, corpora, "validation", lanes=batch_size)
        rows = min(rows // batch_size * batch_size, held_out.fresh_samples)
    caches = (
        loaded.model.empty_caches(batch_size, num_positions=options.memory, farthest=options.farthest)
        if has_lanes
        else {}
    )
    for stack_cache in caches.values():
        stack_cache.same_length = options.same_length
    sizes = {name: loaded.tokenizer.vocabulary if HEADS[name].projects else costs[name].classes for name in names}
    sizes |= dict.fromkeys(contrasts, 1)  # for contrastive losses only the number of labels is counted
    chance = dict.fromkeys(contrasts, 0.0)
    sampled_labels = {
        name for name in names if HEADS[name].labels_from_samples
    }  # their labels are known after the model has sampled
    counts, training_counts = ({name: np.zeros(size, np.int64) for name, size in sizes.items()} for _ in range(2))
    sums = dict.fromkeys(names, 0.0)
    tell(f"computing the loss of {rows:,} held-out samples")
    for batch in _read_batches(held_out, rows, batch_size, "held-out loss", console):
        tensors = {field: tensor.to(loaded.device) for field, tensor in batch_to_tensors(batch).items()}
        with torch.inference_mode():
            batch_losses = loaded.model(tensors, caches=caches).losses
            caches = {stack: stack_cache.after_sequence() for stack, stack_cache in caches.items()}
            if sampled_labels:
                batch = {
                    field: tensor.cpu().numpy() for field, tensor in loaded.model.with_sampled_labels(tensors).items()
                }
        _count_labels(batch, counts)
        for name in contrasts:  # a random guess picks any sample of the batch that has a label
            compared = int(np.count_nonzero(batch[HEADS[name].label_field] != IGNORED))
            chance[name] += compared * math.log(max(compared, 1))
        for name in names:
            sums[name] += float(batch_losses[name][0])
    if empty := [name for name in names if not counts[name].sum()]:
        raise UserError(
            f"{rows:,} held-out samples of {', '.join(corpora)} have no label for {empty[0]}: evaluate more samples."
        )
    counted = min(COUNTED_SAMPLES, training.fresh_samples)
    tell(f"counting the labels of {counted:,} training samples for the unigram baseline")
    for batch in _read_batches(training, counted, 100, "unigram baseline", console):
        _count_labels(batch, training_counts)
    num_labels = {name: int(count.sum()) for name, count in counts.items()}
    uniform = {name: chance[name] / num_labels[name] if name in contrasts else math.log(sizes[name]) for name in names}
    losses = {
        name: EvaluatedLoss(
            num_labels=num_labels[name],
            model=sums[name] / num_labels[name],
            unigram=uniform[name]
            if name in contrasts
            else unigram_loss(counts[name], None if name in sampled_labels else training_counts[name]),
            uniform=uniform[name],
        )
        for name in names
    }
    every_token = config.built_objective.predicts_every_token
    return Evaluation(
        run=str(loaded.folder),
        step=loaded.step,
        objective=config.built_objective.name,
        weights=loss_weights_at(config.built_objective, max(loaded.step - 1, 0)),  # of the last step, as in validation
        corpora=dict(corpora),
        rows=rows,
        losses=losses,
        bytes_per_token=_bytes_per_token(corpora, corpus_cache(config)) if every_token else None,
    )


def record_evaluation(config: Config, evaluation: Evaluation) -> Path:
    """Record an evaluation with its run: in a file, the journals, and the tracking server."""
    run = Path(evaluation.run)
    write_atomically(run / FILE, json.dumps(evaluation.to_json(), indent=1).encode() + b"\n")
    metrics = {f"evaluation/{name}": loss.model for name, loss in evaluation.losses.items()}
    metrics |= {f"baseline/{name}": evaluation.total_loss(name) for name in ("unigram", "uniform")}
    if (bits := evaluation.bits_per_byte("model")) is not None:
        metrics["evaluation/bits_per_byte"] = bits
    with Events(run) as events:
        events.write(
            EvaluationEvent(step=evaluation.step, samples=evaluation.rows, loss=evaluation.total_loss("model"))
        )
    tracker = Tracker(run, **config.track.model_dump())
    tracker.log_metrics(evaluation.step, metrics)
    tracker.close()
    return run / FILE


def show_evaluation(evaluation: Evaluation, console: Console) -> None:
    """Print the table of an evaluation with a row for the model and each baseline, for each loss."""
    several, bits = len(evaluation.losses) > 1, evaluation.bytes_per_token is not None
    table = Table(box=None, pad_edge=False)
    for heading in [*(["labels"] if several else []), ""]:
        table.add_column(heading)
    for heading in ["loss (nats)", "perplexity", *(["bits per byte"] if bits else [])]:
        table.add_column(heading, justify="right")
    for name, loss in evaluation.losses.items():
        for predictor in PREDICTORS:
            nats, is_model = getattr(loss, predictor), predictor == "model"
            cells = [f"{nats:.4f}", f"{_to_perplexity(nats):,.1f}"]
            if bits:
                cells.append(f"{evaluation.bits_per_byte(predictor):.3f}")
            loss_name = [name if is_model else ""] if several else []
            table.add_row(*loss_name, predictor, *cells, style="bold cyan" if is_model else "")
    labels = ", ".join(
        f"{loss.num_labels:,}{f' of {name}' if several else ''}" for name, loss in evaluation.losses.items()
    )
    console.print(
        Text.assemble(
            (Path(evaluation.run).name, "bold"),
            f" at step {evaluation.step}: {evaluation.rows:,} held-out samples, {labels} labels",
        )
    )
    console.print(table)


def _to_perplexity(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:  # of a model that diverged
        return math.inf


def _check_options(loaded: TrainedModel, options: EvaluationOptions) -> None:
    """Raise UserError if an option of evaluation is for another kind of model."""
    objective, block = loaded.config.built_objective, loaded.spec.family.first_block
    has_lanes = objective.unit == "lane"
    attends_to_cache = any(record.caches_states for record in block.attentions)
    if not has_lanes and (options.memory is not None or options.farthest is not None):
        raise UserError(
            f"memory and farthest need samples that continue each other, which {objective.name} does not have: remove "
            "the options."
        )
    if options.farthest is not None and not attends_to_cache:
        raise UserError(f"farthest needs relative positions, which {loaded.spec.name} does not have: remove it.")
    if options.same_length and not (has_lanes and attends_to_cache and block.causal):
        raise UserError(
            f"same_length needs a decoder with a recurrence cache, which {loaded.spec.name} does not have: remove it."
        )


def _open_samples(loaded: TrainedModel, corpora: dict[str, float], split: str, *, lanes: int | None = None) -> Mix:
    config = loaded.config
    mix = open_mix(
        corpora,
        split=split,
        objective=config.objective,
        sequence=config.data.sequence,
        seed=config.train.seed,
        document_mask=config.data.document_mask,
        special=loaded.tokenizer.special,
        verify=config.data.verify,
        cache=corpus_cache(config),
        size_exponent=config.data.size_exponent,
        size_limits=config.data.size_limits,
        lanes=lanes,
        last_step=config.train.steps - 1,
    )
    if mix.fingerprint != loaded.tokenizer.fingerprint:
        raise UserError(
            f"{next(iter(corpora))} was built with another tokenizer than the run: build it with "
            f"tokenizer={loaded.tokenizer_folder}."
        )
    return mix


def _read_batches(mix: Mix, rows: int, batch_size: int, title: str, console: Console | None) -> Iterator[Sample]:
    """Yield the first samples of a mix to evaluate in batches of `batch_size`, with a progress bar."""
    columns = (TextColumn(f"{title:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=console is None) as progress:
        bar = progress.add_task(title, total=rows)
        for start in range(0, rows, batch_size):
            yield stack_samples(mix, range(start, min(start + batch_size, rows)))
            progress.update(bar, completed=min(start + batch_size, rows))


def _count_labels(batch: Sample, counts: dict[str, np.ndarray]) -> None:
    """Count the labels of an evaluated batch in `counts`: loss -> int64 [number of classes]."""
    for name, count in counts.items():
        labels = batch[HEADS[name].label_field].reshape(-1)
        labels = labels[labels != IGNORED]
        if HEADS[name].contrasts:  # the label is the sample itself; the field holds its position
            count[0] += len(labels)
        else:
            count += np.bincount(labels, minlength=len(count))


def _bytes_per_token(corpora: dict[str, float], cache: RemoteFileCache) -> float:
    """Return the mean bytes per token of the evaluated corpora, weighted by their tokens."""
    ratios = [bytes_per_token(Corpus.open(folder, cache), "validation") for folder in corpora]
    return float(np.average(ratios, weights=list(corpora.values())))
