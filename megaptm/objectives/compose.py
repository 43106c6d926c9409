"""Composed objectives of a config: tasks with options, questions, shares and weights by step."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError, describe_invalid_value, describe_value, missing_space_advice, nearest_name_advice
from megaptm.objectives.composed import CONSTANT_ONE, Composed, StepValue, Task, values_by_step
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion
from megaptm.objectives.named_file import FILE
from megaptm.objectives.objective import BaseObjective, SampleObjective
from megaptm.objectives.questions import TextQuestion
from megaptm.objectives.registry import OBJECTIVES, TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.plugins import describe_error, is_builtin, is_plugin, load_plugin
from megaptm.suggest import suggest_name

STEP_OPTIONS = ("share", "weight")
COMMON_OPTIONS = ("task", "task_id", "question", "corpora", *STEP_OPTIONS)
MAX_VALUE = 1e9
"""Maximum of the share or weight of a task, so that sums are finite."""


def compose_objective(config: Mapping[str, Any]) -> BaseObjective:
    """Compose the objective that a mapping in a config describes. Raises `UserError` that names the key. Examples:

    `{masked-lm: {rate: 0.2}, sentence-order: {}}`: a task with options, and a question about the same text.

    `{short: {task: span-corruption, share: 0.5}, long: {task: span-corruption, mean_span_length: 32, share: 0.5}}`:
    several tasks, each with its share of the samples. `weight` multiplies the weights of a task's losses; a mapping
    sets them by loss. Shares and weights may be mappings from the first step of each value: `{0: 1.0, 10000: 0.5}`.
    """
    if not config:
        raise UserError("objective is empty: add a task, as in `objective: {masked-lm: {}}`.")
    entries = {label: _task_options(label, options) for label, options in config.items()}
    questions = [label for label in entries if label in QUESTIONS]
    tasks = {label: options for label, options in entries.items() if label not in QUESTIONS}
    shared = [label for label, options in tasks.items() if "share" in options]
    if not tasks:
        raise UserError(
            f"objective: question {questions[0]} needs a task that provides the text: add `masked-lm: {{}}`."
        )
    built = {label: _build_task(label, options) for label, options in tasks.items()}  # first: rejects unknown names
    if len(tasks) > 1 and len(shared) < len(tasks):
        missing = next(label for label in tasks if label not in shared)
        raise UserError(f"objective.{missing} needs a share: each of several tasks makes a share of the samples.")
    for label in questions:
        if other := next((key for key in entries[label] if key != "weight"), None):
            raise UserError(f"objective.{label}: unknown option {other}; the only option of a question is weight.")
    questions_of = {label: _parse_questions(label, tasks[label], questions) for label in built}
    built = {
        label: _with_question(label, task, questions_of[label]) if questions_of[label] else task
        for label, task in built.items()
    }
    sample_tasks = {label: task for label, task in built.items() if isinstance(task, SampleObjective)}
    if len(sample_tasks) < len(built):
        return _objective_without_samples(next(label for label in built if label not in sample_tasks), built, tasks)
    parts = tuple(
        Task(label, task, _parse_share(label, options), _task_id(label, options), _parse_corpora(label, options))
        for (label, task), options in zip(sample_tasks.items(), tasks.values(), strict=True)
    )
    weights = _parse_weights(entries, parts)
    _refuse_all_zero("share", [part.share for part in parts])
    if all(loss in weights for part in parts for loss in part.objective.losses):
        _refuse_all_zero("weight", weights.values())
    plain = Task(parts[0].label, parts[0].objective, parts[0].share)
    defaults = {loss: StepValue((0,), (weight,)) for loss, weight in plain.objective.losses.items()}
    if parts == (plain,) and all(weight == defaults[loss] for loss, weight in weights.items()):
        return plain.objective
    return Composed(parts, weights)


def _objective_without_samples(
    label: str, built: Mapping[str, BaseObjective], options: Mapping[str, Mapping[str, Any]]
) -> BaseObjective:
    """Return an objective that makes no samples, and so cannot be mixed with others."""
    if len(built) > 1:
        raise UserError(
            f"objective.{label} makes no text samples, and cannot be mixed with other tasks: remove the others."
        )
    if unused := [key for key in COMMON_OPTIONS if key != "task" and key in options[label]]:
        raise UserError(f"objective.{label} makes no text samples, so that {unused[0]} has no effect: remove it.")
    return built[label]


def is_continued_objective(before: str | Mapping[str, Any], after: str | Mapping[str, Any], step: int) -> bool:
    """Whether two objectives of a config are equal before a step, and later differ in shares or weights only."""
    if isinstance(before, str) and before == after:
        return True
    if _constant_options(before) != _constant_options(after):
        return False
    old, new = (values_by_step(compose_objective(_tasks_by_label(objective))) for objective in (before, after))
    return all(
        old.get(key, CONSTANT_ONE).changes_before(step) == new.get(key, CONSTANT_ONE).changes_before(step)
        for key in old.keys() | new.keys()
    )


def map_files(objective: Mapping[str, Any], map_path: Callable[[str], str]) -> dict[str, Any]:
    """Return the mapping of a composed objective with `map_path` applied to files that options name."""

    def map_paths(key: str, value: Any) -> Any:
        if key == "corpora" and isinstance(value, list):
            return [map_path(corpus) for corpus in value]
        return map_path(value) if key in _file_options() and isinstance(value, str) and not is_plugin(value) else value

    return {
        label: {key: map_paths(key, value) for key, value in options.items()} if isinstance(options, dict) else options
        for label, options in objective.items()
    }


def named_files(objective: str | Mapping[str, Any]) -> dict[str, str]:
    """Return the files that options of a composed objective name: `label.option` -> file."""
    tasks = objective.items() if isinstance(objective, Mapping) else ()
    return {
        f"{label}.{key}": options[key]
        for label, options in tasks
        if isinstance(options, Mapping)
        for key in _file_options()
        if isinstance(options.get(key), str) and not is_plugin(options[key])
    }


@cache
def _file_options() -> tuple[str, ...]:
    """Return the options of a composed objective's tasks that name a file or a custom function: fields with the
    metadata `FILE`."""
    kinds: list[Any] = [kind for kind in TASKS.values() if is_dataclass(kind)]
    options = [option for kind in kinds for option in fields(kind)]
    return tuple(dict.fromkeys(option.name for option in options if option.metadata == FILE))


def _tasks_by_label(objective: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {objective: {}} if isinstance(objective, str) else objective


def _constant_options(objective: str | Mapping[str, Any]) -> list[tuple[str, Any]] | str:
    """Return the options of a composed objective that must be equal at all steps, in order, because samples are
    assigned to tasks by order."""
    if isinstance(objective, str) and objective not in TASKS:
        return objective
    tasks = ((label, _task_options(label, options)) for label, options in _tasks_by_label(objective).items())
    return [(label, {key: options[key] for key in options if key not in STEP_OPTIONS}) for label, options in tasks]


def _task_options(label: Any, options: Any) -> dict[str, Any]:
    if not isinstance(label, str):
        raise UserError(f"objective: {label!r} is not the name of a task: use a string.")
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UserError(f"objective.{label} must be a mapping of options, as in `{label}: {{}}`, not {options!r}.")
    _refuse_missing_spaces(f"objective.{label}", options)
    return dict(options)


def _refuse_missing_spaces(where: str, options: Mapping[Any, Any]) -> None:
    """Raise `UserError` if a key of a composed objective contains its value, as in `{0:1}`, which YAML parses as a time
    or a key without value."""
    for key, value in options.items():
        if message := missing_space_advice(key, value):
            raise UserError(f"{where}: {key} {message}")
        if isinstance(value, Mapping):
            _refuse_missing_spaces(f"{where}.{key}", value)


def _build_task(label: str, options: Mapping[str, Any]) -> BaseObjective:
    name = options.get("task", label)
    defaults: dict[str, Any] = {}
    if isinstance(name, str) and is_plugin(name):
        kind = load_plugin(name, f"objective.{label}.task", "objective")
        if isinstance(kind, BaseObjective):
            kind, defaults = type(kind), dict(vars(kind))
        if not (isinstance(kind, type) and issubclass(kind, BaseObjective)):
            raise UserError(f"objective.{label}.task: `{name}` is not a `megaptm.objectives.Objective`: correct it.")
    elif isinstance(name, str) and name in TASKS:
        kind = TASKS[name]
    elif isinstance(name, str) and type(OBJECTIVES.get(name)) in TASKS.values():
        kind, defaults = type(OBJECTIVES[name]), dict(vars(OBJECTIVES[name]))
    elif name in (*QUESTIONS,):
        kind, defaults = TextQuestion, {"question": name}
    elif "task" not in options and (mistyped := [key for key in options if suggest_name(key, ("task",))]):
        raise UserError(f"objective.{label}: unknown option {mistyped[0]}; did you mean task?")
    else:
        where = f"objective.{label}.task ({name})" if "task" in options else f"objective.{label}"
        if isinstance(name, str) and name in OBJECTIVES:
            raise UserError(
                f"{where} is a named mixture without options, as in objective={name}: to change it, write out "
                "its tasks."
            )
        raise UserError(f"{where} is not a task; {nearest_name_advice(name, [*TASKS, *QUESTIONS])}")
    own = {key: value for key, value in options.items() if key not in COMMON_OPTIONS}
    names: list[str] = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    default_of = {field.name: field.default for field in fields(kind)} if is_dataclass(kind) else {}
    known = [name for name in names if (kind, name) != (TextQuestion, "question")]  # set by the task name
    for key in own:
        if key not in known:
            raise UserError(
                f"objective.{label}: unknown option {key}; {nearest_name_advice(key, [*known, *COMMON_OPTIONS])}"
            )
    try:
        if not names:
            return kind()
        preset = {key: defaults[key] for key in names if key in defaults and defaults[key] != default_of[key]}
        if not is_builtin(kind):  # its options may be of types that YAML lacks
            return _type_adapter(kind).validate_python(preset | own)
        # Strict JSON accepts a list for a tuple, and converts nothing else.
        return _type_adapter(kind).validate_json(json.dumps(preset | own, default=repr), strict=True)
    except ValidationError as error:
        details = error.errors()[0]
        if details["type"] == "value_error":
            raise UserError(f"objective.{label}: {details['ctx']['error']}") from None
        where = ".".join(map(str, ("objective", label, *details["loc"])))
        if details["type"] == "missing":
            raise UserError(f"{where} is missing from {describe_value(details['input'])}: add it.") from None
        raise UserError(f"{where} {describe_invalid_value(details)}") from None
    except UserError:
        raise
    except Exception as error:  # custom class: abstract, with options that no config can express, or with a bug
        raise UserError(
            f"objective.{label}.task: `{name}` cannot be created ({describe_error(error)}): fix it."
        ) from None


@cache
def _type_adapter(kind: type[BaseObjective]) -> TypeAdapter[BaseObjective]:
    return TypeAdapter(kind)


def _with_question(label: str, task: BaseObjective, questions: list[str]) -> BaseObjective:
    if len(questions) > 1:
        raise UserError(f"objective: {' and '.join(questions)} each choose the second text: use only one.")
    if not isinstance(task, MaskedLM):
        raise UserError(f"objective: question {questions[0]} can be combined with masked-lm, not with {label}.")
    try:
        return MaskedLMWithQuestion(questions[0], task)
    except UserError as error:
        raise UserError(f"objective.{label}: {error}") from None


def _parse_share(label: str, options: Mapping[str, Any]) -> StepValue:
    return _step_value(f"objective.{label}.share", options["share"]) if "share" in options else CONSTANT_ONE


def _task_id(label: str, options: Mapping[str, Any]) -> int | None:
    task_id = options.get("task_id")
    if task_id is not None and (type(task_id) is not int or task_id < 0):
        raise UserError(f"objective.{label}.task_id ({task_id}) must be an integer of 0 or more.")
    return task_id


def _parse_questions(label: str, options: Mapping[str, Any], questions: list[str]) -> list[str]:
    """Return the question of a task in a composed objective, or those of all tasks."""
    if (own := options.get("question")) is None:
        return questions
    if own not in (*QUESTIONS,):
        raise UserError(f"objective.{label}.question ({own}) is unknown; {nearest_name_advice(own, QUESTIONS)}")
    return [own]


def _parse_corpora(label: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    if "corpora" not in options:
        return ()
    names = options["corpora"]
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise UserError(f"objective.{label}.corpora must be a list of corpora of data.mix, not {names!r}.")
    return tuple(names)


def _parse_weights(entries: Mapping[str, Mapping[str, Any]], parts: Iterable[Task]) -> dict[str, StepValue]:
    """Return the weight of each loss of a composed objective, except for losses that a custom task weights itself.
    Tasks that share a loss must agree."""
    weights: dict[str, tuple[str, StepValue | None]] = {}
    for part in parts:
        has_own_weights = type(part.objective).weights is not BaseObjective.weights
        for loss, default in part.objective.losses.items():
            label = loss if loss in entries else part.label
            weight = None if has_own_weights else StepValue((0,), (default,))
            if (value := entries[label].get("weight")) is not None:
                losses = [loss] if label == loss else [*part.objective.losses]
                weight = _parse_weight(f"objective.{label}.weight", value, loss, losses, default) or weight
            other, before = weights.setdefault(loss, (label, weight))
            if label != other and (before != weight or weight is None):
                raise UserError(f"objective: {other} and {label} share the loss {loss}: set the same weight.")
    return {loss: weight for loss, (_, weight) in weights.items() if weight is not None}


def _parse_weight(where: str, value: Any, loss: str, losses: list[str], default: float) -> StepValue | None:
    """Return the weight of a loss of a task. None if the mapping names only other losses."""
    if isinstance(value, Mapping) and any(isinstance(key, str) for key in value):
        if unknown := [key for key in value if key not in losses]:
            raise UserError(
                f"{where}: {unknown[0]} is not one of its losses; {nearest_name_advice(str(unknown[0]), losses)}"
            )
        return _step_value(f"{where}.{loss}", value[loss]) if loss in value else None
    factor = _step_value(where, value)
    return StepValue(factor.steps, tuple(default * number for number in factor.values))


def _step_value(where: str, value: Any) -> StepValue:
    table = value if isinstance(value, Mapping) else {0: value}
    try:
        if any(isinstance(number, bool | str) for number in table.values()):
            raise TypeError
        steps = {operator.index(step): float(number) for step, number in table.items()}
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where} must be a number, or a mapping from steps to numbers, not {value!r}.") from None
    if not steps or min(steps) != 0 or not all(0 <= number <= MAX_VALUE for number in steps.values()):
        raise UserError(
            f"{where} ({value}) must have values from 0 to {MAX_VALUE:g}, and start at step 0, as in "
            "{0: 1.0, 1000: 0.5}."
        )
    return StepValue(*zip(*sorted(steps.items()), strict=True))


def _refuse_all_zero(name: str, values: Iterable[StepValue]) -> None:
    """Raise `UserError` if all shares or weights are 0 from some step on."""
    all_values = list(values)
    for step in sorted({step for value in all_values for step in value.steps}):
        if not any(value.at(step) for value in all_values):
            raise UserError(f"objective: every {name} is 0 at step {step:,}: set one above 0 for every step.")
