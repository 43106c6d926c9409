"""`megaptm evaluate`: losses of a model on held-out text, compared with baselines without a model."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from megaptm.batch import IGNORED
from megaptm.bricks import HEADS, heads
from megaptm.config import Config
from megaptm.console import Console
from megaptm.data import Mix, open_mix
from megaptm.data.loader import as_tensors, stacked
from megaptm.data.shards import Corpus
from megaptm.data.statistics import bits_per_byte, bytes_per_token, unigram_loss
from megaptm.errors import UserError
from megaptm.inference.evaluation_options import EvaluationOptions
from megaptm.inference.loaded_model import LoadedModel
from megaptm.models.loss import Loss
from megaptm.objectives.objective import Sample, weights_at
from megaptm.resilience.events import EvaluationEvent, Events
from megaptm.run.corpora import cache_of
from megaptm.storage import Cache, write_whole
from megaptm.track import Tracker

FILE = "evaluation.json"

# Training samples whose labels are counted for the unigram baseline: millions of tokens, a few seconds.
COUNTED_ROWS = 20_000
# Without gradients a pass needs a fraction of the memory of a training pass.
MICROBATCHES = 4


@dataclass(frozen=True)
class EvaluatedLoss:
    """Loss in nats per label, of the model and of two baselines that do not read the input."""

    asked: int
    """Number of labels."""
    model: float
    unigram: float
    """Predicts each label with its frequency in training, with one added to each count. For replaced tokens (ELECTRA),
    which depend on the sampling model: the frequency in the evaluated samples. For contrastive losses: as `uniform`."""
    uniform: float
    """Predicts every label with equal probability. For contrastive losses: every sample of the batch."""


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`."""

    run: str
    step: int
    objective: str
    corpora: dict[str, float]
    rows: int
    losses: dict[str, EvaluatedLoss]
    weights: dict[str, float]
    """Weights of the losses in their sum."""
    bytes_per_token: float | None
    """UTF-8 bytes of text per label, if every token is a label (causal-lm)."""

    def total(self, who: str) -> float:
        """Return the weighted sum of the losses of `model`, `unigram` or `uniform`: the objective of training."""
        return sum(self.weights[name] * getattr(loss, who) for name, loss in self.losses.items())

    def bits_per_byte(self, who: str) -> float | None:
        return None if self.bytes_per_token is None else bits_per_byte(self.total(who), self.bytes_per_token)

    def plain(self) -> dict[str, Any]:
        """Return the evaluation as JSON values."""
        people = ("model", "unigram", "uniform")
        bits = {who: self.bits_per_byte(who) for who in people} if self.bytes_per_token is not None else None
        return {**asdict(self), "loss": {who: self.total(who) for who in people}, "bits_per_byte": bits}


def evaluate(
    loaded: LoadedModel,
    options: EvaluationOptions,
    *,
    corpora: dict[str, float] | None = None,
    console: Console | None = None,
    tell: Callable[[str], object] = lambda what: None,
) -> Evaluation:
    """Evaluate the model on held-out samples of the run's corpora, or of others. Raise UserError if an option does not
    apply to the model. `console` shows progress, `tell` is called at the start of each phase."""
    if options.sequence is not None:
        data = loaded.config.data.model_copy(update={"sequence": options.sequence})
        loaded = replace(loaded, config=loaded.config.model_copy(update={"data": data}))
    config, corpora = loaded.config, corpora or loaded.config.data.mix
    goes_on = config.built_objective.unit == "lane"
    _refuse_options(loaded, options)
    held_out, training = (_open(loaded, corpora, split) for split in ("validation", "train"))
    rows = held_out.fresh_samples if options.rows is None else min(options.rows, held_out.fresh_samples)
    if not rows:
        raise UserError(
            f"the validation split of {', '.join(corpora)} is shorter than one row of {config.data.sequence} tokens: "
            "build the corpus from more text, or with a larger validation=SHARE."
        )
    bricks = heads(loaded.spec)
    if not (names := [name for name in held_out.losses if bricks[name].chooses]):
        raise UserError(
            f"{', '.join(held_out.losses)}: what is said there is no choice among answers, so that there is nobody to "
            "compare it with; the held-out loss is among the run's metrics."
        )
    if unlearned := {part.split(".")[1] for part in loaded.fresh} & {*names}:
        raise UserError(f"{loaded.folder} came without the head {min(unlearned)}, which has nothing to be measured.")
    contrasts = {name for name in names if HEADS[name].contrasts}
    # A sample is contrasted with a whole batch, as in training.
    each = config.train.batch if contrasts else MICROBATCHES * config.layout.microbatch
    if goes_on:
        each = min(each, rows)
        held_out = _open(loaded, corpora, "validation", lanes=each)
        rows = min(rows // each * each, held_out.fresh_samples)
    pasts = loaded.model.empty_pasts(each, places=options.memory, farthest=options.farthest) if goes_on else {}
    for past in pasts.values():
        past.same_length = options.same_length
    sizes = {name: loaded.tokenizer.vocabulary if HEADS[name].projects else bricks[name].classes for name in names}
    sizes |= dict.fromkeys(contrasts, 1)  # for contrastive losses only the number of labels is counted
    chance = dict.fromkeys(contrasts, 0.0)
    judged = {name for name in names if HEADS[name].judges_draws}  # their labels are known after the model has sampled
    counts, training_counts = ({name: np.zeros(size, np.int64) for name, size in sizes.items()} for _ in range(2))
    sums = dict.fromkeys(names, 0.0)
    tell(f"measuring the loss of {rows:,} held-out rows")
    for batch in _read(held_out, rows, each, "held-out loss", console):
        tensors = {field: tensor.to(loaded.device) for field, tensor in as_tensors(batch).items()}
        with torch.inference_mode():
            found = cast(dict[str, Loss], loaded.model(tensors, pasts=pasts))
            pasts = {stack: past.moved_on() for stack, past in pasts.items()}
            if judged:
                batch = {field: tensor.cpu().numpy() for field, tensor in loaded.model.answered(tensors).items()}
        _count(batch, counts)
        for name in contrasts:  # a random guess picks any sample of the batch that has a label
            compared = int(np.count_nonzero(batch[HEADS[name].answers] != IGNORED))
            chance[name] += compared * math.log(max(compared, 1))
        for name in names:
            sums[name] += float(found[name][0])
    if silent := [name for name in names if not counts[name].sum()]:
        raise UserError(
            f"nothing is asked for {silent[0]} in {rows:,} held-out rows of {', '.join(corpora)}: take more."
        )
    counted = min(COUNTED_ROWS, training.fresh_samples)
    tell(f"counting the answers of {counted:,} training rows for the unigram baseline")
    for batch in _read(training, counted, 100, "unigram baseline", console):
        _count(batch, training_counts)
    asked = {name: int(count.sum()) for name, count in counts.items()}
    uniform = {name: chance[name] / asked[name] if name in contrasts else math.log(sizes[name]) for name in names}
    losses = {
        name: EvaluatedLoss(
            asked=asked[name],
            model=sums[name] / asked[name],
            unigram=uniform[name]
            if name in contrasts
            else unigram_loss(counts[name], None if name in judged else training_counts[name]),
            uniform=uniform[name],
        )
        for name in names
    }
    every_token = config.built_objective.every_token
    return Evaluation(
        run=str(loaded.folder),
        step=loaded.step,
        objective=config.built_objective.name,
        weights=weights_at(config.built_objective, max(loaded.step - 1, 0)),  # of the last step, as in validation
        corpora=dict(corpora),
        rows=rows,
        losses=losses,
        bytes_per_token=_bytes_per_token(corpora, cache_of(config)) if every_token else None,
    )


def record(config: Config, evaluation: Evaluation) -> Path:
    """Save an evaluation with its run: to a file, the journals, and the tracking server."""
    run = Path(evaluation.run)
    write_whole(run / FILE, json.dumps(evaluation.plain(), indent=1).encode() + b"\n")
    numbers = {f"evaluation/{name}": loss.model for name, loss in evaluation.losses.items()}
    numbers |= {f"baseline/{who}": evaluation.total(who) for who in ("unigram", "uniform")}
    if (bits := evaluation.bits_per_byte("model")) is not None:
        numbers["evaluation/bits_per_byte"] = bits
    with Events(run) as events:
        events.write(EvaluationEvent(step=evaluation.step, rows=evaluation.rows, loss=evaluation.total("model")))
    tracker = Tracker(run, uri=config.track.uri, experiment=config.track.experiment, enabled=config.track.enabled)
    tracker.log_metrics(evaluation.step, numbers)
    tracker.close()
    return run / FILE


def show(evaluation: Evaluation, console: Console) -> None:
    """Print a table with a row for the model and each baseline, for each loss."""
    several, bits = len(evaluation.losses) > 1, evaluation.bytes_per_token is not None
    table = Table(box=None, pad_edge=False)
    for heading in [*(["asked"] if several else []), ""]:
        table.add_column(heading)
    for heading in ["loss (nats)", "perplexity", *(["bits per byte"] if bits else [])]:
        table.add_column(heading, justify="right")
    for name, loss in evaluation.losses.items():
        for who, style in (("model", "bold cyan"), ("unigram", ""), ("uniform", "")):
            nats = getattr(loss, who)
            cells = [f"{nats:.4f}", f"{_perplexity(nats):,.1f}"]
            if bits:
                cells.append(f"{evaluation.bits_per_byte(who):.3f}")
            table.add_row(*([name if who == "model" else ""] if several else []), who, *cells, style=style)
    asked = ", ".join(f"{loss.asked:,}{f' of {name}' if several else ''}" for name, loss in evaluation.losses.items())
    console.print(
        Text.assemble(
            (Path(evaluation.run).name, "bold"),
            f" at step {evaluation.step}: {evaluation.rows:,} held-out rows, {asked} answers asked",
        )
    )
    console.print(table)


def _perplexity(nats: float) -> float:
    try:
        return math.exp(nats)
    except OverflowError:  # of a model that diverged
        return math.inf


def _refuse_options(loaded: LoadedModel, options: EvaluationOptions) -> None:
    """Raise UserError if an option is for another kind of model."""
    objective, block = loaded.config.built_objective, loaded.spec.family.first_block
    goes_on = objective.unit == "lane"
    if not goes_on and (options.memory is not None or options.farthest is not None):
        raise UserError(f"memory and farthest are for rows that go on; {objective.name} has no such: leave them out.")
    if options.farthest is not None and loaded.spec.family.is_recurrent:
        raise UserError(f"farthest is for what attends to distances, and {loaded.spec.name} does not: leave it out.")
    if options.same_length and not (goes_on and block.relative and block.causal):
        raise UserError(
            f"same_length is for a decoder that attends to what it remembers, and {loaded.spec.name} is none: leave it "
            "out."
        )


def _open(loaded: LoadedModel, corpora: dict[str, float], split: str, *, lanes: int | None = None) -> Mix:
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
        cache=cache_of(config),
        size_exponent=config.data.size_exponent,
        size_limits=config.data.size_limits,
        lanes=lanes,
        last_step=config.train.steps - 1,
    )
    if mix.fingerprint != loaded.tokenizer.fingerprint:
        raise UserError(
            f"{next(iter(corpora))} was built with another tokenizer than the run's: build it with "
            f"tokenizer={loaded.tokenizer_folder}."
        )
    return mix


def _read(mix: Mix, rows: int, each: int, title: str, console: Console | None) -> Iterator[Sample]:
    """Yield the first samples of a mix in batches of `each`, with a progress bar."""
    columns = (TextColumn(f"{title:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=console is None) as progress:
        bar = progress.add_task(title, total=rows)
        for at in range(0, rows, each):
            yield stacked(mix, range(at, min(at + each, rows)))
            progress.update(bar, completed=min(at + each, rows))


def _count(batch: Sample, counts: dict[str, np.ndarray]) -> None:
    """Add a batch's labels to `counts`: loss -> int64 [number of classes]."""
    for name, count in counts.items():
        answers = batch[HEADS[name].answers].reshape(-1)
        asked = answers[answers != IGNORED]
        if HEADS[name].contrasts:  # the label is the sample itself; the field holds its position
            count[0] += len(asked)
        else:
            count += np.bincount(asked, minlength=len(count))


def _bytes_per_token(corpora: dict[str, float], cache: Cache) -> float:
    """Return the bytes per token of the mix; its weights count tokens."""
    each = [bytes_per_token(Corpus.open(place, cache), "validation") for place in corpora]
    return float(np.average(each, weights=list(corpora.values())))
