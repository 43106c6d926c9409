"""Compatibility of families and objectives, judged by the fields of a batch and the inputs of heads, not by names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megaptm.batch import BatchSpec
from megaptm.bricks import HEADS
from megaptm.bricks.custom_pattern import has_custom_pattern
from megaptm.errors import nearest
from megaptm.families.words import WordFamily
from megaptm.objectives import OBJECTIVES, BaseObjective
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.objectives.pairs import GloVe
from megaptm.objectives.ranking import WindowRanking
from megaptm.objectives.windows import WordWindows
from megaptm.spec import Family, Reading

PARTIAL = {"banded", "window", "blocks", "local"}
"""Attention patterns in which positions attend to only some others, so that global tokens have an effect."""
ANY_SEQUENCE = 512
"""Sequence length for building a batch specification; only lengths depend on it."""


def row_lengths(batch: BatchSpec, family: Family) -> dict[str, int]:
    """Return stack -> number of positions, including the queries beside its text."""
    asked = batch.num_predicted or 0
    return {stack: family.places(stack, tokens, asked) for stack, tokens in batch.lengths(family.prefixes).items()}


def objective_mismatch(task: BaseObjective, batch: BatchSpec, family: Family | WordFamily, name: str) -> Iterator[str]:
    """Yield an error if a family cannot be trained with an objective. `name` is its name in the config."""
    reasons = _reasons_of_words(task, family) if isinstance(family, WordFamily) else _reasons(task, batch, family)
    why = next(reasons, None)
    if why is not None:
        yield f"objective ({name}) does not fit {family.name}: {why}; {_instead(task, family, name)}"


def _instead(task: BaseObjective, family: Family | WordFamily, name: str) -> str:
    """Suggest an alternative: without global tokens, as a joined sequence, or an objective of the family's papers."""
    marking: Any = task
    if isinstance(family, Family) and getattr(marking, "global_tokens", None):
        plain = replace(marking, global_tokens=0)
        if next(_reasons(plain, plain.batch(ANY_SEQUENCE, True), family), None) is None:
            return "leave global_tokens out."
    if name in family.objectives:
        return "take it without what its paper has not."
    if isinstance(family, Family) and isinstance(task, EncoderDecoder) and not task.joined:
        joined = replace(task, joined=True)
        if next(_reasons(joined, joined.batch(ANY_SEQUENCE, True), family), None) is None:
            return f"say {{{name}: {{joined: true}}}}, or take one of its own: {', '.join(family.objectives)}."
    return nearest(name, family.objectives)


def _reasons_of_words(task: BaseObjective, family: WordFamily) -> Iterator[str]:
    if not any(type(OBJECTIVES[known]) is type(task) for known in family.objectives):
        yield "it is no task of its paper"


def _reasons(task: BaseObjective, batch: BatchSpec, family: Family) -> Iterator[str]:
    if isinstance(task, WordWindows | GloVe | WindowRanking):
        yield "word vectors learn by it, and this family has layers"
    read, made = ({f"{prefix}tokens" for prefix in prefixes} for prefixes in (family.prefixes.values(), batch.streams))
    if read != made:
        yield f"it makes {_and(made)}, and this family reads {_and(read)}"
    characters = any(name.endswith("characters") for name in batch.fields)
    if family.reads_characters != characters:
        yield "its words come without characters" if not characters else "it reads words by a table, not by characters"
    regions = "region_features" in batch.fields
    if family.reads_regions != regions:
        yield "its rows have no regions of images" if not regions else "its rows have regions of images behind a text"
    if family.reads_images != (bool(task.blobs) and not regions):
        images, text = "its rows are images", "its rows are text, and this family reads images"
        yield images if task.blobs else text
    if any(block.recurrent == "lstm" for block in family.stacks.values()) and batch.masked:
        yield "its rows are of several documents, and a state goes on through them (data.document_mask=false)"
    ordered = any(block.ordered for block in family.stacks.values())
    if ordered != ("order" in batch.fields):
        yield "who sees whom is said by its rows" if not ordered else "its rows do not say who sees whom"
    if batch.marks and not any(
        PARTIAL & {*block.words} or has_custom_pattern(block) for block in family.stacks.values()
    ):
        yield "its rows mark tokens that see all (global_tokens), and here no place is kept from seeing any"
    if "begins" in batch.fields and not any(
        block.relative or block.recurrent == "lstm" for block in family.stacks.values()
    ):
        yield "its rows go on from step to step, and this family remembers nothing of them"
    if bool(family.drawn) != ("draws" in batch.fields):
        yield "it draws tokens to judge" if not family.drawn else "it draws no tokens for the second model to judge"
    along = next((name for name, block in family.stacks.items() if block.score_bias or block.distance_rows), None)
    if task.restarts and along is not None:
        yield f"its second texts have places of their own, and the {along} knows distances along the row"
    for loss in task.losses:
        if loss in HEADS and not HEADS[loss].module:
            yield from _hidden(loss, family)


def _hidden(loss: str, family: Family) -> Iterator[str]:
    """Yield errors if a head reads positions that attend to their label, or that cannot attend to the needed
    context."""
    read = family.reads.get(loss, next(reversed(family.stacks)))
    for stack in {Reading.parse(word).stack for word in ((read,) if isinstance(read, str) else read)}:
        causal = family.stacks[stack].causal
        if HEADS[loss].next_token and not causal:
            yield f"it asks for the next token, and the {stack} sees it"
        if not HEADS[loss].next_token and causal and not HEADS[loss].reads_end:
            yield f"what it asks ({loss}) is answered from both sides of a place, and the {stack} sees one"


def _and(names: set[str]) -> str:
    return " and ".join(sorted(names, key=len))
