"""Compatibility of families and objectives, judged by the fields of a batch and the inputs of heads, not by names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from megaptm.batch import BatchSpec
from megaptm.errors import nearest_name_advice
from megaptm.models.head_costs import HEADS
from megaptm.objectives import OBJECTIVES, BaseObjective
from megaptm.objectives.encoder_decoder import EncoderDecoder
from megaptm.plugins import is_builtin
from megaptm.spec import Family, HeadInput, LayerlessFamily

ANY_SEQUENCE = 512
"""Sequence length with which a batch specification is built to compare it with a family; only lengths depend on it."""


def sequence_lengths(batch: BatchSpec, family: Family) -> dict[str, int]:
    """Return the number of positions of each stack, including the queries beside its text."""
    num_queries = batch.num_predicted or 0
    return {
        stack: family.sequence_length(stack, tokens, num_queries)
        for stack, tokens in batch.lengths(family.prefixes).items()
    }


def objective_errors(
    task: BaseObjective, batch: BatchSpec, family: Family | LayerlessFamily, name: str
) -> Iterator[str]:
    """Yield an error if a family cannot be trained with an objective. `name` is its name in the config."""
    if isinstance(family, LayerlessFamily):
        reason = next(_reasons_without_layers(task, family), None)
    else:
        reason = next(_mismatch_reasons(task, batch, family), None)
    if reason is not None:
        yield f"objective ({name}) does not fit {family.name}: {reason}; {_suggest_alternative(task, family, name)}"


def _suggest_alternative(task: BaseObjective, family: Family | LayerlessFamily, name: str) -> str:
    """Suggest an alternative to an objective that does not fit the family: other options (no global tokens; `joined`,
    which makes one sequence of input and target), or another objective that the family has."""
    marking: Any = task
    if isinstance(family, Family) and getattr(marking, "global_tokens", None):
        without_global = replace(marking, global_tokens=0)
        if next(_mismatch_reasons(without_global, without_global.batch_spec(ANY_SEQUENCE, True), family), None) is None:
            return "remove global_tokens."
    if name in family.objectives:
        return "use it without the options that its paper does not have."
    if isinstance(family, Family) and isinstance(task, EncoderDecoder) and not task.joined:
        joined = replace(task, joined=True)
        if next(_mismatch_reasons(joined, joined.batch_spec(ANY_SEQUENCE, True), family), None) is None:
            return f"write {{{name}: {{joined: true}}}}, or use one of its own: {', '.join(family.objectives)}."
    return nearest_name_advice(name, family.objectives)


def _reasons_without_layers(task: BaseObjective, family: LayerlessFamily) -> Iterator[str]:
    if not any(type(OBJECTIVES[known]) is type(task) for known in family.objectives):
        yield "it is not an objective of its paper"


def _mismatch_reasons(task: BaseObjective, batch: BatchSpec, family: Family) -> Iterator[str]:
    if headless := [loss for loss in task.losses if loss not in HEADS]:
        yield f"no head of a family with layers has the loss {headless[0]}"
    family_fields, batch_fields = (
        {f"{prefix}tokens" for prefix in prefixes} for prefixes in (family.prefixes.values(), batch.streams)
    )
    if family_fields != batch_fields:
        yield f"it provides {_join_names(batch_fields)}, and this family reads {_join_names(family_fields)}"
    read, provided = {name for record in family.inputs for name in record.fields}, batch.special_inputs
    if unused := provided - read - {name for record in family.inputs for name in record.sample_fields}:
        yield f"it provides {_join_names(unused)}, which this family does not read"
    if read - provided:
        yield f"it provides no {_join_names(read - provided)}, which this family reads"
    if family.layer is not None and family.layer.caches_states and batch.needs_attention_mask:
        yield (
            "its sequences hold several documents, and states of layers pass through them (data.document_mask=false)"
        )
    ordered = any(block.ordered for block in family.stacks.values())
    if ordered != ("order" in batch.fields):
        yield (
            "it provides an attention order, which this family does not use"
            if not ordered
            else ("it does not provide the attention order that this family needs")
        )
    if batch.has_global_tokens and not any(
        record.reads_global_tokens for block in family.stacks.values() for record in block.attentions
    ):
        yield (
            "it marks global tokens (global_tokens), and this family's attention pattern masks no position from any "
            "other"
        )
    if "reset_state" in batch.fields and not any(block.caches_states for block in family.stacks.values()):
        yield "its sequences continue from step to step, and this family has no recurrence cache"
    if bool(family.sampled) != ("uniforms" in batch.fields):
        yield (
            "it samples tokens for a second model"
            if not family.sampled
            else ("it samples no tokens for the second model")
        )
    relative_stack = next(
        (
            name
            for name, block in family.stacks.items()
            if block.score_bias or any(record.scores_distances for record in block.attentions)
        ),
        None,
    )
    if task.resets_positions and relative_stack is not None:
        yield f"its second texts restart positions, and the {relative_stack} uses relative positions"
    for loss in task.losses:
        if loss in HEADS and is_builtin(HEADS[loss]):
            yield from _attended_label_errors(loss, family)


def _attended_label_errors(loss: str, family: Family) -> Iterator[str]:
    """Yield errors if a head reads positions that attend to their label, or that cannot attend to the needed
    context."""
    read = family.reads.get(loss, next(reversed(family.stacks)))
    for stack in {HeadInput.parse(word).stack for word in ((read,) if isinstance(read, str) else read)}:
        causal = family.stacks[stack].causal
        if HEADS[loss].next_token and not causal:
            yield f"it predicts the next token, and the {stack} attends to it"
        if not HEADS[loss].next_token and causal and not HEADS[loss].reads_end:
            yield f"it predicts {loss} from both sides of a position, and the {stack} attends to one side"


def _join_names(names: set[str]) -> str:
    return " and ".join(sorted(names, key=len))
