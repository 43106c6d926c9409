"""Teacher of a config, and rules for the combination of student and teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pydantic import ValidationError

from megaptm.bricks import HEADS
from megaptm.bricks.heads import RowClassHeadBrick
from megaptm.config.errors import error_messages
from megaptm.config.model import model_spec, resolve_model, resolved
from megaptm.config.schema import Config, DistillConfig, ModelConfig, Section
from megaptm.families import find_family
from megaptm.families.words import WordFamily
from megaptm.spec import HOOKS, Distillation, ModelSpec


class _TeacherOnly(Section):
    model: ModelConfig


def teacher_model(config: Config) -> ModelConfig:
    """Return the section of the teacher's model. Its vocabulary is the student's by default."""
    assert config.distill is not None
    return _TeacherOnly.model_validate({"model": {"vocabulary": config.model.vocabulary} | config.distill.model}).model


def with_resolved_teacher(config: Config) -> Config:
    """Return the config with all sizes of the teacher filled in, as `model.resolved` does for the model."""
    assert config.distill is not None
    alone = resolved(config.model_copy(update={"model": teacher_model(config), "distill": None})).model
    model = alone.model_dump(mode="json", exclude_none=True)
    return config.model_copy(update={"distill": config.distill.model_copy(update={"model": model})})


def distillation_of(config: Config) -> Distillation:
    """Return the distillation of a checked config that has a teacher."""
    said = config.distill
    assert said is not None
    questions = _questions(config)
    teacher, student = model_spec(teacher_model(config), questions), resolve_model(config)
    return Distillation(
        teacher=teacher,
        weights={hook: weight for hook in HOOKS if (weight := getattr(said, hook))},
        layers={stack: _layers(said, student, teacher, stack) or () for stack in student.family.stacks},
        layer_weights=said.layer_weights,
        questions=questions,
        temperature=said.temperature,
        soft=said.soft,
        places=said.places,
        projection=said.projection,
        initial=said.initial_layers,
        cached=said.cached is not None,
        objective=said.objective,
    )


def _questions(config: Config) -> tuple[str, ...]:
    """Return the heads of the objective whose logits are compared."""
    assert config.distill is not None
    rows = [loss for loss in config.built_objective.losses if issubclass(HEADS[loss], RowClassHeadBrick)]
    return tuple(rows) if config.distill.answers else ()


def teacher_rules(config: Config, broken_model_rules: Callable[[ModelConfig], Iterator[str]]) -> Iterator[str]:
    """Yield broken rules of the teacher by itself."""
    said = config.distill
    assert said is not None
    if not said.model:
        yield (
            f"distill.teacher ({said.teacher}) is not the folder of a run, and distill.model does not say what it will "
            "be: train it first, or begin a run with a model of Hugging Face's (`megaptm import hf`)."
        )
        return
    try:
        model = teacher_model(config)
    except ValidationError as error:
        yield from error_messages(error, origins={}, source="distill")
        return
    for rule in broken_model_rules(model):
        yield f"distill: {rule}"
    if isinstance(find_family(model.family), WordFamily):
        yield f"distill.model ({model.family}) is a table of words, from which no layers learn; use another teacher."


def distillation_rules(config: Config) -> Iterator[str]:
    """Yield broken rules of the combination of student and teacher."""
    said, student, teacher = config.distill, resolve_model(config), model_spec(teacher_model(config))
    assert said is not None
    if not any(getattr(said, hook) for hook in HOOKS):
        yield f"distill asks nothing of its teacher: give one of {', '.join(HOOKS)} a weight, or leave distill out."
    for spec, key in ((student, "model"), (teacher, "distill.model")):
        if why := _unfit(spec):
            yield f"{key} ({spec.name}) {why}, which distillation does not know: leave distill out."
            return
    if [*student.family.stacks] != [*teacher.family.stacks]:
        ours, theirs = (" and ".join(spec.family.stacks) for spec in (student, teacher))
        yield f"distill.model ({teacher.name}) has {theirs}, and {student.name} {ours}: both must read the same text."
        return
    yield from _read(config, student, teacher)
    yield from _layout(config, teacher)
    yield from _hooks(said, student, teacher)
    if said.answers and not _questions(config):
        yield (
            f"distill.answers: objective ({config.built_objective.name}) asks nothing of a row that has classes: leave "
            "it out, or ask a question (docs/objectives.md)."
        )
    yield from _lists(said, student, teacher)
    if said.cached is not None:
        yield from _cached(said)
    if said.initial_layers:
        yield from _initial(said, student, teacher)


def _cached(said: DistillConfig) -> Iterator[str]:
    """Yield errors of losses other than word logits, which need a teacher that is run."""
    if said.cached is not None and "://" in said.cached:
        yield f"distill.cached ({said.cached}) must be a folder on disk: copy it there, where all nodes see it."
    for hook in HOOKS:
        if hook != "logits" and getattr(said, hook):
            yield (
                f"distill.{hook} needs a teacher that is run, and distill.cached has logits of words alone: leave one "
                "of them out."
            )


def _unfit(spec: ModelSpec) -> str:
    """Return the property of a model that distillation does not support, or an empty string."""
    wrong = {
        "is recurrent": spec.family.is_recurrent,
        "remembers rows before": spec.remembers,
        "reads what is drawn": bool(spec.family.drawn),
        "has a second stream of queries": any(block.query_stream for block in spec.family.stacks.values()),
    }
    return next((word for word, is_so in wrong.items() if is_so), "")


def _read(config: Config, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if student and teacher cannot read the same batch."""
    if teacher.vocabulary != student.vocabulary:
        yield (
            f"distill.model.vocabulary ({teacher.vocabulary:,}) must be model.vocabulary ({student.vocabulary:,}): "
            "both read the same tokens."
        )
    kinds = [(spec.family.reads_images, spec.family.reads_regions) for spec in (student, teacher)]
    if kinds[0] != kinds[1]:
        yield f"distill.model ({teacher.name}) does not read what {student.name} reads: take another teacher."
        return
    cut = {
        "patch": (student.size.patch, teacher.size.patch),
        "detector": (student.size.detector, teacher.size.detector),
    }
    if student.family.reads_images:
        cut["context"] = (student.context, teacher.context)
    for key, (ours, theirs) in cut.items():
        if ours != theirs:
            yield f"distill.model.{key} ({theirs}) must be model.{key} ({ours}): both read the same images."
    task = config.built_objective
    batch = task.batch(config.data.sequence, config.data.document_mask)
    for prefix, places in batch.streams.items():
        if teacher.longest is not None and places > teacher.longest:
            yield (
                f"distill.model has {teacher.longest} learned positions, less than the {places} {prefix}tokens of a "
                "row: lower data.sequence, or take another teacher."
            )
    needed = {
        "segments": "segment" in teacher.family.inputs,
        "order": any(block.ordered for block in teacher.family.stacks.values()),
    }
    for field, is_so in needed.items():
        if is_so and field not in batch.fields:
            yield f"distill.model ({teacher.name}) reads {field}, which objective ({task.name}) has not: take another."
    if needed["segments"] and task.segments > teacher.family.segments:
        yield f"objective ({task.name}) tells {task.segments} texts apart, distill.model {teacher.family.segments}."
    for loss in task.losses:
        if loss in HEADS and HEADS[loss].contrasts:
            yield f"objective ({task.name}) compares rows in two passes, of which a teacher reads one: take another."


def _layout(config: Config, teacher: ModelSpec) -> Iterator[str]:
    if config.layout.pipeline > 1:
        yield (
            f"layout.pipeline ({config.layout.pipeline}) must be 1 where there is a teacher (distill): what it says "
            "does not travel between stages; use layout.tensor and layout.data."
        )
    for stack in teacher.family.stacks:
        size, tensor = teacher.size_of(stack), config.layout.tensor
        for number, what in ((size.heads, "heads"), (size.ffn, "ffn"), (size.key_heads, "kv_heads")):
            if number % tensor and not (what == "kv_heads" and number == 1):
                yield f"layout.tensor ({tensor}) must divide distill.model.{what} ({number})."


def _hooks(said: DistillConfig, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if compared tensors differ in shape."""
    stacks = [*student.family.stacks]
    if said.logits and (student.size.cutoffs or teacher.size.cutoffs):
        yield "distill.logits compares words of one table each: set model.cutoffs=[], or leave it out."
    if said.logits and Distillation(teacher=teacher, weights={}, layers={}).head_of(student) is None:
        yield (
            f"distill.logits compares heads lm or mlm, of which {student.name} and {teacher.name} have none in common: "
            "leave it out, or take another teacher."
        )
    for key, specs in (("cosine", ModelSpec.output_width), ("embeddings", _width), ("hidden", _width)):
        mapped = key != "cosine" and said.projection != "none"
        for stack in stacks if getattr(said, key) and not mapped else ():
            if (ours := specs(student, stack)) != (theirs := specs(teacher, stack)):
                remedy = "" if key == "cosine" else "set distill.projection=shared, or "
                yield f"distill.{key} compares the {stack}'s width {ours} with {theirs}: {remedy}leave it out."
    if said.projection != "none" and len({(_width(student, one), _width(teacher, one)) for one in stacks}) > 1:
        yield "distill.projection maps stacks of one width: leave it out, or make the stacks equally wide."
    if said.projection != "none" and not (said.embeddings or said.hidden):
        yield "distill.projection means nothing without distill.embeddings or distill.hidden; remove it."
    for spec in (student, teacher):
        if (said.hidden or said.scores) and any(block.reversible for block in spec.family.stacks.values()):
            yield f"distill.hidden and distill.scores read layers, and {spec.name} keeps none; leave both out."
        words = {word for block in spec.family.stacks.values() for word in block.words}
        if said.scores and words != {"dot"}:
            yield f"distill.scores reads attention of the kind dot, and {spec.name} has {', '.join(sorted(words))}."
    for stack in stacks if said.scores else ():
        if (ours := student.size_of(stack).heads) != (theirs := teacher.size_of(stack).heads):
            yield f"distill.scores compares {ours} heads of the {stack} with {theirs}: make them equal."


def _width(spec: ModelSpec, stack: str) -> int:
    return spec.size_of(stack).width


def _layers(said: DistillConfig, student: ModelSpec, teacher: ModelSpec, stack: str) -> tuple[int, ...] | None:
    """Return the teacher layer for each student layer; None if not configured and the depths are not multiples."""
    if not (said.hidden or said.scores):
        return ()
    if said.layers:
        return said.layers
    ours, theirs = student.size_of(stack).layers, teacher.size_of(stack).layers
    group = theirs // ours
    return None if theirs % ours else tuple(group * (layer + 1) - 1 for layer in range(ours))


def _lists(said: DistillConfig, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors of lists with an entry per student layer."""
    for key in ("layers", "layer_weights", "initial_layers"):
        for stack in student.family.stacks if (listed := getattr(said, key)) else ():
            ours, theirs = student.size_of(stack).layers, teacher.size_of(stack).layers
            if len(listed) != ours:
                yield f"distill.{key} has {len(listed)} entries for the {ours} layers of the {stack}: give as many."
            if key != "layer_weights" and (most := max(listed)) >= theirs:
                yield f"distill.{key} has {most}, and layers of the teacher's {stack} are 0 to {theirs - 1}."
    for key in ("layers", "layer_weights"):
        if getattr(said, key) and not (said.hidden or said.scores):
            yield f"distill.{key} means nothing without distill.hidden or distill.scores; remove it."
    for stack in student.family.stacks:
        if _layers(said, student, teacher, stack) is None:
            ours, theirs = student.size_of(stack).layers, teacher.size_of(stack).layers
            yield f"distill.layers is missing: {ours} layers do not divide the teacher's {theirs}; say which is whose."


def _initial(said: DistillConfig, student: ModelSpec, teacher: ModelSpec) -> Iterator[str]:
    """Yield errors if the teacher's layers cannot initialize the student's."""
    for stack, block in student.family.stacks.items():
        if block != teacher.family.stacks[stack]:
            yield f"distill.initial_layers: layers of {student.name} are no layers of {teacher.name}; leave it out."
            return
        if block.share:
            yield f"distill.initial_layers: layers of {student.name} share their weights; leave it out."
            return
        ours, theirs = student.size_of(stack), teacher.size_of(stack)
        for name in ("width", "heads", "ffn", "key_width", "key_heads", "table_width"):
            if getattr(ours, name) != getattr(theirs, name):
                yield (
                    f"distill.initial_layers: {name} of {student.name} is {getattr(ours, name)}, and the teacher's "
                    f"{getattr(theirs, name)}; a slice is as wide as the whole."
                )
    if student.context > teacher.context and student.longest is not None:
        yield (
            f"distill.initial_layers: model.context ({student.context}) is more than the teacher's "
            f"({teacher.context}); lower it."
        )
