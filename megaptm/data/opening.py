"""Open corpora as a mix, after checking that they are compatible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from megaptm.batch_schedule import BatchSchedule
from megaptm.data.batch_mix import BatchMix
from megaptm.data.groups import refuse_shared_documents, select_shards
from megaptm.data.lane_mix import LaneMix, assign_lanes
from megaptm.data.lane_order import BothEndsOrder, LaneOrder
from megaptm.data.mix import Mix, MixSource, ReadCursors, linear_weight
from megaptm.data.order import WINDOW, Order, check_annotations
from megaptm.data.sentence_group_order import SentenceGroupOrder
from megaptm.data.shards import Corpus, Verify
from megaptm.data.stream_order import DocumentOrder, NeighborReader, StreamOrder
from megaptm.data.token_types import find_shard_token_type
from megaptm.errors import UserError
from megaptm.mixture import MixPart, MixValue, parse_mix_value, total_weight
from megaptm.objectives import Task, build_objective
from megaptm.objectives.composed import StepValue, objective_tasks
from megaptm.objectives.objective import GROUP_UNITS, BaseObjective, Objective, SampleObjective
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.plugins import load_plugin
from megaptm.storage import RemoteFileCache


def open_mix(
    mix: Mapping[str, MixValue],
    *,
    split: str = "train",
    objective: str | Mapping[str, Any] | BaseObjective,
    sequence: int,
    seed: int,
    document_mask: bool = True,
    special: SpecialTokens,
    verify: Verify = "hash",
    window: int = WINDOW,
    cache: RemoteFileCache | None = None,
    opened: Mapping[str, Corpus] | None = None,
    schedule: BatchSchedule | None = None,
    size_exponent: float | None = None,
    dupe_factor: int | None = None,
    size_limits: Mapping[str, int] | None = None,
    lanes: int | None = None,
    last_step: int | None = None,
    start: ReadCursors | None = None,
    mix_ramp: tuple[Mapping[str, float], tuple[int, int]] | None = None,
) -> Mix:
    """Open corpora as a mix, and check that they can be trained on together.

    - `mix`: folder or URL of a corpus -> weight, in tokens, or parts of it (`mixture.MixPart`).
    - Sizes of all shards are compared with the manifest. `verify="hash"` also hashes each shard when it is first
      opened.
    - `window`: shards that are shuffled together. It determines the memory use, and the order depends on it.
    - `cache`: location of remote shards. `opened`: corpora that are already open.
    - `schedule`: batch sizes by step, for objectives whose shares change by step. None: the shares of `last_step`.
    - `size_exponent`: weights count documents, not tokens, and are multiplied by this power of the corpus's number of
      documents. `size_limits`: maximum of that number by corpus.
    - `dupe_factor`: epochs after which the same sequences repeat with the same noise.
    - `start`: samples that an earlier config of the run has read; the mix continues after them.
    - `mix_ramp`: weights that move linearly to the weights in `mix`, and the steps where that begins and ends.
    - `lanes`: sequences of a batch, for objectives whose sequences continue from batch to batch. Default: one per
      corpus.
    """
    built = objective if isinstance(objective, BaseObjective) else build_objective(objective)
    if split != "train":
        built = built.for_validation()
    if not mix:
        raise UserError("data.mix is empty: name at least one corpus folder and its weight.")
    built.check(special, sequence)
    if built.unit == "pairs":
        raise UserError(
            f"objective ({built.name}) is trained on co-occurrence counts of a corpus, and has no samples: use "
            "`megaptm train`."
        )
    if not (tasks := objective_tasks(built)):
        raise UserError(
            f"objective {built.name} makes no samples: its class must be a `megaptm.objectives.Objective`, or a "
            "`SampleObjective` of sentence groups."
        )
    corpora = {name: Corpus.open(name, cache) for name in mix} if opened is None else dict(opened)
    refuse_different_tokenizers(corpora, special)
    if verify != "none":
        for corpus in corpora.values():
            corpus.check(split, "size")
    limits = size_limits or {}
    initial, ramp_steps = mix_ramp or ({}, None)
    ramps = {name: None if ramp_steps is None else (initial.get(name, 0.0), ramp_steps) for name in mix}
    entries = [
        entry
        for name, value in mix.items()
        for entry in _open_entries(name, corpora[name], split, value, size_exponent, limits, ramps[name])
    ]
    for name, corpus in corpora.items():
        for task in tasks:
            if name in (task.corpora or [name]):
                has_labels = find_shard_token_type(corpus.manifest.dtype).is_label
                task.objective.check_corpus(corpus.name, corpus.manifest.fields, has_labels=has_labels)
    for name, corpus in corpora.items():
        used = [task.objective.for_corpus(corpus.manifest.fields) for task in tasks if name in (task.corpora or [name])]
        check_annotations(corpus, chain(*map(required_annotations, used)), alone=len(corpora) == 1)
    _refuse_mixed_lanes(tasks)
    has_lanes = built.unit == "lane"
    weights = {entry.name: entry.weight.at(0) for entry in entries}
    lanes_of_entries = assign_lanes(weights, len(weights) if lanes is None else lanes) if has_lanes else {}
    if has_lanes and any(entry.max_epochs for entry in entries):
        raise UserError(
            f"data.mix: the sequences of objective {built.name} continue from batch to batch, so that no corpus can "
            "end: remove max_epochs."
        )
    sources: list[MixSource] = []
    for task in tasks:
        # Each task reads the text in its own order.
        label = task.label if len(tasks) > 1 else ""
        options: dict[str, Any] = {"label": label, "seed": seed, "verify": verify, "window": window}
        for entry in entries:
            name, corpus = entry.corpus, corpora[entry.corpus]
            if task.corpora and name not in task.corpora:
                continue
            own = task.objective.for_corpus(corpus.manifest.fields)
            if own is not task.objective:
                own.check(special, sequence)
                _refuse_longer(own, task.objective, name, sequence, document_mask)
            retrieved = _open_retrieved(own, corpus, split, verify, cache, [*corpora.values()])
            if retrieved is not None and entry.selected is not None:
                raise UserError(f"data.mix: {entry.name} reads neighbors of documents: remove its quality and domains.")
            own_lanes = lanes_of_entries.get(entry.name, 1)
            own_options = {**options, "label": label + entry.selection, "selected": entry.selected}
            order = _open_order(
                own, corpus, split, sequence, document_mask, own_options, lanes=own_lanes, retrieved=retrieved
            )
            shown = f"{entry.name} ({label})" if label else entry.name
            sources.append(MixSource(shown, name, order, entry.weight, replace(task, objective=own), entry.max_epochs))
    if not sources:
        raise UserError(
            f"objective: no task reads any of {', '.join(corpora)}: add one of them to the `corpora` of a task."
        )
    kind: Callable[..., Mix] = LaneMix if has_lanes else Mix
    if built.needs_own_batches and len(tasks) > 1 and schedule is not None:
        if schedule.samples or schedule.sizes_by_step:
            raise UserError(
                f"train.batch and train.ramp: each batch belongs to one task of objective {built.name}, so all have "
                "the same size: keep one size."
            )
        kind = partial(BatchMix, batch=schedule.final_size)
    return kind(
        sources,
        objective=built,
        sequence=sequence,
        seed=seed,
        document_mask=document_mask,
        special=special,
        schedule=schedule,
        dupe_factor=dupe_factor,
        last_step=last_step,
        start=start,
    )


def _refuse_mixed_lanes(tasks: tuple[Task, ...]) -> None:
    """Raise `UserError` if a task whose sequences continue from batch to batch is combined with other tasks."""
    if len(tasks) > 1:
        for task in tasks:
            if task.objective.unit == "lane":
                raise UserError(
                    f"objective: the sequences of {task.label} continue from batch to batch, so it cannot share a "
                    "batch with other tasks: remove them."
                )


def _refuse_longer(
    own: BaseObjective, configured: BaseObjective, corpus: str, sequence: int, document_mask: bool
) -> None:
    """Raise `UserError` if the objective used for a corpus makes longer sequences than the configured one."""
    limits, lengths = (task.batch_spec(sequence, document_mask).streams for task in (configured, own))
    for prefix, length in lengths.items():
        if length > limits[prefix]:
            raise UserError(
                f"objective {configured.name} uses {own.name} for {corpus}. The {prefix}sequences of {own.name} have "
                f"{length} positions, more than the {limits[prefix]} of {configured.name}: raise `max_target_length`, "
                "or remove the corpus."
            )


@dataclass(frozen=True)
class _Entry:
    """Part of a corpus in a mix."""

    corpus: str
    selection: str
    """Groups that are read (`MixPart.selection`), part of names and of the order's seed."""
    selected: np.ndarray | None
    """Rows of the shards that are read. None: all."""
    weight: StepValue
    max_epochs: float | None

    @property
    def name(self) -> str:
        return self.corpus + self.selection


def _open_entries(
    name: str,
    corpus: Corpus,
    split: str,
    value: MixValue,
    exponent: float | None,
    limits: Mapping[str, int],
    ramp: tuple[float, tuple[int, int]] | None,
) -> Iterator[_Entry]:
    """Yield the parts of a corpus of a mix, for a split. `ramp`: initial weight of the corpus, and steps of the change
    to its weight."""
    try:
        parts = parse_mix_value(value)
    except ValueError as error:
        raise UserError(f"data.mix: {name} {error}.") from None
    refuse_shared_documents(corpus, split, parts)
    for part in parts:
        selected = select_shards(corpus, split, part)
        if selected is not None and not corpus.split(split).shards.rows["samples"][selected].any():
            share = "a larger validation=SHARE" if split == "validation" else "other groups"
            raise UserError(
                f"data.mix: {name}{part.selection} has no documents in its split `{split}`: build it with {share}."
            )

        def in_tokens(weight: float, part: MixPart = part) -> float:
            if exponent is None:
                return weight
            rows, train = corpus.split("train").shards.rows, select_shards(corpus, "train", part)
            return _examples_proportional_weight(
                rows if train is None else rows[train], weight, exponent, limits.get(name)
            )

        weight = StepValue((0,), (in_tokens(part.weight),))
        if ramp is not None:
            initial, steps = ramp  # the initial weight of the corpus is divided among its parts as the final one
            weight = linear_weight(in_tokens(initial * part.weight / total_weight(value)), weight.values[0], *steps)
        yield _Entry(name, part.selection, selected, weight, part.max_epochs if split == "train" else None)


def _examples_proportional_weight(rows: np.ndarray, weight: float, exponent: float, limit: int | None) -> float:
    """Return the weight in tokens of T5's (arXiv:1910.10683, 3.5.2) and mT5's (arXiv:2010.11934, 3.1)
    examples-proportional mixing of documents. `rows` of the training split determine the weights of all splits."""
    tokens, samples = int(rows["tokens"].sum()), int(rows["samples"].sum())
    documents = samples if limit is None else min(samples, limit)
    return weight * float(documents) ** exponent * tokens / samples


def required_annotations(objective: BaseObjective) -> tuple[str, ...]:
    """Return the annotations that a corpus must have for a mix."""
    units = (objective.unit,) if objective.unit in GROUP_UNITS else ()
    return (*dict.fromkeys((*units, *objective.annotations)),)


def _open_order(
    task: SampleObjective,
    corpus: Corpus,
    split: str,
    sequence: int,
    document_mask: bool,
    options: Mapping[str, Any],
    *,
    lanes: int,
    retrieved: NeighborReader | None,
) -> Order:
    num_labels = len(corpus.manifest.made_from.get("tables", {}).get("labels", ()))
    if "labels" in task.annotations and num_labels > task.num_labels:
        raise UserError(
            f"{corpus.name} has {num_labels} labels, more than the {task.num_labels} classes of question {task.name}: "
            "build it with fewer (annotate.labels), or use another question."
        )
    options = {**options, "annotations": task.annotations}
    if task.unit in GROUP_UNITS:
        length = task.raw_length(sequence)
        return SentenceGroupOrder(corpus, split, length=length, unit=task.unit, **options)
    if not isinstance(task, Objective):
        raise UserError(
            f"objective {task.name} has unit {task.unit} but no method `sequence_window`: its class must be a "
            "`megaptm.objectives.Objective`."
        )
    cut = task.sequence_window(sequence, document_mask)
    if task.unit == "lane":
        if task.direction == "both":
            return BothEndsOrder(corpus, split, cut=cut, lanes=lanes, **options)
        return LaneOrder(
            corpus,
            split,
            cut=cut,
            lanes=lanes,
            alternating=task.direction == "alternating",
            random_segment_prob=task.random_segment_prob,
            **options,
        )
    if task.unit == "document":
        return DocumentOrder(
            corpus,
            split,
            cut=cut,
            blobs=task.blobs,
            random_segment_prob=task.random_segment_prob,
            retrieved=retrieved,
            **options,
        )
    return StreamOrder(corpus, split, cut=cut, **options)


def _open_retrieved(
    task: BaseObjective,
    corpus: Corpus,
    split: str,
    verify: Verify,
    cache: RemoteFileCache | None,
    corpora: Sequence[Corpus],
) -> NeighborReader | None:
    if not isinstance(task, Objective) or task.neighbors is None:
        return None
    reader: Callable[..., NeighborReader] = load_plugin(task.neighbors.reader, "neighbors.reader", "class")
    return reader(
        task.neighbors,
        corpus,
        split,
        blobs=task.blobs,
        verify=verify,
        cache=cache,
        opened={opened.manifest.id: opened for opened in corpora},
    )


def refuse_different_tokenizers(corpora: Mapping[str, Corpus], special: SpecialTokens) -> None:
    """Raise `UserError` if a mix names a corpus twice, or if its corpora have different tokenizers."""
    _refuse_duplicates(corpora)
    _refuse_mixed_tokenizers(corpora, special)


def _refuse_duplicates(corpora: Mapping[str, Corpus]) -> None:
    names: dict[str, str] = {}
    for name, corpus in corpora.items():
        if (other := names.setdefault(corpus.manifest.id, name)) != name:
            raise UserError(f"data.mix has one corpus twice, as {other} and as {name}: keep one and add the weights.")


def _refuse_mixed_tokenizers(corpora: Mapping[str, Corpus], special: SpecialTokens) -> None:
    (first_name, first), *remaining = corpora.items()
    for name, corpus in remaining:
        if corpus.manifest.tokenizer["fingerprint"] != first.manifest.tokenizer["fingerprint"]:
            raise UserError(
                f"data.mix: {first_name} and {name} were made with different tokenizers: build one of them again with "
                "the tokenizer of the other."
            )
    for name, corpus in corpora.items():
        if (ids := corpus.manifest.tokenizer["vocabulary"]) > special.size:
            raise UserError(
                f"data.mix: {name} was made with a tokenizer of {ids:,} ids, more than the {special.size:,} of the "
                "tokenizer in use: use the tokenizer in the corpus folder."
            )
