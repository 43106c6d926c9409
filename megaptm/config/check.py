"""Rules for combinations of config keys. Each rule gives one message with the keys and their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from megaptm.bricks import HEADS
from megaptm.config.distillation import distillation_rules, teacher_rules
from megaptm.config.image_rules import image_objective
from megaptm.config.learning_rate import counted_restarts
from megaptm.config.model import resolve_model
from megaptm.config.model_rules import model_rules, sizes_of, title_of
from megaptm.config.objective_fit import objective_mismatch, row_lengths
from megaptm.config.recurrent_rules import recurrent_layout
from megaptm.config.region_rules import region_objective
from megaptm.config.schedule import tasks_without_samples
from megaptm.config.schema import AdafactorConfig, Config, ModelConfig, OptimizerConfig
from megaptm.config.word_rules import word_rules, word_shape
from megaptm.errors import UserError, nearest
from megaptm.families import FAMILIES, find_family
from megaptm.families.words import WordFamily
from megaptm.objectives import BaseObjective, Composed, weights_at
from megaptm.objectives.composed import tasks_of
from megaptm.spec import Family, ModelSpec, change

Rules = Callable[[Config], Iterator[str]]

NEEDED_BY_CUSTOM = ("layers", "width", "heads", "ffn")


def check(config: Config) -> None:
    """Raise the first broken rule as a `UserError`."""
    for rule in broken_rules(config):
        raise UserError(rule)


def broken_rules(config: Config) -> Iterator[str]:
    """Yield every broken rule. Rules of the model apply only if its family and size are known."""
    unknown = list(_names(config))
    yield from unknown
    if isinstance(_family(config.model), WordFamily):
        yield from (() if unknown else word_rules(config))
        if config.distill is not None:
            yield f"distill: {config.model.family} is a table of words, whose teacher there is none of; leave it out."
        rest: tuple[Rules, ...] = (_init, _data, _rows, _schedule)
    else:
        rest = (*(() if unknown else (_model, _layout, _communication, _distill)), _init, _data, _rows, _schedule)
    for rules in rest:
        yield from rules(config)


def broken_model_rules(model: ModelConfig) -> Iterator[str]:
    """Yield every broken rule of a model by itself."""
    unknown = list(_family_and_size(model))
    if unknown:
        yield from unknown
    else:
        yield from word_shape(model) if isinstance(_family(model), WordFamily) else model_rules(model)


def _family(model: ModelConfig) -> Family | WordFamily | None:
    with contextlib.suppress(UserError):  # reported by other code
        return find_family(model.family)
    return None


def _names(config: Config) -> Iterator[str]:
    yield from _family_and_size(config.model)
    if (family := _family(config.model)) is not None:
        if isinstance(family, Family):
            family = change(family, tasks=config.model.tasks or family.tasks)
        yield from _objective(config, family)


def _objective(config: Config, family: Family | WordFamily) -> Iterator[str]:
    try:
        task = config.built_objective
        weights_at(task, 0)
        batch = task.batch(config.data.sequence, config.data.document_mask)
    except UserError as error:
        yield str(error)
        return
    name = config.objective if isinstance(config.objective, str) else task.name
    if why := [*objective_mismatch(task, batch, family, name)]:
        yield from why
        return
    yield from tasks_without_samples(config)
    if isinstance(family, WordFamily):
        return
    yield from _told_apart(config.built_objective, family)
    if isinstance(config.built_objective, Composed):
        yield from _read_by_tasks(config.built_objective, config.data.mix)


def _read_by_tasks(objective: Composed, mix: Mapping[str, float]) -> Iterator[str]:
    """Yield an error for a corpus of a task that is not in the mix, and for one in the mix that no task reads."""
    for task in objective.tasks:
        for name in task.corpora:
            if name not in mix:
                yield f"objective.{task.label}.corpora ({name}) is not in data.mix; {nearest(name, mix)}"
    for name in mix:
        if all(task.corpora and name not in task.corpora for task in objective.tasks):
            yield f"data.mix has {name}, which no task reads: add it to the corpora of one, or remove it."


def _told_apart(task: BaseObjective, family: Family) -> Iterator[str]:
    """Yield an error if segments or task ids exceed the family's tables."""
    if "segment" in family.inputs and task.segments > family.segments:
        known = f"{family.name} {family.segments}"
        yield f"objective ({task.name}) tells {task.segments} texts apart by segments, {known}: use another."
    ids = {part.label: part.task_id for part in tasks_of(task) if part.task_id is not None}
    for label, number in ids.items():
        if "task" not in family.inputs:
            yield f"objective.{label}.task_id ({number}) means nothing to {family.name}: remove it, or use ernie-2."
        elif number >= family.tasks:
            known = f"one of the {family.tasks} of {family.name}, from 0 on"
            yield f"objective.{label}.task_id ({number}) must be {known}; or give model.tasks={number + 1}."


def _family_and_size(model: ModelConfig) -> Iterator[str]:
    try:
        family = find_family(model.family)
    except UserError as error:
        yield str(error)
        return
    if family is None:
        yield f"model.family ({model.family}) is not in the catalogue; {nearest(model.family, FAMILIES)}"
        return
    sizes = [*family.sizes, "custom"]
    needed = ("width",) if isinstance(family, WordFamily) else NEEDED_BY_CUSTOM
    missing = [name for name in needed if getattr(model, name) is None]
    if model.size not in sizes:
        yield f"model.size ({model.size}) is not a size of {family.name}; {nearest(model.size, sizes)}"
    elif model.size == "custom" and missing:
        yield f"model.size custom needs model.{missing[0]}."


def _model(config: Config) -> Iterator[str]:
    yield from model_rules(config.model)
    spec = resolve_model(config)
    first = next(iter(spec.family.stacks))
    behind = _regions(config)
    if spec.longest is not None and config.data.sequence - behind > spec.context_of(first):
        without = f", of which {behind} are of regions," if behind else ""
        yield (
            f"data.sequence ({config.data.sequence}){without} must not exceed the {spec.context_of(first)} learned "
            f"positions of {title_of(config.model)} (model.context)."
        )
    elif spec.longest is not None:
        yield from _longest_stream(config, spec)
    yield from _memory(config, spec)
    yield from _compared(config)
    if spec.family.reads_images:
        yield from image_objective(config, spec)
    if spec.family.reads_regions:
        yield from region_objective(config, spec)


def _compared(config: Config) -> Iterator[str]:
    """Yield an error if a contrastive loss has a batch of one sample, in which there is nothing to compare it with."""
    if config.train.batch > 1:
        return
    for loss in config.built_objective.losses:
        if loss in HEADS and HEADS[loss].contrasts:
            yield f"train.batch (1) must be 2 or more: {loss} tells the rows of a batch from each other."


def _memory(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of recurrence across batches, which requires the same number of sequences in each batch."""
    task, train = config.built_objective, config.train
    goes_on = task.unit == "lane"
    if spec.remembers and not goes_on:
        yield (
            f"model.memory is what rows before said, and the rows of objective ({task.name}) do not go on from step to "
            f"step: set model.memory=0, or take {spec.family.objectives[0]}."
        )
    if goes_on and train.ramp is not None:
        yield f"train.ramp changes the rows of a batch, and those of objective ({task.name}) go on: leave it off."
    if goes_on and train.after:
        yield (
            f"train.after continues another phase, and rows of objective ({task.name}) go on only where its batches "
            "have as many: leave it off."
        )


def _regions(config: Config) -> int:
    """Return the number of positions of regions, which follow the text and need no learned positions."""
    regions = config.built_objective.batch(config.data.sequence, config.data.document_mask).fields.get(
        "region_features"
    )
    return 0 if regions is None else regions.shape[0]


def _longest_stream(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield an error if a stack's sequence is longer than its learned positions. A decoder may need more than the
    encoder."""
    task = config.built_objective
    streams = task.batch(config.data.sequence, config.data.document_mask).streams
    for stack, prefix in spec.family.prefixes.items():
        places, longest = streams[prefix] - _regions(config), spec.context_of(stack)
        if places > longest:
            own = spec.size.stacks[stack].context if stack in spec.size.stacks else None
            key = "model.context" if own is None else f"model.stacks.{stack}.context"
            yield (
                f"objective ({task.name}) makes rows of {places} {prefix}tokens where data.sequence is "
                f"{config.data.sequence}, and {title_of(config.model)} has {longest} learned positions ({key}): "
                "lower data.sequence, raise these, or ask for less."
            )


def _distill(config: Config) -> Iterator[str]:
    """Yield errors of the teacher. The relation of student and teacher is checked only if both are valid."""
    if config.distill is None:
        return
    mistakes = [*teacher_rules(config, broken_model_rules)]
    yield from mistakes
    if not mistakes and not [*model_rules(config.model)]:
        yield from distillation_rules(config)


def _init(config: Config) -> Iterator[str]:
    """Yield errors of the initial weights from another run."""
    if config.train.init_from is None:
        if config.train.init_step is not None:
            yield "train.init_step is of the run in train.init_from, which is missing: name that, or leave both out."
        return
    if isinstance(_family(config.model), WordFamily):
        yield f"train.init_from: {config.model.family} is a table of words, which begins by itself; leave it out."
    if config.distill is not None and config.distill.initial_layers:
        yield "train.init_from and distill.initial_layers both say what the student begins with: leave one out."
    if config.model.vectors is not None:
        yield "train.init_from and model.vectors both say what the table of words begins with: leave one out."


def _data(config: Config) -> Iterator[str]:
    if config.data.size_limits and config.data.size_exponent is None:
        yield "data.size_limits bounds what data.size_exponent multiplies weights by: give data.size_exponent=1, as T5."
    for name in config.data.size_limits:
        if name not in config.data.mix:
            yield f"data.size_limits ({name}) is not in data.mix; {nearest(name, config.data.mix)}"


def _layout(config: Config) -> Iterator[str]:
    layout, spec, title = config.layout, resolve_model(config), title_of(config.model)
    if spec.family.is_recurrent:
        yield from recurrent_layout(layout, spec.name)
        return
    tensor, sizes = config.layout.tensor, [size for size, _ in sizes_of(spec)]
    for number, what in (
        *((size.heads, "attention heads") for size in sizes),
        *((size.key_heads, "heads of keys and values") for size in sizes if size.key_heads > 1),
        *((size.ffn, "feed-forward units") for size in sizes),
        (spec.padded_vocabulary, "rows of the padded vocabulary"),
    ):
        if number % tensor:
            yield f"layout.tensor ({tensor}) must divide the {number} {what} of {title}."
            break  # a value that divides this one may also divide the others
    layers = spec.layers
    chunks = layout.pipeline * layout.virtual
    if layout.virtual > 1 and layout.pipeline == 1:
        yield f"layout.virtual ({layout.virtual}) needs layout.pipeline of at least 2."
    if layers % chunks:
        name = "layout.pipeline" if layout.virtual == 1 else "layout.pipeline x layout.virtual"
        yield f"{name} ({chunks}) must divide the {layers} layers of {title}."
    if layout.sequence_parallel and tensor == 1:
        yield "layout.sequence_parallel needs layout.tensor of at least 2."
    if layout.sequence_parallel:
        for what, length in _lengths(config, spec):
            if length % tensor:
                yield (
                    f"layout.tensor ({tensor}) must divide the {length} tokens of {what} when layout.sequence_parallel "
                    "is on; change data.sequence."
                )


def _communication(config: Config) -> Iterator[str]:
    layout, talk = config.layout, config.communication
    if talk.batch_p2p_comm and layout.pipeline == 2 and layout.virtual > 1:
        yield (
            "communication.batch_p2p_comm cannot be with layout.pipeline 2 and layout.virtual of more than 1: the next "
            "stage is the one before as well, and a batch would mix up what goes to either; leave it off."
        )
    if talk.batch_p2p_comm and talk.overlap_p2p_comm:
        yield "communication.batch_p2p_comm and communication.overlap_p2p_comm exclude each other; leave one off."
    if talk.overlap_p2p_comm and layout.pipeline > 1 and layout.virtual == 1:
        yield "communication.overlap_p2p_comm needs layout.virtual of at least 2: other schedules cannot."


def _lengths(config: Config, spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield the number of tokens in a sequence of each stack."""
    lengths = row_lengths(config.built_objective.batch(config.data.sequence, config.data.document_mask), spec.family)
    for place, (name, length) in enumerate(lengths.items()):
        yield f"the {name}'s row{'' if place else ' (data.sequence)'}", length


def _rows(config: Config) -> Iterator[str]:
    layout, batch = config.layout, config.train.batch
    yield from _ramp(config)
    if batch % (layout.data * layout.microbatch):
        yield (
            f"train.batch ({batch}) must be a multiple of layout.data x layout.microbatch "
            f"({layout.data} x {layout.microbatch}); {_rows_that_fit(batch, layout.data)}."
        )
    if layout.virtual > 1 and config.microbatches % layout.pipeline:
        yield (
            f"layout.pipeline ({layout.pipeline}) must divide the {config.microbatches} micro-batches of a step when "
            "layout.virtual is more than 1; change train.batch or layout.microbatch."
        )


def _rows_that_fit(batch: int, data: int) -> str:
    """Return advice for a batch that cannot be divided into micro-batches of all data ranks."""
    if data > batch:
        return f"{batch:,} rows are enough for {batch:,} data ranks at most: take fewer devices, or more rows"
    if batch % data:
        return f"{batch:,} rows do not divide among {data:,} data ranks: take another number of devices, or of rows"
    return f"each data rank has {batch // data:,} rows: let layout.microbatch divide them"


def _ramp(config: Config) -> Iterator[str]:
    """Yield an error if the layout cannot divide a batch of the ramp."""
    if (ramp := config.train.ramp) is None:
        return
    linear = {"start": ramp.start, "increment": ramp.increment, "samples": ramp.samples}
    given = [name for name, number in linear.items() if number is not None]
    if ramp.steps and given:
        yield f"train.ramp.{given[0]} and train.ramp.steps exclude each other; leave one off."
        return
    if not ramp.steps and len(given) < len(linear):
        missing = next(name for name in linear if name not in given)
        yield f"train.ramp.{missing} is missing; a ramp is start, increment and samples, or steps."
        return
    try:
        _ = config.batch_schedule
    except UserError as error:
        yield str(error)
        return
    layout = config.layout
    unit = layout.data * layout.microbatch
    made_of = f"layout.data x layout.microbatch ({layout.data} x {layout.microbatch}"
    if layout.virtual > 1:
        unit *= layout.pipeline
        made_of += f", x layout.pipeline {layout.pipeline} for layout.virtual"
    by_steps: dict[str, int | None] = {f"steps.{step}": rows for step, rows in ramp.steps.items()}
    for name, rows in (by_steps or {"start": ramp.start, "increment": ramp.increment}).items():
        if rows and rows % unit:
            yield f"train.ramp.{name} ({rows}) must be a multiple of {made_of})."


def _schedule(config: Config) -> Iterator[str]:
    optimizer, train = config.optimizer, config.train
    if train.after >= train.steps:
        yield f"train.after ({train.after}) must be less than train.steps ({train.steps}): both count from the start."
    yield from _decay(optimizer)
    yield from _restarts(config)
    if optimizer.decay == "halving" and train.validate_every is None:
        yield (
            "optimizer.decay halving needs train.validate_every: the rate is halved once a held-out loss is above the "
            "one before it."
        )
    yield from _rule(optimizer)
    yield from _skip(config)


def _skip(config: Config) -> Iterator[str]:
    train = config.train
    for step in train.skip:
        if step >= train.steps:
            yield f"train.skip.{step} is not before the last step (train.steps {train.steps}): lower it, or remove it."
    if not train.skip:
        return
    with contextlib.suppress(UserError):  # reported by other code
        if "begins" in config.built_objective.batch(config.data.sequence, config.data.document_mask).fields:
            name = config.built_objective.name
            yield f"train.skip: rows of {name} go on where those of the step before ended, so none may be passed over."


def _restarts(config: Config) -> Iterator[str]:
    """Yield an error unless restarts are ascending and each comes after the warm-up and stable phase of the one
    before."""
    optimizer = config.optimizer
    if not optimizer.restarts or any(_ramp(config)):
        return
    if optimizer.decay == "halving":
        yield "optimizer.restarts means nothing to optimizer.decay halving, which falls by held-out losses; remove it."
    least = max(optimizer.warmup_steps, optimizer.stable_steps)
    what = "whole batches" if optimizer.counts == "batches" and config.train.ramp is not None else "steps"
    ends = zip((0, *optimizer.restarts), (0.0, *counted_restarts(config)), strict=True)
    for (begun, counted), (ended, later) in pairwise(ends):
        if later - counted <= least:
            yield (
                f"optimizer.restarts: {ended} must come more than {least} {what} after {begun}: so long the rate rises "
                "and stays (optimizer.warmup_steps, optimizer.stable_steps)."
            )


ENDLESS = ("rsqrt", "noam", "constant")
"""Decay functions without an end."""


def _decay(optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield errors of missing or unused keys of a decay function."""
    decay, warmup, stable = optimizer.decay, optimizer.warmup_steps, optimizer.stable_steps
    if decay == "rsqrt" and not warmup and not stable:
        yield "optimizer.decay rsqrt needs optimizer.warmup_steps or optimizer.stable_steps of at least 1."
    if decay in ("noam", "triangular") and not warmup:
        yield f"optimizer.decay {decay} needs optimizer.warmup_steps of at least 1."
    if decay == "polynomial" and optimizer.power is None:
        yield "optimizer.decay polynomial needs optimizer.power: 1 is linear, more falls faster at first."
    if decay != "polynomial" and optimizer.power is not None:
        yield f"optimizer.power means nothing to optimizer.decay {decay}; remove it, or choose polynomial."
    if stable and decay in ("noam", "triangular", "halving", "constant"):
        yield f"optimizer.stable_steps means nothing to optimizer.decay {decay}; remove it."
    elif stable and stable <= warmup:
        yield (
            f"optimizer.stable_steps ({stable}) must exceed optimizer.warmup_steps ({warmup}): both count from the "
            "start."
        )
    if decay == "inverse":
        if optimizer.decay_steps is None:
            yield "optimizer.decay inverse needs optimizer.decay_steps: after so many steps half of the rate is left."
        return
    if decay == "halving":
        if optimizer.decay_steps is None:
            yield "optimizer.decay halving needs optimizer.decay_steps: the rate is halved again after each so many."
        return
    if (end := optimizer.decay_steps) is None:
        return
    if decay in ENDLESS:
        yield f"optimizer.decay_steps means nothing to optimizer.decay {decay}; remove it."
    elif end <= max(warmup, stable):
        name, begin = ("stable_steps", stable) if stable > warmup else ("warmup_steps", warmup)
        yield f"optimizer.decay_steps ({end}) must exceed optimizer.{name} ({begin}): both count from the start."


def _rule(optimizer: OptimizerConfig) -> Iterator[str]:
    """Yield errors of keys that the update rule does not use."""
    used_by = {
        "momentum": ("sgd", "adafactor"),
        "initial_accumulator": ("adagrad",),
        "bias_correction": ("adamw", "lamb"),
    }
    for key, names in used_by.items():
        if getattr(optimizer, key) != OptimizerConfig.model_fields[key].default and optimizer.name not in names:
            yield (
                f"optimizer.{key} means nothing to optimizer.name {optimizer.name}; remove it, or choose "
                f"{' or '.join(names)}."
            )
    if optimizer.adafactor != AdafactorConfig() and optimizer.name != "adafactor":
        yield f"optimizer.adafactor means nothing to optimizer.name {optimizer.name}; remove it, or choose adafactor."
