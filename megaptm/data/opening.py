"""Open corpora as a mix, after checking that they are compatible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from megaptm.batch_schedule import BatchSchedule
from megaptm.data.batch_mix import BatchMix
from megaptm.data.lane_mix import LaneMix, deal_lanes
from megaptm.data.lane_order import BothEndsOrder, LaneOrder
from megaptm.data.manifest import LABELS
from megaptm.data.mix import Mix, MixSource
from megaptm.data.order import WINDOW, Order, check_annotated
from megaptm.data.retrieved import RetrievedDocuments
from megaptm.data.sentence_group_order import SentenceGroupOrder
from megaptm.data.shards import Corpus, Verify
from megaptm.data.stream_order import DocumentOrder, StreamOrder
from megaptm.errors import UserError
from megaptm.objectives import Task, objective_of
from megaptm.objectives.composed import tasks_of
from megaptm.objectives.objective import BaseObjective, Objective, SampleObjective
from megaptm.objectives.region_files import SUFFIX
from megaptm.objectives.vocabulary import SpecialTokens
from megaptm.storage import Cache


def open_mix(
    mix: Mapping[str, float],
    *,
    split: str = "train",
    objective: str | Mapping[str, Any] | BaseObjective,
    sequence: int,
    seed: int,
    document_mask: bool = True,
    special: SpecialTokens,
    verify: Verify = "hash",
    window: int = WINDOW,
    cache: Cache | None = None,
    opened: Mapping[str, Corpus] | None = None,
    schedule: BatchSchedule | None = None,
    size_exponent: float | None = None,
    dupe_factor: int | None = None,
    size_limits: Mapping[str, int] | None = None,
    lanes: int | None = None,
    last_step: int | None = None,
) -> Mix:
    """Open corpora (folder or URL -> weight, in tokens), and check that they can be trained on together.

    - Sizes of all shards are compared with the manifest. `verify="hash"` also hashes each shard when it is first
      opened.
    - `window`: shards that are shuffled together. It determines the memory use, and the order depends on it.
    - `cache`: location of remote shards. `opened`: corpora that are already open.
    - `schedule`: for objectives whose shares change by step. Without it, the shares of `last_step` apply.
    - `size_exponent`: weights count documents, and are multiplied by this power of the corpus's number of documents,
      which is limited by `size_limits`.
    - `dupe_factor`: epochs after which the same sequences repeat with the same noise.
    - `lanes`: sequences of a batch, for objectives whose sequences continue from batch to batch. Default: one per
      corpus.
    """
    whole = objective if isinstance(objective, BaseObjective) else objective_of(objective)
    if split != "train":
        whole = whole.held_out()
    if not mix:
        raise UserError("data.mix is empty: name at least one corpus folder and its weight.")
    whole.check(special, sequence)
    if whole.unit == "pairs":
        raise UserError(f"objective ({whole.name}) counts a corpus before it learns, and has no samples: train by it.")
    if not (tasks := tasks_of(whole)):
        raise UserError(
            f"objective {whole.name} makes no samples: its class must be a `megaptm.objectives.Objective`, or a "
            "`SampleObjective` of groups of sentences."
        )
    corpora = {name: Corpus.open(name, cache) for name in mix} if opened is None else dict(opened)
    check_together(corpora, special)
    if verify != "none":
        for corpus in corpora.values():
            corpus.check(split, "size")
    limits = size_limits or {}
    weights = {
        name: weight if size_exponent is None else _by_size(corpora[name], weight, size_exponent, limits.get(name))
        for name, weight in mix.items()
    }
    for name, corpus in corpora.items():
        _check_images(corpus, [task.objective for task in tasks if name in (task.corpora or [name])])
    for name, corpus in corpora.items():
        asked = [task.objective.of_corpus(corpus.manifest.fields) for task in tasks if name in (task.corpora or [name])]
        check_annotated(corpus, chain(*map(annotations_of, asked)), alone=len(corpora) == 1)
    _refuse_lanes_beside_others(tasks)
    on_and_on = whole.unit == "lane"
    dealt = deal_lanes(weights, len(weights) if lanes is None else lanes) if on_and_on else {}
    sources: list[MixSource] = []
    for task in tasks:
        # Each task reads the text in its own order.
        label = task.label if len(tasks) > 1 else ""
        options: dict[str, Any] = {"label": label, "seed": seed, "verify": verify, "window": window}
        for (name, corpus), weight in zip(corpora.items(), weights.values(), strict=True):
            if task.corpora and name not in task.corpora:
                continue
            own = task.objective.of_corpus(corpus.manifest.fields)
            if own is not task.objective:
                own.check(special, sequence)
                _refuse_longer(own, task.objective, name, sequence, document_mask)
            retrieved = _retrieved(own, corpus, split, verify, cache, [*corpora.values()])
            lanes_of_corpus = dealt.get(name, 1)
            order = _order(
                own, corpus, split, sequence, document_mask, options, lanes=lanes_of_corpus, retrieved=retrieved
            )
            shown = f"{name} ({label})" if label else name
            sources.append(MixSource(shown, name, order, weight, replace(task, objective=own)))
    if not sources:
        raise UserError(f"objective: no task reads any of {', '.join(corpora)}: name one of them in its `corpora`.")
    kind: Callable[..., Mix] = LaneMix if on_and_on else Mix
    if whole.own_batches and len(tasks) > 1 and schedule is not None:
        if schedule.samples or schedule.at:
            raise UserError(
                f"train.ramp: each batch is of one task of objective {whole.name}, so all have as many rows: remove it."
            )
        kind = partial(BatchMix, rows=schedule.whole)
    return kind(
        sources,
        objective=whole,
        sequence=sequence,
        seed=seed,
        document_mask=document_mask,
        special=special,
        schedule=schedule,
        dupe_factor=dupe_factor,
        last_step=last_step,
    )


def _refuse_lanes_beside_others(tasks: tuple[Task, ...]) -> None:
    """Raise `UserError` if a task whose sequences continue from batch to batch is combined with other tasks."""
    if len(tasks) > 1:
        for task in tasks:
            if task.objective.unit == "lane":
                raise UserError(
                    f"objective: the rows of {task.label} go on from step to step, so it cannot share a batch with "
                    "other tasks: name it alone."
                )


def _refuse_longer(own: BaseObjective, asked: BaseObjective, corpus: str, sequence: int, document_mask: bool) -> None:
    """Raise `UserError` if the objective used for a corpus makes longer sequences than the configured one."""
    room, wanted = (one.batch(sequence, document_mask).streams for one in (asked, own))
    for prefix, length in wanted.items():
        if length > room[prefix]:
            raise UserError(
                f"objective {asked.name} asks {own.name} of {corpus}, in {prefix}rows of {length} places, and its own "
                f"have {room[prefix]}: raise `targets`, or leave the corpus out."
            )


def _by_size(corpus: Corpus, weight: float, exponent: float, limit: int | None) -> float:
    """Return the weight in tokens of T5's (arXiv:1910.10683, 3.5.2) and mT5's (arXiv:2010.11934, 3.1)
    examples-proportional mixing of documents. The training split determines the weights of all splits."""
    held = corpus.split("train")
    documents = held.samples if limit is None else min(held.samples, limit)
    return weight * float(documents) ** exponent * held.tokens / held.samples


def _check_images(corpus: Corpus, objectives: Iterable[BaseObjective]) -> None:
    """Raise `UserError` if an objective reads images that the corpus lacks, or text and the corpus has only images."""
    for objective in objectives:
        if objective.blobs and not {*objective.blobs} & {*corpus.manifest.fields}:
            regions = objective.blobs == (SUFFIX,)
            wanted, how = ("regions of images", " ... texts=true regions=true") if regions else ("images", "")
            raise UserError(
                f"{corpus.name} has no {wanted}, which objective {objective.name} reads: build one with "
                f"`megaptm corpus images{how}`."
            )
        if objective.blobs and objective.reads_labels is not None:
            labeled = corpus.manifest.dtype == LABELS
            if labeled != objective.reads_labels:
                has, wants = ("labels", "texts=true") if labeled else ("texts", "texts=false")
                raise UserError(
                    f"{corpus.name} has images with {has}, and objective {objective.name} reads others: build one with "
                    f"`megaptm corpus images ... {wants}`."
                )
        if not objective.blobs and corpus.manifest.dtype == LABELS:
            raise UserError(
                f"{corpus.name} has images with labels, and objective {objective.name} reads text: build a corpus of "
                "text with `megaptm corpus build`, or train a family that reads images."
            )


def annotations_of(objective: BaseObjective) -> tuple[str, ...]:
    """Return the annotations that a corpus must have."""
    pieces = (objective.pieces,) if objective.unit == "sentence-group" else ()
    return (*dict.fromkeys((*pieces, *objective.annotations)),)


def _order(
    task: SampleObjective,
    corpus: Corpus,
    split: str,
    sequence: int,
    document_mask: bool,
    options: Mapping[str, Any],
    *,
    lanes: int,
    retrieved: RetrievedDocuments | None,
) -> Order:
    known = len(corpus.manifest.made_from.get("tables", {}).get("labels", ()))
    if "labels" in task.annotations and known > task.answers:
        raise UserError(
            f"{corpus.name} has {known} labels, and the question {task.name} has {task.answers} answers: build it with "
            "fewer (annotate.labels), or ask another question."
        )
    if task.unit == "sentence-group":
        length, pieces = task.raw_length(sequence), task.pieces
        return SentenceGroupOrder(corpus, split, length=length, pieces=pieces, annotations=task.annotations, **options)
    if not isinstance(task, Objective):
        raise UserError(
            f"objective {task.name} reads a {task.unit}, and does not say how that is cut: its class must be a "
            "`megaptm.objectives.Objective`, with a method `cut`."
        )
    cut = task.cut(sequence, document_mask)
    if task.unit == "lane":
        if task.from_both_ends:
            return BothEndsOrder(corpus, split, cut=cut, annotations=task.annotations, lanes=lanes, **options)
        return LaneOrder(
            corpus,
            split,
            cut=cut,
            annotations=task.annotations,
            lanes=lanes,
            both_ways=task.both_ways,
            elsewhere=task.elsewhere,
            **options,
        )
    if task.unit == "document":
        return DocumentOrder(
            corpus,
            split,
            cut=cut,
            annotations=task.annotations,
            blobs=task.blobs,
            elsewhere=task.elsewhere,
            retrieved=retrieved,
            **options,
        )
    return StreamOrder(corpus, split, cut=cut, annotations=task.annotations, **options)


def _retrieved(
    task: BaseObjective, corpus: Corpus, split: str, verify: Verify, cache: Cache | None, others: Sequence[Corpus]
) -> RetrievedDocuments | None:
    if task.neighbors is None:
        return None
    return RetrievedDocuments(
        task.neighbors,
        corpus,
        split,
        blobs=task.blobs,
        verify=verify,
        cache=cache,
        opened={one.manifest.id: one for one in others},
    )


def check_together(corpora: Mapping[str, Corpus], special: SpecialTokens) -> None:
    """Raise `UserError` if a corpus occurs twice, or if corpora have different tokenizers."""
    _refuse_doubles(corpora)
    _refuse_mixed_tokenizers(corpora, special)


def _refuse_doubles(corpora: Mapping[str, Corpus]) -> None:
    seen: dict[str, str] = {}
    for name, corpus in corpora.items():
        if (other := seen.setdefault(corpus.manifest.id, name)) != name:
            raise UserError(f"data.mix names one corpus twice, as {other} and as {name}: keep one and add the weights.")


def _refuse_mixed_tokenizers(corpora: Mapping[str, Corpus], special: SpecialTokens) -> None:
    first, *others = corpora.items()
    for name, corpus in others:
        if corpus.manifest.tokenizer["fingerprint"] != first[1].manifest.tokenizer["fingerprint"]:
            raise UserError(
                f"data.mix: {first[0]} and {name} were made with different tokenizers: build one of them again with "
                "the tokenizer of the other."
            )
    for name, corpus in corpora.items():
        if (ids := corpus.manifest.tokenizer["vocabulary"]) > special.size:
            raise UserError(
                f"data.mix: {name} was made with a tokenizer of {ids:,} ids, more than the {special.size:,} of the "
                "tokenizer in use: use the tokenizer in the corpus folder."
            )
