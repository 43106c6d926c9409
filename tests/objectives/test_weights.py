"""The weights of an objective of the user's: a number for each of its losses, or a sentence."""

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.objectives import build_objective, weights_at
from megaptm.objectives.causal import CausalLM


class Weighed(CausalLM):
    name = "weighed"

    def __init__(self, said):
        self.said = said

    def weights(self, step):
        return self.said["lm at all"] if self.said == {} else self.said


@pytest.mark.parametrize("weight", [0, 2, 0.5, np.float32(0.5)])
def test_any_number_is_a_weight(weight):
    assert weights_at(Weighed({"lm": weight}), 3) == {"lm": weight}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"mlm": 1.0}, r"weights\(3\) has no lm: it must have a weight for each loss \(lm\)\."),
        ({"lm": "0.5"}, r"weights\(3\): the weight of lm is '0\.5'; it must be a finite number\."),
        ({"lm": float("nan")}, r"the weight of lm is nan"),
        ({"lm": 1.0, "mlm": 1.0}, r"weights\(3\) has mlm, which is not one of its losses \(lm\)\."),
        (None, r"weights\(3\) is None: it must be a mapping"),
        ({}, r"weights\(3\) failed \(KeyError: 'lm at all', \S+test_weights\.py:\d+\): fix it\."),
    ],
)
def test_what_is_no_weight_is_told_with_its_step(said, told):
    with pytest.raises(UserError, match=rf"^objective weighed: .*{told}"):
        weights_at(Weighed(said), 3)


class Fading(CausalLM):
    name = "fading"

    def weights(self, step):
        return {"lm": 1 / (1 + step)}


def fading(**options):
    return {"task": f"{__name__}:Fading", **options}


def test_among_other_tasks_it_weighs_its_losses_as_alone():
    composed = build_objective({"mine": fading(share=0.5), "masked-lm": {"share": 0.5, "weight": {0: 2, 3: 1}}})
    assert weights_at(composed, 0) == dict(composed.losses) == {"lm": 1, "mlm": 2}
    assert weights_at(composed, 3) == {"lm": 0.25, "mlm": 1}


def test_a_weight_that_a_config_says_stands_above_its_own():
    assert weights_at(build_objective({"mine": fading(weight={0: 3})}), 1) == {"lm": 3}


def test_who_weighs_a_loss_itself_shares_it_with_nobody():
    with pytest.raises(UserError, match=r"objective: mine and causal-lm share the loss lm: set the same weight\."):
        build_objective({"mine": fading(share=0.5), "causal-lm": {"share": 0.5}})
    both = {"mine": fading(share=0.5, weight=2), "causal-lm": {"share": 0.5, "weight": 2}}
    assert weights_at(build_objective(both), 7) == {"lm": 2}


def test_a_number_multiplies_what_all_losses_of_a_task_count():
    rtd = "replaced-token-detection"
    assert weights_at(build_objective({rtd: {}}), 0) == {"mlm": 1, "replaced-token": 50}
    assert weights_at(build_objective({rtd: {"weight": 1}}), 0) == {"mlm": 1, "replaced-token": 50}
    assert weights_at(build_objective({rtd: {"weight": {0: 2, 5: 1}}}), 0) == {"mlm": 2, "replaced-token": 100}


def test_a_mapping_says_what_losses_count_and_leaves_the_others():
    task = build_objective({"replaced-token-detection": {"weight": {"replaced-token": {0: 20, 7: 0}}}})
    assert [weights_at(task, step) for step in (6, 7)] == [
        {"mlm": 1, "replaced-token": 20},
        {"mlm": 1, "replaced-token": 0},
    ]
    pairs = build_objective(
        {"masked-lm": {"weight": {"mlm": 0.5}}, "sentence-order": {"weight": {"sentence-order": 2}}}
    )
    assert weights_at(pairs, 0) == {"mlm": 0.5, "sentence-order": 2}


def test_a_loss_that_a_task_has_not_is_told():
    with pytest.raises(
        UserError, match=r"objective\.masked-lm\.weight: lm is not one of its losses; did you mean mlm\?"
    ):
        build_objective({"masked-lm": {"weight": {"lm": 2}}})


def test_a_named_objective_is_a_task_whose_options_it_says():
    assert build_objective({"mass": {}}) == build_objective("mass")
    assert build_objective({"mass": {"rate": 0.4}}).rate == 0.4
    both = build_objective({"mass": {"share": 1}, "bert-style": {"share": 1}})
    assert [task.objective for task in both.tasks] == [build_objective(name) for name in ("mass", "bert-style")]
