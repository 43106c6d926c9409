"""A mixture that has a name says the same when its tasks are written out."""

import pytest

from megaptm.objectives import build_objective
from megaptm.objectives.composed import Composed
from megaptm.objectives.mixtures import UNIMO, UNITER, NamedMixture
from megaptm.objectives.written import mixture_config


@pytest.mark.parametrize("mixture", [UNITER, UNIMO], ids=lambda mixture: mixture.name)
def test_the_tasks_of_a_mixture_are_written_as_a_config_says_them(mixture: NamedMixture) -> None:
    read = build_objective(mixture_config(mixture))
    assert isinstance(read, Composed)
    assert [(task.label, task.objective) for task in read.tasks] == [
        (task.label, task.objective) for task in mixture.tasks
    ]
    assert [task.share.at(0) for task in read.tasks] == pytest.approx(_in_whole_numbers(mixture))
    assert read.weights_by_step == mixture.weights_by_step


def _in_whole_numbers(mixture: NamedMixture) -> list[float]:
    least = {"uniter": 1 / 6, "unimo": 1 / 70}[mixture.name]
    return [task.share.at(0) / least for task in mixture.tasks]


def test_other_options_are_written_where_a_task_knows_of_them() -> None:
    tasks = mixture_config(UNIMO, features=24, classes=17)
    assert tasks["spans"] == {"task": "text-spans", "share": 25, "units": "tokens", "features": 24}
    assert tasks["areas"] == {"task": "masked-areas", "share": 5, "image_only": True, "features": 24, "classes": 17}
    assert mixture_config(UNIMO, features=2048, classes=1601) == mixture_config(UNIMO)
