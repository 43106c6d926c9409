"""Rules for combinations of config keys. Each rule gives one message with the keys and their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

from megaptm.config.context_rules import context_errors
from megaptm.config.custom_optimizer import custom_rule_errors
from megaptm.config.layer_rules import attention_logit_errors, layer_layout_errors
from megaptm.config.learning_rate import schedule_restarts
from megaptm.config.model import configured_family, resolve_model
from megaptm.config.model_rules import layered_model_errors, model_title, stack_sizes
from megaptm.config.mup_rules import mup_errors
from megaptm.config.objective_fit import objective_errors, sequence_lengths
from megaptm.config.optimizer_rules import decay_errors, update_rule_errors
from megaptm.config.phases import phase_errors
from megaptm.config.schedule import tasks_without_samples
from megaptm.config.schema import Config, Layout, ModelConfig
from megaptm.config.sections.extensions import used_sections
from megaptm.config.stage_division import stage_division_errors
from megaptm.config.validation_rules import validation_errors
from megaptm.errors import UserError, nearest_name_advice
from megaptm.families import FAMILIES, find_family
from megaptm.models.head_costs import HEADS
from megaptm.objectives import BaseObjective, Composed, loss_weights_at
from megaptm.spec import Family, LayerlessFamily, ModelSpec

Rules = Callable[[Config], Iterator[str]]

NEEDED_BY_CUSTOM = ("layers", "width", "heads", "ffn")


def refuse_invalid_config(config: Config) -> None:
    """Check a config: raise the first broken rule as a `UserError`."""
    for rule in config_errors(config):
        raise UserError(rule)


def config_errors(config: Config) -> Iterator[str]:
    """Yield an error for every broken rule of a config. Rules of the model apply only if its family and size are
    known."""
    unknown = list(_names_errors(config))
    yield from unknown
    own: tuple[Rules, ...] = (_model_errors, _layout_errors, _communication_errors, _extensions_errors)
    if isinstance(family := _find_family(config.model), LayerlessFamily):
        own = (family.config_errors, _extensions_errors)
    general = (
        *(_precision_errors, _init_errors, _data_errors, _mix_ramp_errors, _batch_errors, _schedule_errors),
        *(_profile_errors, validation_errors, custom_rule_errors, _hub_errors),
    )
    for rules in (phase_errors, *(() if unknown else own), *general):
        yield from rules(config)


def check_layout(config: Config) -> None:
    """Check the layout of a config that is valid with another layout: raise the first broken rule as a `UserError`."""
    for rules in (_layout_errors, _communication_errors, _extensions_errors, _batch_errors, custom_rule_errors):
        for rule in rules(config):
            raise UserError(rule)


def model_errors(model: ModelConfig) -> Iterator[str]:
    """Yield an error for every broken rule of a model by itself."""
    unknown = list(_family_and_size_errors(model))
    if unknown:
        yield from unknown
    elif isinstance(family := _find_family(model), LayerlessFamily):
        yield from family.model_errors(model)
    else:
        yield from layered_model_errors(model)


def _find_family(model: ModelConfig) -> Family | LayerlessFamily | None:
    with contextlib.suppress(UserError):  # reported by other code
        return configured_family(model)
    return None


def _names_errors(config: Config) -> Iterator[str]:
    yield from _family_and_size_errors(config.model)
    if (family := _find_family(config.model)) is not None:
        yield from _objective_errors(config, family)


def _objective_errors(config: Config, family: Family | LayerlessFamily) -> Iterator[str]:
    try:
        task = config.built_objective
        loss_weights_at(task, 0)
        batch = config.batch_spec
    except UserError as error:
        yield str(error)
        return
    name = config.objective if isinstance(config.objective, str) else task.name
    if mismatches := [*objective_errors(task, batch, family, name)]:
        yield from mismatches
        return
    yield from tasks_without_samples(config)
    if isinstance(family, LayerlessFamily):
        return
    yield from _segments_errors(config.built_objective, family)
    if isinstance(config.built_objective, Composed):
        yield from _task_corpora_errors(config.built_objective, config.data.mix)


def _task_corpora_errors(objective: Composed, mix: Mapping[str, float]) -> Iterator[str]:
    """Yield an error for a corpus of a task that is not in the mix, and for one in the mix that no task reads."""
    for task in objective.tasks:
        for name in task.corpora:
            if name not in mix:
                yield f"objective.{task.label}.corpora ({name}) is not in data.mix; {nearest_name_advice(name, mix)}"
    for name in mix:
        if all(task.corpora and name not in task.corpora for task in objective.tasks):
            yield f"data.mix has {name}, which no task reads: add it to a task's corpora, or remove it."


def _segments_errors(task: BaseObjective, family: Family) -> Iterator[str]:
    """Yield an error if the batch has more segments than the family's table of segment embeddings."""
    if family.segments and task.num_segments > family.segments:
        yield (
            f"objective ({task.name}) needs {task.num_segments} segments, and {family.name} has {family.segments}: use "
            "another objective."
        )


def _family_and_size_errors(model: ModelConfig) -> Iterator[str]:
    try:
        family = find_family(model.family)
    except UserError as error:
        yield str(error)
        return
    if family is None:
        yield f"model.family ({model.family}) is not in the catalogue; {nearest_name_advice(model.family, FAMILIES)}"
        return
    sizes = [*family.sizes, "custom"]
    needed = family.required_keys if isinstance(family, LayerlessFamily) else NEEDED_BY_CUSTOM
    missing = [name for name in needed if getattr(model, name) is None]
    if model.size not in sizes:
        yield f"model.size ({model.size}) is not a size of {family.name}; {nearest_name_advice(model.size, sizes)}"
    elif model.size == "custom" and missing:
        yield f"model.size custom needs model.{missing[0]}."


def _model_errors(config: Config) -> Iterator[str]:
    yield from layered_model_errors(config.model)
    spec = resolve_model(config)
    first = next(iter(spec.family.stacks))
    appended = config.batch_spec.num_appended
    if spec.max_text_length is not None and config.data.sequence - appended > spec.context_of(first):
        without = f", of which {appended} follow the text," if appended else ""
        yield (
            f"data.sequence ({config.data.sequence}){without} must not exceed the {spec.context_of(first)} learned "
            f"positions of {model_title(config.model)} (model.context)."
        )
    elif spec.max_text_length is not None:
        yield from _learned_positions_errors(config, spec)
    yield from _recurrence_errors(config, spec)
    yield from mup_errors(config, spec)
    yield from _contrastive_batch_errors(config)
    for record in spec.family.inputs:
        yield from record.config_errors(config, spec)


def _contrastive_batch_errors(config: Config) -> Iterator[str]:
    """Yield an error if the batch of a contrastive loss has only one sample, which has no other to compare with."""
    if config.train.batch > 1:
        return
    for loss in config.built_objective.losses:
        if loss in HEADS and HEADS[loss].contrasts:
            yield f"train.batch (1) must be 2 or more: {loss} compares the samples of a batch with each other."


def _recurrence_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield errors of recurrence across batches, which requires the same number of sequences in each batch."""
    task, train = config.built_objective, config.train
    continues = task.unit == "lane"
    if spec.has_recurrence_cache and not continues:
        yield (
            f"model.memory caches hidden states of the previous sequence, but sequences of objective ({task.name}) do "
            f"not continue from step to step: set model.memory=0, or use {spec.family.objectives[0]}."
        )
    if continues and train.ramp is not None:
        yield (
            f"train.ramp changes the number of sequences in a batch, but those of objective ({task.name}) continue "
            "from step to step: remove it."
        )
    if continues and config.data.cursors is not None:
        yield (
            f"data.cursors continues other data, but sequences of objective ({task.name}) continue only in the same "
            "text: remove it."
        )


def _learned_positions_errors(config: Config, spec: ModelSpec) -> Iterator[str]:
    """Yield an error if a stack's sequence is longer than its learned positions. A decoder may need more than the
    encoder."""
    task = config.built_objective
    streams = config.batch_spec.streams
    for stack, prefix in spec.family.prefixes.items():
        positions, longest = streams[prefix] - config.batch_spec.num_appended, spec.context_of(stack)
        if positions > longest:
            own = spec.size.stacks[stack].context if stack in spec.size.stacks else None
            key = "model.context" if own is None else f"model.stacks.{stack}.context"
            yield (
                f"objective ({task.name}) makes sequences of {positions} {prefix}tokens from data.sequence "
                f"{config.data.sequence}, and {model_title(config.model)} has {longest} learned positions "
                f"({key}): lower data.sequence, or raise {key}."
            )


def _extensions_errors(config: Config) -> Iterator[str]:
    """Yield errors of the config sections that extensions add."""
    for section in used_sections(config):
        yield from section.errors(config)


def _precision_errors(config: Config) -> Iterator[str]:
    """Yield errors of `train.precision`."""
    if config.train.loss_scale is not None and config.train.precision != "fp16":
        yield (
            f"train.loss_scale is for train.precision=fp16, and train.precision is {config.train.precision}: remove "
            "train.loss_scale."
        )


def _init_errors(config: Config) -> Iterator[str]:
    """Yield errors of `train.init_from`, the initial weights from another run."""
    if config.train.init_from is None:
        if config.train.init_step is not None:
            yield "train.init_step needs train.init_from: set train.init_from, or remove both."
        return
    if isinstance(family := _find_family(config.model), LayerlessFamily):
        yield f"train.init_from is not supported by {config.model.family}, a family of {family.title}; remove it."
    if config.model.word_vectors is not None:
        yield "train.init_from and model.word_vectors both set the initial word vectors: remove one."


def _data_errors(config: Config) -> Iterator[str]:
    if config.data.size_limits and config.data.size_exponent is None:
        yield (
            "data.size_limits needs data.size_exponent: set data.size_exponent=1, as T5, or remove data.size_limits."
        )
    for name in config.data.size_limits:
        if name not in config.data.mix:
            yield f"data.size_limits ({name}) is not in data.mix; {nearest_name_advice(name, config.data.mix)}"


def _mix_ramp_errors(config: Config) -> Iterator[str]:
    if (ramp := config.data.mix_ramp) is None:
        return
    for name in ramp.initial:
        if name not in config.data.mix:
            yield (
                f"data.mix_ramp.initial ({name}) is not in data.mix: add it there, with a small weight if it should "
                "vanish."
            )
    if not any(ramp.initial.values()):
        yield "data.mix_ramp.initial needs a weight above 0."
    if ramp.steps is not None and ramp.steps[0] >= ramp.steps[1]:
        yield f"data.mix_ramp.steps ({ramp.steps[0]}, {ramp.steps[1]}) must be ascending."
    with contextlib.suppress(UserError):  # reported by other code
        if (task := config.built_objective).unit in ("lane", "pairs"):
            yield f"data.mix_ramp: objective ({task.name}) reads each corpus in equal parts to its end; remove it."


def _layout_errors(config: Config) -> Iterator[str]:
    layout, spec, title = config.layout, resolve_model(config), model_title(config.model)
    if config.train.attention_logits_every is not None:
        yield from attention_logit_errors(spec)
    if spec.family.layer is not None:
        yield from layer_layout_errors(layout, spec.family.layer, spec.name)
        return
    tensor, sizes = config.layout.tensor, [size for size, _ in stack_sizes(spec)]
    for count, unit in (
        *((size.heads, "attention heads") for size in sizes),
        *((size.key_heads, "heads of keys and values") for size in sizes if size.key_heads > 1),
        *((size.ffn, "feed-forward units") for size in sizes),
        (spec.padded_vocabulary, "rows of the padded vocabulary"),
    ):
        if count % tensor:
            yield f"layout.tensor ({tensor}) must divide the {count} {unit} of {title}."
            break  # a value that divides this one may also divide the others
    yield from stage_division_errors(layout, spec, title)
    yield from _full_sharding_errors(layout, spec)
    yield from context_errors(config, spec)
    if layout.recompute_every > 1 and layout.recompute == "none":
        yield (
            f"layout.recompute_every ({layout.recompute_every}) needs layout.recompute: set it to attention or full, "
            "or remove layout.recompute_every."
        )
    if layout.sequence_parallel and tensor == 1:
        yield "layout.sequence_parallel needs layout.tensor of at least 2."
    if layout.sequence_parallel:
        for sequence, length in _stack_lengths(config, spec):
            if length // layout.context % tensor:
                share = f" / layout.context ({layout.context})" if layout.context > 1 else ""
                yield (
                    f"layout.tensor ({tensor}) must divide the {length}{share} tokens of {sequence} when "
                    "layout.sequence_parallel is on; change data.sequence."
                )


def _full_sharding_errors(layout: Layout, spec: ModelSpec) -> Iterator[str]:
    if not layout.full_sharding:
        return
    if layout.replicas == 1:
        yield "layout.full_sharding needs layout.data or layout.context of at least 2."
    if layout.pipeline > 1:
        yield (
            "layout.full_sharding gathers the weights of each layer for every micro-batch, and layout.pipeline divides "
            "a batch into many: use layout.distributed_optimizer with stages, or layout.pipeline=1."
        )
    if any(not block.residual.saves_activations for block in spec.family.stacks.values()):
        yield (
            "layout.full_sharding frees the weights of a layer when it has run, but the parts of the layers of "
            f"{spec.name} run one by one: use layout.distributed_optimizer."
        )


def _communication_errors(config: Config) -> Iterator[str]:
    layout, communication = config.layout, config.communication
    if communication.batch_p2p_comm and layout.pipeline == 2 and layout.virtual > 1:
        yield (
            "communication.batch_p2p_comm cannot be used with layout.pipeline=2 and layout.virtual above 1: the next "
            "stage is also the previous one, so a batch would mix up their messages; set it to false."
        )
    if communication.batch_p2p_comm and communication.overlap_p2p_comm:
        yield "communication.batch_p2p_comm and communication.overlap_p2p_comm exclude each other; set one to false."
    if communication.overlap_p2p_comm and layout.pipeline > 1 and layout.virtual == 1:
        yield "communication.overlap_p2p_comm needs an interleaved schedule: set layout.virtual to 2 or more."


def _stack_lengths(config: Config, spec: ModelSpec) -> Iterator[tuple[str, int]]:
    """Yield the number of tokens in a sequence of each stack."""
    for index, (name, length) in enumerate(sequence_lengths(config.batch_spec, spec.family).items()):
        yield f"the {name}'s sequence{'' if index else ' (data.sequence)'}", length


def _batch_errors(config: Config) -> Iterator[str]:
    layout, batch = config.layout, config.train.batch
    yield from _ramp_errors(config)
    if batch % (layout.data * layout.microbatch):
        yield (
            f"train.batch ({batch}) must be a multiple of layout.data x layout.microbatch ({layout.data} x "
            f"{layout.microbatch}); {_batch_advice(batch, layout.data)}."
        )
    if layout.virtual > 1 and config.microbatches % layout.pipeline:
        yield (
            f"layout.pipeline ({layout.pipeline}) must divide the {config.microbatches} micro-batches of a step when "
            "layout.virtual is more than 1; change train.batch or layout.microbatch."
        )


def _batch_advice(batch: int, data: int) -> str:
    """Return advice for a batch that cannot be divided into micro-batches of all data ranks."""
    if data > batch:
        return f"{batch:,} sequences are enough for at most {batch:,} data ranks: use fewer devices, or a larger batch"
    if batch % data:
        return f"{batch:,} sequences cannot be divided among {data:,} data ranks: change devices, or train.batch"
    return f"each data rank has {batch // data:,} sequences: layout.microbatch must divide them"


def _ramp_errors(config: Config) -> Iterator[str]:
    """Yield an error if the layout cannot divide a batch of the batch ramp."""
    if (ramp := config.train.ramp) is None:
        return
    linear = {"start": ramp.start, "increment": ramp.increment, "samples": ramp.samples}
    present = [name for name, number in linear.items() if number is not None]
    if ramp.steps and present:
        yield f"train.ramp.{present[0]} and train.ramp.steps exclude each other; remove one."
        return
    if not ramp.steps and len(present) < len(linear):
        missing = next(name for name in linear if name not in present)
        yield f"train.ramp.{missing} is missing; a ramp needs start, increment and samples, or steps."
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
    # Sizes of earlier phases may belong to another layout.
    past = [step for step in ramp.steps if step <= config.train.phase_start][:-1]
    by_steps: dict[str, int | None] = {f"steps.{step}": rows for step, rows in ramp.steps.items() if step not in past}
    for name, rows in (by_steps or {"start": ramp.start, "increment": ramp.increment}).items():
        if rows and rows % unit:
            yield f"train.ramp.{name} ({rows}) must be a multiple of {made_of})."


def _schedule_errors(config: Config) -> Iterator[str]:
    optimizer, train = config.optimizer, config.train
    if train.phase_start >= train.steps:
        yield (
            f"train.phase_start ({train.phase_start}) must be less than train.steps ({train.steps}): both count from "
            "the start."
        )
    yield from decay_errors(optimizer)
    yield from _restarts_errors(config)
    if optimizer.decay == "halving" and train.validate_every is None:
        yield (
            "optimizer.decay halving needs train.validate_every: the rate is halved when a validation loss exceeds "
            "the one before it."
        )
    yield from update_rule_errors(optimizer)
    yield from _skip_errors(config)


def _hub_errors(config: Config) -> Iterator[str]:
    if config.hub.push_to is not None and config.hub.export_every is None:
        yield "hub.push_to needs hub.export_every: it pushes the exported copies."
    if config.hub.export_every is not None and isinstance(find_family(config.model.family), LayerlessFamily):
        yield f"hub.export_every: {config.model.family} has no counterpart in transformers: remove it."


def _profile_errors(config: Config) -> Iterator[str]:
    profile = config.train.profile
    if profile is None:
        return
    first, last = profile.steps
    if not first <= last <= config.train.steps:
        yield (
            f"train.profile.steps ({first}, {last}) must be the first and the last step of a trace, in ascending order "
            f"and at most train.steps ({config.train.steps})."
        )


def _skip_errors(config: Config) -> Iterator[str]:
    train = config.train
    for step in train.skip_batches:
        if step >= train.steps:
            yield f"train.skip_batches.{step} must be less than train.steps ({train.steps}): lower it, or remove it."
    key = "train.skip_batches" if train.skip_batches else "train.spikes.action"
    if not train.skip_batches and train.spikes.action != "roll-back":
        return
    with contextlib.suppress(UserError):  # reported by other code
        if "reset_state" in config.batch_spec.fields:
            objective_name = config.built_objective.name
            yield (
                f"{key}: sequences of {objective_name} continue those of the step before, so no batch can be skipped; "
                "remove it."
            )


def _restarts_errors(config: Config) -> Iterator[str]:
    """Yield an error unless `optimizer.restarts` are ascending and each comes after the warm-up and stable phase of the
    one before."""
    optimizer = config.optimizer
    if not optimizer.restarts or any(_ramp_errors(config)):
        return
    if optimizer.decay == "halving":
        yield "optimizer.restarts is not used by optimizer.decay halving; remove it."
    min_steps = max(optimizer.warmup_steps, optimizer.stable_steps)
    unit = "full batches" if optimizer.step_unit == "batches" and config.train.ramp is not None else "steps"
    ends = zip((0, *optimizer.restarts), (0.0, *schedule_restarts(config)), strict=True)
    for (step, start), (next_step, next_start) in pairwise(ends):
        if next_start - start <= min_steps:
            yield (
                f"optimizer.restarts: {next_step} must come more than {min_steps} {unit} after {step}, the length of "
                "the rise and the constant phase (optimizer.warmup_steps, optimizer.stable_steps)."
            )
