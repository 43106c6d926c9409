"""Loss weights of objectives, of user classes and of configs."""

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.objectives import build_objective, loss_weights_at
from megaptm.objectives.causal import CausalLM


class FixedWeights(CausalLM):
    name = "fixed-weights"

    def __init__(self, result):
        self.result = result

    def weights(self, step):
        return self.result["missing"] if self.result == {} else self.result


@pytest.mark.parametrize("weight", [0, 2, 0.5, np.float32(0.5)])
def test_numbers_are_valid_weights(weight):
    assert loss_weights_at(FixedWeights({"lm": weight}), 3) == {"lm": weight}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"mlm": 1.0}, r"weights\(3\) has no lm: it must have a weight for each loss \(lm\)\."),
        ({"lm": "0.5"}, r"weights\(3\): the weight of lm is '0\.5'; it must be a finite number\."),
        ({"lm": float("nan")}, r"the weight of lm is nan"),
        ({"lm": 1.0, "mlm": 1.0}, r"weights\(3\) has mlm, which is not one of its losses \(lm\)\."),
        (None, r"weights\(3\) is None: it must be a mapping"),
        ({}, r"weights\(3\) failed \(KeyError: 'missing', \S+test_weights\.py:\d+\): fix it\."),
    ],
)
def test_invalid_weights_are_rejected(result, message):
    with pytest.raises(UserError, match=rf"^objective fixed-weights: .*{message}"):
        loss_weights_at(FixedWeights(result), 3)


class Fading(CausalLM):
    name = "fading"

    def weights(self, step):
        return {"lm": 1 / (1 + step)}


def fading(**options):
    return {"task": f"{__name__}:Fading", **options}


def test_task_of_a_mixture_keeps_its_own_weights():
    composed = build_objective({"mine": fading(share=0.5), "masked-lm": {"share": 0.5, "weight": {0: 2, 3: 1}}})
    assert loss_weights_at(composed, 0) == dict(composed.losses) == {"lm": 1, "mlm": 2}
    assert loss_weights_at(composed, 3) == {"lm": 0.25, "mlm": 1}


def test_configured_weight_overrides_own_weights():
    assert loss_weights_at(build_objective({"mine": fading(weight={0: 3})}), 1) == {"lm": 3}


def test_shared_loss_needs_one_weight():
    with pytest.raises(UserError, match=r"objective: mine and causal-lm share the loss lm: set the same weight\."):
        build_objective({"mine": fading(share=0.5), "causal-lm": {"share": 0.5}})
    both = {"mine": fading(share=0.5, weight=2), "causal-lm": {"share": 0.5, "weight": 2}}
    assert loss_weights_at(build_objective(both), 7) == {"lm": 2}


def test_number_scales_all_losses_of_a_task():
    rtd = "replaced-token-detection"
    assert loss_weights_at(build_objective({rtd: {}}), 0) == {"mlm": 1, "replaced-token": 50}
    assert loss_weights_at(build_objective({rtd: {"weight": 1}}), 0) == {"mlm": 1, "replaced-token": 50}
    assert loss_weights_at(build_objective({rtd: {"weight": {0: 2, 5: 1}}}), 0) == {"mlm": 2, "replaced-token": 100}


def test_mapping_sets_weights_of_single_losses():
    task = build_objective({"replaced-token-detection": {"weight": {"replaced-token": {0: 20, 7: 0}}}})
    assert [loss_weights_at(task, step) for step in (6, 7)] == [
        {"mlm": 1, "replaced-token": 20},
        {"mlm": 1, "replaced-token": 0},
    ]
    pairs = build_objective(
        {"masked-lm": {"weight": {"mlm": 0.5}}, "sentence-order": {"weight": {"sentence-order": 2}}}
    )
    assert loss_weights_at(pairs, 0) == {"mlm": 0.5, "sentence-order": 2}


def test_unknown_loss_is_rejected():
    with pytest.raises(
        UserError, match=r"objective\.masked-lm\.weight: lm is not one of its losses; did you mean mlm\?"
    ):
        build_objective({"masked-lm": {"weight": {"lm": 2}}})


def test_named_objective_is_a_task_with_its_options():
    assert build_objective({"mass": {}}) == build_objective("mass")
    assert build_objective({"mass": {"rate": 0.4}}).rate == 0.4
    both = build_objective({"mass": {"share": 1}, "bert-style": {"share": 1}})
    assert [task.objective for task in both.tasks] == [build_objective(name) for name in ("mass", "bert-style")]
