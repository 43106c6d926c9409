"""Update rules in every layout: losses of one process, and checkpoints that resume in any layout."""

import pytest
import torch

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from tests.engines import filled_engine
from tests.layouts.cases import batch, losses_of, micro_batches, tiny, train_and_save, train_steps
from tests.models.tiny import mean_losses
from tests.ranks import run_ranks

CLIP = {"clip": 1.0, "weight_decay": 0.1}
RULES = {
    "adamw as BERT": ("gpt2", OptimizerConfig(name="adamw", lr=1e-3, eps=1e-6, bias_correction=False, **CLIP)),
    "adamw off-loaded": ("bert", OptimizerConfig(name="adamw", lr=1e-3, offload=True, **CLIP)),
    "stable-adamw": (
        "modernbert",
        OptimizerConfig(name="stable-adamw", lr=1e-3, eps=1e-6, betas=(0.9, 0.98), weight_decay=0.1),
    ),
    "sgd": ("gpt2", OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, **CLIP)),
    "adagrad": ("bert", OptimizerConfig(name="adagrad", lr=0.02, initial_accumulator=0.1, **CLIP)),
    "own": (
        "gpt2",
        OptimizerConfig(
            name="tests.layouts.own_rules:RMSprop",
            lr=1e-3,
            options={"alpha": 0.9, "eps": 1e-4, "momentum": 0.9},
            **CLIP,
        ),
    ),
    "lamb": ("bert", OptimizerConfig(name="lamb", lr=0.02, eps=1e-6, **CLIP)),
    "muon": ("t5", OptimizerConfig(name="muon", lr=3e-3, **CLIP)),
    "adafactor as T5": (
        "t5",
        OptimizerConfig(name="adafactor", lr=0.03, adafactor=AdafactorConfig(min_dim_size_to_factor=8), ema_decay=0.9),
    ),
    "adafactor as PaLM": (
        "gpt2",
        OptimizerConfig(
            name="adafactor",
            lr=0.03,
            momentum=0.9,
            clip=1.0,
            weight_decay=1.0,
            weight_decay_scaling="lr-squared",
            weight_decay_on="all",
            adafactor=AdafactorConfig(min_dim_size_to_factor=None),
        ),
    ),
}
LAYOUTS = {
    "TP2": Layout(microbatch=2, tensor=2),
    "TP2+SP": Layout(microbatch=2, tensor=2, sequence_parallel=True),
    "PP2": Layout(microbatch=2, pipeline=2),
    "PP2 interleaved": Layout(microbatch=2, pipeline=2, virtual=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "TP2xPP2": Layout(microbatch=2, tensor=2, pipeline=2),
    "TP2xDP2": Layout(microbatch=2, tensor=2, data=2),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
    "TP2xDP2 distributed optimizer": Layout(microbatch=2, tensor=2, data=2, distributed_optimizer=True),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}
STEPS = 3


def train_with_rules(layout, precision="fp32"):
    """Return rule -> result of `train_steps`."""
    return {
        name: train_steps(family, layout, STEPS, precision, optimizer=rule) for name, (family, rule) in RULES.items()
    }


@pytest.fixture(scope="module")
def alone():
    return run_ranks(1, train_with_rules, Layout(microbatch=2))[0]


QUICK_LAYOUTS = ("PP2 interleaved", "TP2xDP2 distributed optimizer")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK_LAYOUTS else pytest.mark.drill)
        for name in LAYOUTS
        if name != "PP2xDP2 distributed optimizer"
    ],
)
def test_layout_changes_no_result(alone, name):
    layout = LAYOUTS[name]
    for actual in run_ranks(layout.processes, train_with_rules, layout):
        for rule in RULES:
            for part in ("losses", "norms", "evaluation"):
                assert actual[rule][part] == pytest.approx(alone[rule][part], rel=1e-5), (rule, part)


@pytest.mark.parametrize("name", [pytest.param("TP2", marks=pytest.mark.drill), "DP2 distributed optimizer"])
def test_bf16_updates_float32_copies(alone, name):
    """Most of these steps would not change weights in bfloat16."""
    layout = LAYOUTS[name]
    for actual in run_ranks(layout.processes, train_with_rules, layout, "bf16"):
        for rule in RULES:
            assert actual[rule]["losses"] == pytest.approx(alone[rule]["losses"], rel=5e-3), rule


def decaying_parameters(settings, layout):
    """Return the names of parameters with weight decay."""
    engine = filled_engine(tiny("bert"), layout, settings, losses=losses_of("bert"), seed=7)
    decays = {
        id(parameter)
        for group in engine.optimizer.rule.param_groups
        if group["wd_mult"]
        for parameter in group["params"]
    }
    return {part.placement.name for part in engine.optimizer.parts if id(part.master) in decays}


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_norms_and_biases_do_not_decay_by_default(name):
    shapes = {name: parameter.dim() for name, parameter in Model(tiny("bert")).named_parameters()}
    settings = OptimizerConfig(name=name, lr=0.01, weight_decay=0.1)
    layout = LAYOUTS["DP2 distributed optimizer"]
    assert set.union(*run_ranks(2, decaying_parameters, settings, layout)) == {
        name for name in shapes if shapes[name] > 1
    }
    everything = settings.model_copy(update={"weight_decay_on": "all"})
    assert set.union(*run_ranks(2, decaying_parameters, everything, layout)) == {*shapes}


def shared_parameters(rule, layout):
    """Return name -> values of the parameters that several stages hold, after some steps."""
    family, settings = (RULES | {"muon of shared layers": ("albert", RULES["muon"][1])})[rule]
    engine = filled_engine(tiny(family), layout, settings, losses=losses_of(family), seed=7)
    for step in range(STEPS):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data)
        engine.train_step(batches, step=step, lr=settings.lr)
    return {
        part.placement.name: part.parameter.tolist()
        for part in engine.optimizer.parts
        if hasattr(part.parameter, "shared_embedding")
    }


@pytest.mark.parametrize("rule", ["lamb", "adafactor as T5", "muon of shared layers"])
def test_shared_parameters_of_stages_stay_equal(rule):
    values = run_ranks(4, shared_parameters, rule, LAYOUTS["PP2xDP2 distributed optimizer"])
    assert values[0]
    assert values[0] == values[1] == values[2] == values[3]


class UncorrectedAdam(torch.optim.Optimizer):
    """Adam of google-research/bert, optimization.py: without bias correction."""

    def __init__(self, groups, *, lr):
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                mean, square = self.state.setdefault(
                    parameter, [torch.zeros_like(parameter), torch.zeros_like(parameter)]
                )
                mean.mul_(0.9).add_(parameter.grad, alpha=0.1)
                square.mul_(0.999).add_(parameter.grad.square(), alpha=0.001)
                parameter.sub_(mean / (square.sqrt() + 1e-6) + group["weight_decay"] * parameter, alpha=group["lr"])


REFERENCES = {
    "adamw as BERT": lambda groups, rule: UncorrectedAdam(groups, lr=rule.lr),
    "own": lambda groups, rule: torch.optim.RMSprop(groups, lr=rule.lr, **rule.options),
    "sgd": lambda groups, rule: torch.optim.SGD(groups, lr=rule.lr, momentum=0.9),
    "adagrad": lambda groups, rule: torch.optim.Adagrad(groups, lr=rule.lr, initial_accumulator_value=0.1, eps=1e-8),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_rule_equals_a_plain_torch_loop(alone, name):
    family, rule = RULES[name]
    model = Model(tiny(family))
    init_weights(model, seed=7)
    parameters = list(model.parameters())
    groups = [
        {"params": [parameter for parameter in parameters if parameter.dim() > 1], "weight_decay": rule.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = REFERENCES[name](groups, rule)
    for step in range(STEPS):
        loss = mean_losses(model(batch(family, step)).losses)
        assert loss.item() == pytest.approx(alone[name]["losses"][step], rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, rule.clip)
        optimizer.step()


def train_and_save_rules(layout, folder, start, steps, dropout=0.1):
    """Return rule -> result of `train_and_save`."""
    return {
        name: train_and_save(family, layout, f"{folder}/{name}", start, steps, dropout=dropout, optimizer=rule)
        for name, (family, rule) in RULES.items()
    }


@pytest.mark.parametrize(
    "name", ["DP2 distributed optimizer", pytest.param("PP2 interleaved", marks=pytest.mark.drill)]
)
def test_resume_is_bit_identical(tmp_path, name):
    layout = LAYOUTS[name]
    uninterrupted = run_ranks(layout.processes, train_and_save_rules, layout, str(tmp_path / "whole"), 0, STEPS)[0]
    run_ranks(layout.processes, train_and_save_rules, layout, str(tmp_path / "cut"), 0, 1)
    # Two steps: a wrong step count shows in the second.
    resumed = run_ranks(layout.processes, train_and_save_rules, layout, str(tmp_path / "cut"), 1, 2)[0]
    for rule in RULES:
        assert resumed[rule]["losses"] == uninterrupted[rule]["losses"][1:], rule
        assert resumed[rule]["norms"] == uninterrupted[rule]["norms"][1:], rule


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("TP2+SP", "DP2 distributed optimizer", marks=pytest.mark.drill),
        ("PP2xDP2 distributed optimizer", "TP2+SP"),
    ],
)
def test_resume_in_another_layout(tmp_path, alone, before, after):
    before, after = LAYOUTS[before], LAYOUTS[after]
    run_ranks(before.processes, train_and_save_rules, before, str(tmp_path), 0, 1, 0.0)
    resumed = run_ranks(after.processes, train_and_save_rules, after, str(tmp_path), 1, 2, 0.0)[0]
    for rule in RULES:
        assert resumed[rule]["losses"] == pytest.approx(alone[rule]["losses"][1:], rel=1e-5), rule
        assert resumed[rule]["norms"] == pytest.approx(alone[rule]["norms"][1:], rel=1e-5), rule
