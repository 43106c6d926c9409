"""Composed objectives of a config: tasks with options, questions, shares and weights by step."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from megaptm.errors import UserError, missing_space_advice, must_be, nearest, shown_value
from megaptm.objectives.composed import ONE, Composed, StepValue, Task, by_step
from megaptm.objectives.masked import MaskedLM, MaskedLMWithQuestion
from megaptm.objectives.objective import BaseObjective, SampleObjective
from megaptm.objectives.questions import TextQuestion
from megaptm.objectives.registry import OBJECTIVES, TASKS
from megaptm.objectives.text_questions import QUESTIONS
from megaptm.plugins import describe_error, is_builtin, is_plugin, load_plugin
from megaptm.suggest import suggest

BY_STEP = ("share", "weight")
OF_EVERY_TASK = ("task", "task_id", "question", "corpora", *BY_STEP)
MOST = 1e9
"""Maximum of a share or weight, so that sums are finite."""
FILES = ("similar", "meanings", "retrieved")
"""Options of tasks that name a file or a custom function."""


def compose(said: Mapping[str, Any]) -> BaseObjective:
    """Return the objective that a mapping describes. Raises `UserError` that names the key.

    `{masked-lm: {rate: 0.2}, sentence-order: {}}`: a task with options, and a question about the same text.

    `{short: {task: span-corruption, share: 0.5}, long: {task: span-corruption, mean: 32, share: 0.5}}`: several tasks,
    each with its share of the samples. `weight` multiplies the weights of a task's losses; a mapping sets them by loss.
    Shares and weights may be mappings from the first step of each value: `{0: 1.0, 10000: 0.5}`.
    """
    if not said:
        raise UserError("objective is empty: name a task, as in `objective: {masked-lm: {}}`.")
    entries = {label: _entry(label, options) for label, options in said.items()}
    questions = [label for label in entries if label in QUESTIONS]
    tasks = {label: options for label, options in entries.items() if label not in QUESTIONS}
    shared = [label for label, options in tasks.items() if "share" in options]
    if not tasks:
        raise UserError(f"objective: {questions[0]} is asked about a text that a task makes: add `masked-lm: {{}}`.")
    made = {label: _task(label, options) for label, options in tasks.items()}  # a misspelled question is not a task
    if len(tasks) > 1 and len(shared) < len(tasks):
        lacking = next(label for label in tasks if label not in shared)
        raise UserError(f"objective.{lacking} needs a share: of several tasks each makes a share of the samples.")
    for label in questions:
        if other := next((key for key in entries[label] if key != "weight"), None):
            raise UserError(f"objective.{label}: unknown option {other}; a question has no option but weight.")
    asked = {label: _question(label, tasks[label], questions) for label in made}
    made = {label: _with_question(label, task, asked[label]) if asked[label] else task for label, task in made.items()}
    makers = {label: task for label, task in made.items() if isinstance(task, SampleObjective)}
    if len(makers) < len(made):
        return _alone(next(label for label in made if label not in makers), made, tasks)
    parts = tuple(
        Task(label, task, _shares(label, said), _task_id(label, said), _corpora(label, said))
        for (label, task), said in zip(makers.items(), tasks.values(), strict=True)
    )
    weights = _weights(entries, parts)
    _refuse_nothing("task has a share", [part.share for part in parts])
    if all(loss in weights for part in parts for loss in part.objective.losses):
        _refuse_nothing("loss has a weight", weights.values())
    alone = Task(parts[0].label, parts[0].objective, parts[0].share)
    usual = {loss: StepValue((0,), (weight,)) for loss, weight in alone.objective.losses.items()}
    if parts == (alone,) and all(weight == usual[loss] for loss, weight in weights.items()):
        return alone.objective
    return Composed(parts, weights)


def _alone(label: str, made: Mapping[str, BaseObjective], options: Mapping[str, Mapping[str, Any]]) -> BaseObjective:
    """Return an objective that makes no samples, and so cannot be mixed with others."""
    if len(made) > 1:
        raise UserError(f"objective.{label} makes no samples of text, to be mixed with those of others: name it alone.")
    if said := [key for key in OF_EVERY_TASK if key != "task" and key in options[label]]:
        raise UserError(f"objective.{label} makes no samples of text, and {said[0]} means nothing to it: remove it.")
    return made[label]


def goes_on_as(begun: str | Mapping[str, Any], said: str | Mapping[str, Any], step: int) -> bool:
    """Whether two objectives of a config are equal before a step, and later differ in shares or weights only."""
    if isinstance(begun, str) and begun == said:
        return True
    if _of_every_step(begun) != _of_every_step(said):
        return False
    one, other = (by_step(compose(_as_tasks(objective))) for objective in (begun, said))
    return all(one.get(key, ONE).until(step) == other.get(key, ONE).until(step) for key in one.keys() | other.keys())


def with_files(said: Mapping[str, Any], place: Callable[[str], str]) -> dict[str, Any]:
    """Return the mapping with `place` applied to files that options name."""

    def placed(key: str, value: Any) -> Any:
        if key == "corpora" and isinstance(value, list):
            return [place(corpus) for corpus in value]
        return place(value) if key in FILES and isinstance(value, str) and not is_plugin(value) else value

    return {
        label: {key: placed(key, value) for key, value in options.items()} if isinstance(options, dict) else options
        for label, options in said.items()
    }


def files_of(said: str | Mapping[str, Any]) -> dict[str, str]:
    """Return `label.option` -> file that it names."""
    tasks = said.items() if isinstance(said, Mapping) else ()
    return {
        f"{label}.{key}": options[key]
        for label, options in tasks
        if isinstance(options, Mapping)
        for key in FILES
        if isinstance(options.get(key), str) and not is_plugin(options[key])
    }


def _as_tasks(said: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {said: {}} if isinstance(said, str) else said


def _of_every_step(said: str | Mapping[str, Any]) -> list[tuple[str, Any]] | str:
    """Return what must be equal at all steps, in order, because samples are assigned to tasks by order."""
    if isinstance(said, str) and said not in TASKS:
        return said
    kept = ((label, _entry(label, options)) for label, options in _as_tasks(said).items())
    return [(label, {key: options[key] for key in options if key not in BY_STEP}) for label, options in kept]


def _entry(label: Any, options: Any) -> dict[str, Any]:
    if not isinstance(label, str):
        raise UserError(f"objective: {label!r} is no name of a task: write a word there.")
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise UserError(f"objective.{label} must be a mapping of options, as in `{label}: {{}}`, not {options!r}.")
    _refuse_joined(f"objective.{label}", options)
    return dict(options)


def _refuse_joined(where: str, said: Mapping[Any, Any]) -> None:
    """Raise `UserError` if a key contains its value, as in `{0:1}`, which YAML parses as a time or a key without
    value."""
    for key, value in said.items():
        if told := missing_space_advice(key, value):
            raise UserError(f"{where}: {key} {told}")
        if isinstance(value, Mapping):
            _refuse_joined(f"{where}.{key}", value)


def _task(label: str, options: Mapping[str, Any]) -> BaseObjective:
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
    elif "task" not in options and (mistyped := [key for key in options if suggest(key, ("task",))]):
        raise UserError(f"objective.{label}: unknown option {mistyped[0]}; did you mean task?")
    else:
        where = f"objective.{label}.task ({name})" if "task" in options else f"objective.{label}"
        if isinstance(name, str) and name in OBJECTIVES:
            raise UserError(
                f"{where} is said by its name alone, as in objective={name}: to change it, write out its tasks."
            )
        raise UserError(f"{where} is no task; {nearest(name, [*TASKS, *QUESTIONS])}")
    own = {key: value for key, value in options.items() if key not in OF_EVERY_TASK}
    names: list[str] = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    usual = {field.name: field.default for field in fields(kind)} if is_dataclass(kind) else {}
    known = [name for name in names if (kind, name) != (TextQuestion, "question")]  # given by its name
    for key in own:
        if key not in known:
            raise UserError(f"objective.{label}: unknown option {key}; {nearest(key, [*known, *OF_EVERY_TASK])}")
    try:
        if not names:
            return kind()
        kept = {key: defaults[key] for key in names if key in defaults and defaults[key] != usual[key]}
        if not is_builtin(kind):  # its options may be of types that YAML lacks
            return _adapter(kind).validate_python(kept | own)
        # Strict JSON accepts a list for a tuple, and converts nothing else.
        return _adapter(kind).validate_json(json.dumps(kept | own, default=repr), strict=True)
    except ValidationError as error:
        details = error.errors()[0]
        if details["type"] == "value_error":
            raise UserError(f"objective.{label}: {details['ctx']['error']}") from None
        where = ".".join(map(str, ("objective", label, *details["loc"])))
        if details["type"] == "missing":
            raise UserError(f"{where} is missing from {shown_value(details['input'])}: add it.") from None
        raise UserError(f"{where} {must_be(details)}") from None
    except UserError:
        raise
    except Exception as error:  # custom class: abstract, with options that no config can express, or with a bug
        raise UserError(f"objective.{label}.task: `{name}` cannot be made ({describe_error(error)}): fix it.") from None


@cache
def _adapter(kind: type[BaseObjective]) -> TypeAdapter[BaseObjective]:
    return TypeAdapter(kind)


def _with_question(label: str, task: BaseObjective, questions: list[str]) -> BaseObjective:
    if len(questions) > 1:
        raise UserError(f"objective: {' and '.join(questions)} each choose the second text: keep one.")
    if not isinstance(task, MaskedLM):
        raise UserError(f"objective: {questions[0]} is asked beside masked-lm, not beside {label}.")
    try:
        return MaskedLMWithQuestion(questions[0], task)
    except UserError as error:
        raise UserError(f"objective.{label}: {error}") from None


def _shares(label: str, options: Mapping[str, Any]) -> StepValue:
    return _by_step(f"objective.{label}.share", options["share"]) if "share" in options else ONE


def _task_id(label: str, options: Mapping[str, Any]) -> int | None:
    number = options.get("task_id")
    if number is not None and (type(number) is not int or number < 0):
        raise UserError(f"objective.{label}.task_id ({number}) must be a number from 0 on.")
    return number


def _question(label: str, options: Mapping[str, Any], questions: list[str]) -> list[str]:
    """Return the task's own question, or those of all tasks."""
    if (own := options.get("question")) is None:
        return questions
    if own not in (*QUESTIONS,):
        raise UserError(f"objective.{label}.question ({own}) is not known; {nearest(own, QUESTIONS)}")
    return [own]


def _corpora(label: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    if "corpora" not in options:
        return ()
    names = options["corpora"]
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise UserError(f"objective.{label}.corpora must be a list of corpora of data.mix, not {names!r}.")
    return tuple(names)


def _weights(entries: Mapping[str, Mapping[str, Any]], parts: Iterable[Task]) -> dict[str, StepValue]:
    """Return loss -> weight, except for losses that a custom task weights itself. Tasks that share a loss must
    agree."""
    found: dict[str, tuple[str, StepValue | None]] = {}
    for part in parts:
        weighs_itself = type(part.objective).weights is not BaseObjective.weights
        for loss, default in part.objective.losses.items():
            label = loss if loss in entries else part.label
            weight = None if weighs_itself else StepValue((0,), (default,))
            if (said := entries[label].get("weight")) is not None:
                asked = [loss] if label == loss else [*part.objective.losses]
                weight = _weight(f"objective.{label}.weight", said, loss, asked, default) or weight
            other, before = found.setdefault(loss, (label, weight))
            if label != other and (before != weight or weight is None):
                raise UserError(f"objective: {other} and {label} have one loss, {loss}: give them one weight.")
    return {loss: weight for loss, (_, weight) in found.items() if weight is not None}


def _weight(where: str, said: Any, loss: str, losses: list[str], default: float) -> StepValue | None:
    """Return the weight of a loss. None if the mapping names only other losses."""
    if isinstance(said, Mapping) and any(isinstance(key, str) for key in said):
        if unknown := [key for key in said if key not in losses]:
            raise UserError(f"{where}: {unknown[0]} is none of its losses; {nearest(str(unknown[0]), losses)}")
        return _by_step(f"{where}.{loss}", said[loss]) if loss in said else None
    times = _by_step(where, said)
    return StepValue(times.steps, tuple(default * value for value in times.values))


def _by_step(where: str, said: Any) -> StepValue:
    table = said if isinstance(said, Mapping) else {0: said}
    try:
        if wrong := [value for value in table.values() if isinstance(value, bool | str)]:
            raise TypeError(wrong[0])
        steps = {operator.index(step): float(value) for step, value in table.items()}
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where} must be a number, or a mapping from steps to numbers, not {said!r}.") from None
    if not steps or min(steps) != 0 or not all(0 <= value <= MOST for value in steps.values()):
        raise UserError(
            f"{where} ({said}) must say numbers of 0 or more, of {MOST:g} at most, from step 0 on, as in "
            "{0: 1.0, 1000: 0.5}."
        )
    return StepValue(*zip(*sorted(steps.items()), strict=True))


def _refuse_nothing(what: str, values: Iterable[StepValue]) -> None:
    """Raise `UserError` if all values are 0 from some step on."""
    several = list(values)
    for step in sorted({step for value in several for step in value.steps}):
        if not any(value.at(step) for value in several):
            raise UserError(f"objective: no {what} above 0 at step {step:,}: give one to every step.")
