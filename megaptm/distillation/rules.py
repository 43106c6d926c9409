"""Teacher of a config, and rules for the combination of student and teacher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from megaptm.checkpoint.committed import read_newest_state
from megaptm.config.check import model_errors
from megaptm.config.errors import error_messages
from megaptm.config.model import model_spec, resolve_model, with_resolved_model
from megaptm.config.model_rules import layered_model_errors
from megaptm.config.schema import Config, ModelConfig, ModelSection
from megaptm.distillation.cached_logits import cached_teacher_step
from megaptm.distillation.section import DistillConfig, distill_section
from megaptm.distillation.spec import HOOKS, Distillation
from megaptm.families import find_family
from megaptm.models.embed_costs import token_costs
from megaptm.models.head_costs import HEADS, RowClassHeadCosts
from megaptm.run.saved_model import CONFIG, saved_config
from megaptm.spec import LayerlessFamily, ModelSpec
from megaptm.storage import expand_home


def _teacher_model(config: Config) -> ModelConfig:
    """Return the section of a config that describes the teacher's model. Its vocabulary is the student's by default."""
    distill = distill_section(config)
    assert distill is not None
    return ModelSection.model_validate({"model": {"vocabulary": config.model.vocabulary} | distill.model}).model


def with_teacher(config: Config, distill: DistillConfig) -> Config:
    """Fill in an absent description of the teacher from its run or its cached logits, if they exist. Options of
    attention come from its checkpoint, because phases may change them."""
    if distill.model:
        return config
    folders = (distill.teacher, *([distill.cached_logits] if distill.cached_logits else []))
    existing = [folder for path in folders if ((folder := expand_home(path)) / CONFIG).is_file()]
    return _with_model(config, saved_config(existing[0], _teacher_step(config, distill)).model) if existing else config


def _teacher_step(config: Config, distill: DistillConfig) -> int | None:
    """Return the step of the teacher's checkpoint as `DistillationRun.with_absolute_paths` fills it in. None: the
    newest."""
    if distill.step is not None:
        return distill.step
    saved: Any = read_newest_state(expand_home(config.run))
    for key in ("config", "distill", "step"):
        saved = saved.get(key) if isinstance(saved, dict) else None
    if isinstance(saved, int):
        return saved
    return None if distill.cached_logits is None else cached_teacher_step(expand_home(distill.cached_logits))


def distill_errors(config: Config, distill: DistillConfig) -> Iterator[str]:
    """Yield an error for each broken rule of the config section `distill`. The relation of student and teacher is
    checked only if both are valid."""
    if isinstance(family := find_family(config.model.family), LayerlessFamily):
        yield f"distill: {config.model.family} is a family of {family.title}, which cannot be distilled; remove it."
        return
    mistakes = [*_teacher_errors(config)]
    yield from mistakes
    if not mistakes and not [*layered_model_errors(config.model)]:
        yield from _distillation_errors(config)
    if distill.cached_logits is not None and config.data.validation_sets:
        yield (
            "distill.cached_logits has no logits for the validation sets of data.validation and data.validate_each: "
            "remove these, or distill.cached_logits."
        )
    if distill.initial_layers and config.train.init_from is not None:
        yield "train.init_from and distill.initial_layers both set the student's initial weights: remove one."


def with_resolved_teacher(config: Config) -> Config:
    """Fill in all sizes of the teacher, as `with_resolved_model` does for the model."""
    teacher = config.model_copy(update={"model": _teacher_model(config), "distill": None})
    return _with_model(config, with_resolved_model(teacher).model)


def _with_model(config: Config, teacher: ModelConfig) -> Config:
    """Return the config with a description of the teacher."""
    distill = distill_section(config)
    assert distill is not None
    model = teacher.model_dump(mode="json", exclude_none=True)
    return config.model_copy(update={"distill": distill.model_copy(update={"model": model})})


def resolve_distillation(config: Config) -> Distillation:
    """Return the distillation of a checked config that has a teacher."""
    distill = distill_section(config)
    assert distill is not None
    questions = _class_heads(config)
    teacher, student = model_spec(_teacher_model(config), questions), resolve_model(config)
    return Distillation(
        teacher=teacher,
        weights={hook: weight for hook in HOOKS if (weight := getattr(distill, hook))},
        layers={stack: _teacher_layers(distill, student, teacher, stack) or () for stack in student.family.stacks},
        layer_weights=distill.layer_weights,
        questions=questions,
        temperature=distill.temperature,
        logit_loss=distill.logit_loss,
        positions=distill.positions,
        projection=distill.projection,
        initial=distill.initial_layers,
        cached=distill.cached_logits is not None,
        objective=distill.objective,
    )


def _class_heads(config: Config) -> tuple[str, ...]:
    """Return the heads of the objective whose class logits are compared."""
    distill = distill_section(config)
    assert distill is not None
    rows = [loss for loss in config.built_objective.losses if issubclass(HEADS[loss], RowClassHeadCosts)]
    return tuple(rows) if distill.classes else ()


def _teacher_errors(config: Config) -> Iterator[str]:
    """Yield an error for each broken rule of the teacher's model by itself."""
    distill = distill_section(config)
    assert distill is not None
    if not distill.model:
        yield (
            f"distill.teacher ({distill.teacher}) is not the folder of a run, and distill.model does not describe the "
            "teacher: train it first, or import a Hugging Face model (`megaptm import hf`)."
        )
        return
    try:
        model = _teacher_model(config)
    except ValidationError as error:
        yield from error_messages(error, origins={}, source="distill")
        return
    for rule in model_errors(model):
        yield f"distill: {rule}"
    if isinstance(family := find_family(model.family), LayerlessFamily):
        yield f"distill.model ({model.family}) is a family of {family.title}, which has no layers; use another teacher."


def _distillation_errors(config: Config) -> Iterator[str]:
    """Yield an error for each broken rule of the combination of student and teacher."""
    distill, student, teacher = distill_section(config), resolve_model(config), model_spec(_teacher_model(config))
    assert distill is not None
    if not any(getattr(distill, hook) for hook in HOOKS):
        yield f"distill has no loss: give one of {', '.join(HOOKS)} a weight, or remove distill."
    for spec, key in ((student, "model"), (teacher, "distill.model")):
        if why := _unsupported_property(spec):
            yield f"{key} ({spec.name}) {why}, which distillation does not support: remove distill."
            return
    if [*student.family.stacks] != [*teacher.family.stacks]:
        student_stacks, teacher_stacks = (" and ".join(spec.family.stacks) for spec in (student, teacher))
        yield (
            f"distill.model ({teacher.name}) has {teacher_stacks}, and {student.name} has {student_stacks}; "
            "use equal stacks."
        )
        return
    yield from _shared_input_errors(config, student, teacher)
    yield from _teacher_layout(config, teacher)
    yield from _compared_output_errors(distill, student, teacher)
    if distill.classes and not _class_heads(config):
        yield (
            f"distill.classes: objective ({config.built_objective.name}) has no task that classifies sequences: remove "
            "it, or add one (docs/objectives.md)."
        )
    yield from _layer_list_errors(distill, student, teacher)
    if distill.cached_logits is not None:
        yield from _cached_logits_errors(distill)
    if distill.initial_layers:
        yield from _initial_layer_errors(student, teacher)


def _cached_logits_errors(distill: DistillConfig) -> Iterator[str]:
    """Yield errors of distillation losses other than word logits, which need a teacher that is run."""
    if distill.cached_logits is not None and "://" in distill.cached_logits:
        yield f"distill.cached_logits ({distill.cached_logits}) must be a local folder: copy it to all nodes."
    for hook in HOOKS:
        if hook != "logits" and getattr(distill, hook):
            yield (
                f"distill.{hook} needs a teacher that runs, and distill.cached_logits has only the logits of words: "
                "remove one of them."
            )


def _unsupported_property(spec: ModelSpec) -> str:
    """Return the property of a model that distillation does not support, or an empty string."""
    if spec.family.layer is not None:
        return spec.family.layer.reason
    unsupported = {
        "has a recurrence cache": spec.has_recurrence_cache,
        "reads sampled tokens": bool(spec.family.sampled),
        "has queries beside the text": spec.family.has_queries,
        "has a soft cap of its logits": spec.family.output.cap is not None,
    }
    return next((reason for reason, applies in unsupported.items() if applies), "")


def _shared_input_errors(config: Config, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if student and teacher cannot read the same batch."""
    if teacher.vocabulary != student.vocabulary:
        yield (
            f"distill.model.vocabulary ({teacher.vocabulary:,}) must be model.vocabulary ({student.vocabulary:,}): "
            "both read the same tokens."
        )
    fields = [[record.fields for record in spec.family.inputs if record.fields] for spec in (student, teacher)]
    if fields[0] != fields[1]:
        yield f"distill.model ({teacher.name}) and {student.name} read different inputs; use another teacher."
        return
    sizes = {
        key: (student.size.inputs.get(key), teacher.size.inputs.get(key))
        for record in student.family.inputs
        for key in record.size_keys
    }
    if not student.family.reads_text:
        sizes["context"] = (student.context, teacher.context)
    for key, (student_value, teacher_value) in sizes.items():
        if student_value != teacher_value:
            yield f"distill.model.{key} ({teacher_value}) must be model.{key} ({student_value}) for the same inputs."
    task = config.built_objective
    batch = config.batch_spec
    for prefix, positions in batch.streams.items():
        if teacher.max_text_length is not None and positions > teacher.max_text_length:
            yield (
                f"distill.model has {teacher.max_text_length} learned positions, fewer than the {positions} "
                f"{prefix}tokens of a sequence: lower data.sequence, or use another teacher."
            )
    needed = {
        "segments": teacher.family.segments > 0,
        "order": any(block.ordered for block in teacher.family.stacks.values()),
    }
    for field, is_needed in needed.items():
        if is_needed and field not in batch.fields:
            yield f"distill.model ({teacher.name}) reads {field}, which objective ({task.name}) does not provide."
    if needed["segments"] and task.num_segments > teacher.family.segments:
        yield (
            f"objective ({task.name}) needs {task.num_segments} segments, and distill.model has "
            f"{teacher.family.segments}: "
            "use another teacher."
        )
    for loss in task.losses:
        if loss in HEADS and HEADS[loss].contrasts:
            yield f"objective ({task.name}) compares samples in two passes, which distillation does not support."


def _teacher_layout(config: Config, teacher: ModelSpec) -> Iterator[str]:
    if config.layout.full_sharding:
        yield (
            "layout.full_sharding frees weights of layers between passes, which losses of a teacher (distill) read: "
            "use layout.distributed_optimizer."
        )
    if config.layout.context > 1:
        yield (
            f"layout.context ({config.layout.context}) must be 1 with a teacher (distill), whose outputs belong to "
            "complete sequences."
        )
    if config.layout.pipeline > 1:
        yield (
            f"layout.pipeline ({config.layout.pipeline}) must be 1 with a teacher (distill), whose outputs are not "
            "sent between stages; use layout.tensor and layout.data."
        )
    for stack in teacher.family.stacks:
        size, tensor = teacher.size_of(stack), config.layout.tensor
        for count, name in ((size.heads, "heads"), (size.ffn, "ffn"), (size.key_heads, "kv_heads")):
            if count % tensor and not (name == "kv_heads" and count == 1):
                yield f"layout.tensor ({tensor}) must divide distill.model.{name} ({count})."


def _compared_output_errors(distill: DistillConfig, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if the tensors that student and teacher compare differ in shape."""
    stacks = [*student.family.stacks]
    tables = [token_costs(spec) for spec in (student, teacher)]
    if distill.logits and any(table is not None and table.module for table in tables):
        yield ("distill.logits does not support clusters of tokens: set model.cutoffs=[], or remove distill.logits.")
    if distill.logits and Distillation(teacher=teacher, weights={}, layers={}).head_of(student) is None:
        yield (
            f"distill.logits compares the head lm or mlm, and {student.name} and {teacher.name} have neither in "
            "common: remove it, or use another teacher."
        )
    for key, width_of in (("cosine", ModelSpec.output_width), ("embeddings", _stack_width), ("hidden", _stack_width)):
        is_projected = key != "cosine" and distill.projection != "none"
        for stack in stacks if getattr(distill, key) and not is_projected else ():
            if (student_value := width_of(student, stack)) != (teacher_value := width_of(teacher, stack)):
                remedy = "" if key == "cosine" else "set distill.projection=shared, or "
                yield (
                    f"distill.{key}: the {stack} has width {student_value} in the student and {teacher_value} in the "
                    f"teacher: {remedy}remove it."
                )
    if (
        distill.projection != "none"
        and len({(_stack_width(student, stack), _stack_width(teacher, stack)) for stack in stacks}) > 1
    ):
        yield "distill.projection needs stacks of equal width: remove it, or set equal widths."
    if distill.projection != "none" and not (distill.embeddings or distill.hidden):
        yield "distill.projection has no effect without distill.embeddings or distill.hidden; remove it."
    for spec in (student, teacher):
        if (distill.hidden or distill.scores) and not all(
            block.residual.saves_activations for block in spec.family.stacks.values()
        ):
            yield (
                "distill.hidden and distill.scores read the outputs of layers, which the reversible layers of "
                f"{spec.name} do not keep; remove both."
            )
        kinds = {kind for block in spec.family.stacks.values() for kind in block.kinds}
        if distill.scores and kinds != {"dot"}:
            yield (
                f"distill.scores needs dot-product attention (dot), and {spec.name} has {', '.join(sorted(kinds))}; "
                "remove it."
            )
    for stack in stacks if distill.scores else ():
        if (student_value := student.size_of(stack).heads) != (teacher_value := teacher.size_of(stack).heads):
            yield (
                f"distill.scores: the {stack} has {student_value} heads in the student and {teacher_value} in the "
                "teacher: make them equal."
            )


def _stack_width(spec: ModelSpec, stack: str) -> int:
    return spec.size_of(stack).width


def _teacher_layers(
    distill: DistillConfig, student: ModelSpec, teacher: ModelSpec, stack: str
) -> tuple[int, ...] | None:
    """Return the teacher layer for each student layer; None if not configured and the depths are not multiples."""
    if not (distill.hidden or distill.scores):
        return ()
    if distill.layers:
        return distill.layers
    student_layers, teacher_layers = student.size_of(stack).layers, teacher.size_of(stack).layers
    group = teacher_layers // student_layers
    return (
        None if teacher_layers % student_layers else tuple(group * (layer + 1) - 1 for layer in range(student_layers))
    )


def _layer_list_errors(distill: DistillConfig, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors of lists in `distill` with an entry per student layer."""
    for key in ("layers", "layer_weights", "initial_layers"):
        for stack in student.family.stacks if (entries := getattr(distill, key)) else ():
            student_layers, teacher_layers = student.size_of(stack).layers, teacher.size_of(stack).layers
            if len(entries) != student_layers:
                yield (
                    f"distill.{key} has {len(entries)} entries, not one for each of the {student_layers} layers "
                    f"of the {stack}."
                )
            if key != "layer_weights" and (largest := max(entries)) >= teacher_layers:
                yield (
                    f"distill.{key} has {largest}; the layers of the teacher's {stack} are 0 to {teacher_layers - 1}."
                )
    for key in ("layers", "layer_weights"):
        if getattr(distill, key) and not (distill.hidden or distill.scores):
            yield f"distill.{key} has no effect without distill.hidden or distill.scores; remove it."
    for stack in student.family.stacks:
        if _teacher_layers(distill, student, teacher, stack) is None:
            student_layers, teacher_layers = student.size_of(stack).layers, teacher.size_of(stack).layers
            yield (
                f"distill.layers is missing: the teacher's {teacher_layers} layers are no multiple of "
                f"{student_layers}; list the teacher layer of each student layer."
            )


def _initial_layer_errors(student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if the teacher's layers cannot initialize the student's."""
    for stack, block in student.family.stacks.items():
        if block != teacher.family.stacks[stack]:
            yield f"distill.initial_layers: layers of {student.name} and {teacher.name} differ; remove it."
            return
        if block.sharing.sublayers:
            yield f"distill.initial_layers: the layers of {student.name} share weights; remove it."
            return
        student_size, teacher_size = student.size_of(stack), teacher.size_of(stack)
        for name in ("width", "heads", "ffn", "key_width", "key_heads", "table_width"):
            if getattr(student_size, name) != getattr(teacher_size, name):
                yield (
                    f"distill.initial_layers: {name} of {student.name} is {getattr(student_size, name)}, and the "
                    f"teacher's is {getattr(teacher_size, name)}; both must be equal."
                )
    if student.context > teacher.context and student.max_text_length is not None:
        yield (
            f"distill.initial_layers: model.context ({student.context}) is more than the teacher's "
            f"({teacher.context}); lower it."
        )
