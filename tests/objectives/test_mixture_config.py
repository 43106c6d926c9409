"""Named mixtures equal the config that writes out their tasks."""

import pytest

from megaptm.families.unimo.objectives import UNIMO
from megaptm.families.uniter.objectives import UNITER
from megaptm.objectives import build_objective
from megaptm.objectives.composed import Composed
from megaptm.objectives.mixture_config import mixture_config
from megaptm.objectives.mixtures import NamedMixture


@pytest.mark.parametrize("mixture", [UNITER, UNIMO], ids=lambda mixture: mixture.name)
def test_mixture_config_builds_the_mixture(mixture: NamedMixture) -> None:
    built = build_objective(mixture_config(mixture))
    assert isinstance(built, Composed)
    assert [(task.label, task.objective) for task in built.tasks] == [
        (task.label, task.objective) for task in mixture.tasks
    ]
    smallest_share = {"uniter": 1 / 6, "unimo": 1 / 70}[mixture.name]
    expected = [task.share.at(0) / smallest_share for task in mixture.tasks]
    assert [task.share.at(0) for task in built.tasks] == pytest.approx(expected)
    assert built.weights_by_step == mixture.weights_by_step


def test_mixture_config_sets_options_of_each_task() -> None:
    tasks = mixture_config(UNIMO, features=24, classes=17)
    assert tasks["spans"] == {"task": "text-spans", "share": 25, "units": "tokens", "features": 24}
    assert tasks["areas"] == {"task": "masked-areas", "share": 5, "image_only": True, "features": 24, "classes": 17}
    assert mixture_config(UNIMO, features=2048, classes=1601) == mixture_config(UNIMO)
