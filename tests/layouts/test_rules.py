"""The update rules on every layout: the losses of one process, and checkpoints that any layout continues."""

import pytest
import torch

from megaptm.config import Layout, OptimizerConfig
from megaptm.config.schema import AdafactorConfig
from megaptm.models import Model, fill
from tests.layouts.cases import batch, losses_of, micro_batches, tiny, train_and_save, train_steps
from tests.models.tiny import mean_losses
from tests.ranks import run_ranks

CLIP = {"clip": 1.0, "weight_decay": 0.1}
RULES = {
    "adamw as BERT": ("gpt2", OptimizerConfig(name="adamw", lr=1e-3, eps=1e-6, bias_correction=False, **CLIP)),
    "sgd": ("gpt2", OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, **CLIP)),
    "adagrad": ("bert", OptimizerConfig(name="adagrad", lr=0.02, initial_accumulator=0.1, **CLIP)),
    "lamb": ("bert", OptimizerConfig(name="lamb", lr=0.02, eps=1e-6, **CLIP)),
    "adafactor as T5": (
        "t5",
        OptimizerConfig(name="adafactor", lr=0.03, adafactor=AdafactorConfig(min_dim_size_to_factor=8)),
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
    "TP2xDP2 distributed optimizer": Layout(microbatch=2, tensor=2, data=2, distributed_optimizer=True),
    "PP2xDP2 distributed optimizer": Layout(microbatch=2, pipeline=2, data=2, distributed_optimizer=True),
}
STEPS = 3


def train_by_each(layout, precision="fp32"):
    """Rule -> what `train_steps` says of it, in one world."""
    return {
        name: train_steps(family, layout, STEPS, precision, optimizer=rule) for name, (family, rule) in RULES.items()
    }


@pytest.fixture(scope="module")
def alone():
    return run_ranks(1, train_by_each, Layout(microbatch=2))[0]


IN_EACH_RUN = ("PP2 interleaved", "TP2xPP2", "TP2xDP2 distributed optimizer")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_EACH_RUN else pytest.mark.drill)
        for name in LAYOUTS
        if name != "PP2xDP2 distributed optimizer"
    ],
)
def test_no_layout_changes_a_rule(alone, name):
    layout = LAYOUTS[name]
    for found in run_ranks(layout.processes, train_by_each, layout):
        for rule in RULES:
            for what in ("losses", "norms", "evaluation"):
                assert found[rule][what] == pytest.approx(alone[rule][what], rel=1e-5), (rule, what)


@pytest.mark.parametrize("name", [pytest.param("TP2", marks=pytest.mark.drill), "DP2 distributed optimizer"])
def test_in_bf16_a_rule_moves_float32_copies(alone, name):
    """Weights in bfloat16 alone would not be moved by most of these steps."""
    layout = LAYOUTS[name]
    for found in run_ranks(layout.processes, train_by_each, layout, "bf16"):
        for rule in RULES:
            assert found[rule]["losses"] == pytest.approx(alone[rule]["losses"], rel=5e-3), rule


def decaying(settings, layout):
    """Names of what decays."""
    from megaptm.parallel.engine import Engine

    engine = Engine(tiny("bert"), layout, settings, losses=losses_of("bert"), seed=7)
    decays = {id(one) for group in engine.optimizer.rule.param_groups if group["wd_mult"] for one in group["params"]}
    return {part.place.name for part in engine.optimizer.parts if id(part.master) in decays}


@pytest.mark.parametrize("name", ["adamw", "adafactor"])
def test_norms_and_biases_do_not_decay_unless_the_config_says_so(name):
    shapes = {name: one.dim() for name, one in Model(tiny("bert")).named_parameters()}
    settings = OptimizerConfig(name=name, lr=0.01, weight_decay=0.1)
    layout = LAYOUTS["DP2 distributed optimizer"]
    assert set.union(*run_ranks(2, decaying, settings, layout)) == {name for name in shapes if shapes[name] > 1}
    everything = settings.model_copy(update={"weight_decay_on": "all"})
    assert set.union(*run_ranks(2, decaying, everything, layout)) == {*shapes}


def copies(rule, layout):
    """Name -> values, of tensors that several stages hold, after some steps."""
    from megaptm.parallel.engine import Engine

    family, settings = RULES[rule]
    engine = Engine(tiny(family), layout, settings, losses=losses_of(family), seed=7)
    for step in range(STEPS):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data)
        engine.step(batches, step=step, lr=settings.lr)
    return {
        part.place.name: part.parameter.tolist()
        for part in engine.optimizer.parts
        if hasattr(part.parameter, "shared_embedding")
    }


@pytest.mark.parametrize("rule", ["lamb", "adafactor as T5"])
def test_copies_on_other_stages_stay_equal_to_the_last_bit(rule):
    found = run_ranks(4, copies, rule, LAYOUTS["PP2xDP2 distributed optimizer"])
    assert found[0]
    assert found[0] == found[1] == found[2] == found[3]


class UncorrectedAdam(torch.optim.Optimizer):
    """google-research/bert, optimization.py: running means as they are."""

    def __init__(self, groups, *, lr):
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                mean, square = self.state.setdefault(one, [torch.zeros_like(one), torch.zeros_like(one)])
                mean.mul_(0.9).add_(one.grad, alpha=0.1)
                square.mul_(0.999).add_(one.grad.square(), alpha=0.001)
                one.sub_(mean / (square.sqrt() + 1e-6) + group["weight_decay"] * one, alpha=group["lr"])


PLAIN = {
    "adamw as BERT": lambda groups, rule: UncorrectedAdam(groups, lr=rule.lr),
    "sgd": lambda groups, rule: torch.optim.SGD(groups, lr=rule.lr, momentum=0.9),
    "adagrad": lambda groups, rule: torch.optim.Adagrad(groups, lr=rule.lr, initial_accumulator_value=0.1, eps=1e-8),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_rule_does_what_it_does_in_a_loop_without_an_engine(alone, name):
    family, rule = RULES[name]
    model = Model(tiny(family))
    fill(model, seed=7)
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": rule.weight_decay},
        {"params": [one for one in parameters if one.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = PLAIN[name](groups, rule)
    for step in range(STEPS):
        loss = mean_losses(model(batch(family, step)))
        assert loss.item() == pytest.approx(alone[name]["losses"][step], rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, rule.clip)
        optimizer.step()


def save_each(layout, folder, start, steps, dropout=0.1):
    """Rule -> what `train_and_save` says of it."""
    return {
        name: train_and_save(family, layout, f"{folder}/{name}", start, steps, dropout=dropout, optimizer=rule)
        for name, (family, rule) in RULES.items()
    }


@pytest.mark.parametrize("name", ["DP2 distributed optimizer", "PP2 interleaved"])
def test_a_rule_continues_to_the_last_bit(tmp_path, name):
    layout = LAYOUTS[name]
    whole = run_ranks(layout.processes, save_each, layout, str(tmp_path / "whole"), 0, STEPS)[0]
    run_ranks(layout.processes, save_each, layout, str(tmp_path / "cut"), 0, 1)
    # Two steps: a wrong count of those before shows in the second.
    rest = run_ranks(layout.processes, save_each, layout, str(tmp_path / "cut"), 1, 2)[0]
    for rule in RULES:
        assert rest[rule]["losses"] == whole[rule]["losses"][1:], rule
        assert rest[rule]["norms"] == whole[rule]["norms"][1:], rule


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("TP2+SP", "DP2 distributed optimizer"),
        ("PP2xDP2 distributed optimizer", "TP2+SP"),
    ],
)
def test_another_layout_continues_what_a_rule_knows(tmp_path, alone, before, after):
    before, after = LAYOUTS[before], LAYOUTS[after]
    run_ranks(before.processes, save_each, before, str(tmp_path), 0, 1, 0.0)
    rest = run_ranks(after.processes, save_each, after, str(tmp_path), 1, 2, 0.0)[0]
    for rule in RULES:
        assert rest[rule]["losses"] == pytest.approx(alone[rule]["losses"][1:], rel=1e-5), rule
        assert rest[rule]["norms"] == pytest.approx(alone[rule]["norms"][1:], rel=1e-5), rule
