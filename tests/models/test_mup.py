"""muP: with the learning rate of a narrow model, outputs of a wide one change as much."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from megaptm.config import Layout, OptimizerConfig, load_config
from megaptm.config.mup_rules import mup_errors
from megaptm.errors import UserError
from megaptm.families import CATALOGUE
from megaptm.models.head_costs import projected_norms
from megaptm.models.model import Model
from megaptm.models.mup import MupFactors, mup_factors
from megaptm.spec import ModelSpec, Size, change
from tests.engines import filled_engine
from tests.layouts.cases import VOCABULARY, batch, losses_of, micro_batches
from tests.models.tiny import tiny_spec
from tests.ranks import run_ranks
from tests.train.runs import CONFIGS

ADAM = OptimizerConfig(lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
BASE_WIDTH, WIDTHS = 64, (64, 128, 256, 512)
ALONE = Layout(microbatch=4)
LAYOUTS = {
    "TP2": Layout(microbatch=4, tensor=2),
    "DP2 distributed optimizer": Layout(microbatch=2, data=2, distributed_optimizer=True),
    "DP2 full sharding": Layout(microbatch=2, data=2, full_sharding=True),
}


def spec_of(family: str, width: int, base: int | None) -> ModelSpec:
    size = Size(layers=2, width=width, heads=width // 32, ffn=4 * width)
    return ModelSpec(
        family=CATALOGUE[family], size=size, vocabulary=VOCABULARY, context=64, dropout=0.0, mup_base_width=base
    )


def losses_of_steps(family: str, width: int, base: int | None, layout: Layout, settings: OptimizerConfig = ADAM):
    """Return the losses of four training steps."""
    engine = filled_engine(spec_of(family, width, base), layout, settings, losses=losses_of(family), seed=1)
    losses = []
    for step in range(4):
        batches = micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
        losses.append(engine.train_step(batches, step=step, lr=settings.lr).loss)
    return losses


def outputs(model: Model, family: str) -> dict[str, Tensor]:
    """Return the outputs of feed-forwards, and the logits, for the first batch."""
    layer_outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: layer_outputs.update({name: output}))
        for name, module in model.named_modules()
        if name.endswith("ffn.down")
    ]
    model.eval()
    with torch.no_grad():
        logits = model({name: field for name, field in batch(family, 0).items() if not name.endswith("labels")}).logits
    for hook in hooks:
        hook.remove()
    return {**layer_outputs, **logits}


def changed_outputs(family: str, base: int | None) -> dict[str, list[float]]:
    """Return the root mean square of the change of outputs in four steps, by width."""
    changes: dict[str, list[float]] = {}
    for width in WIDTHS:
        engine = filled_engine(spec_of(family, width, base), ALONE, ADAM, losses=losses_of(family), seed=1)
        model = engine.model.stages[0].model
        first = outputs(model, family)
        for step in range(4):
            engine.train_step(micro_batches(batch(family, step), ALONE, 0), step=step, lr=ADAM.lr)
        for name, last in outputs(model, family).items():
            changes.setdefault(name, []).append(float((last - first[name]).square().mean().sqrt()))
    return changes


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "llama"])
def test_changes_of_outputs_do_not_grow_with_the_width(family):
    [with_mup] = run_ranks(1, changed_outputs, family, BASE_WIDTH)
    for name, by_width in with_mup.items():
        assert max(by_width) < 1.5 * by_width[0], name
    [without] = run_ranks(1, changed_outputs, family, None)
    assert max(by_width[-1] / by_width[0] for by_width in without.values()) > 8


def test_base_width_changes_nothing():
    assert run_ranks(1, losses_of_steps, "llama", 64, 64, ALONE) == run_ranks(
        1, losses_of_steps, "llama", 64, None, ALONE
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_no_result(layout):
    [alone] = run_ranks(1, losses_of_steps, "gpt2", 128, 64, ALONE)
    for actual in run_ranks(LAYOUTS[layout].processes, losses_of_steps, "gpt2", 128, 64, LAYOUTS[layout]):
        assert actual == pytest.approx(alone, rel=1e-5)


def multipliers(decays_all: bool) -> dict[str, tuple[float, float]]:
    """Return the multipliers of learning rate and weight decay of each parameter."""
    settings = ADAM.model_copy(update={"weight_decay_on": "all" if decays_all else "matrices"})
    engine = filled_engine(spec_of("gpt2", 256, 64), ALONE, settings, losses={"lm": 1.0}, seed=1)
    by_id = {
        id(parameter): (group["lr_mult"], group["wd_mult"])
        for group in engine.optimizer.rule.param_groups
        for parameter in group["params"]
    }
    return {part.placement.name: by_id[id(part.master)] for part in engine.optimizer.parts}


@pytest.mark.parametrize("decays_all", [False, True])
def test_decay_of_a_step_does_not_depend_on_the_width(decays_all):
    [multipliers_by_name] = run_ranks(1, multipliers, decays_all)
    assert multipliers_by_name["decoder.0.ffn.up.weight"] == (0.25, 4.0)
    assert multipliers_by_name["embed.token.weight"] == (1.0, 1.0)
    assert multipliers_by_name["decoder.final.weight"] == (0.25, 4.0 if decays_all else 0.0)
    assert {rate * decay for rate, decay in multipliers_by_name.values()} == ({1.0} if decays_all else {0.0, 1.0})


@pytest.mark.parametrize("family", CATALOGUE)
def test_projected_norms_exist(family):
    spec = tiny_spec(family)
    names = {name for name, _ in Model(spec).named_parameters()}
    norms = {f"{norm}.weight" for norm in projected_norms(spec) if norm is not None}
    fixed = {f"{stack}.final.weight" for stack, block in spec.family.stacks.items() if block.norm.kind == "layer-fixed"}
    assert norms - fixed <= names


def test_narrow_table_needs_no_factor():
    size = Size(layers=2, width=256, heads=4, ffn=1024, embedding=64)
    spec = ModelSpec(family=CATALOGUE["albert"], size=size, vocabulary=100, context=64, dropout=0.0, mup_base_width=64)
    assert mup_factors(spec, "head.mlm.norm.weight", 1) == MupFactors()
    assert mup_factors(spec, "head.mlm.transform.weight", 2) == MupFactors(0.5, 0.25)


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        ("gpt2/tiny", ["optimizer.name=lamb"], r"scales the learning rates of adamw and stable-adamw, not of .*lamb"),
        ("gpt1/tiny", [], "gpt1, which has no norm between its last layer and the vocabulary: remove it"),
        ("gemma2/tiny", [], "multiplies embeddings by the square root of the width"),
        ("vit/tiny", [], "whose initial values have a rule of their own"),
        ("elmo/tiny", [], "whose layers are of another kind"),
    ],
)
def test_undefined_model_is_rejected(config, overrides, expected):
    with pytest.raises(UserError, match=expected):
        load_config(CONFIGS / f"{config}.yaml", ["model.mup_base_width=32", *overrides])


@pytest.mark.parametrize("kind", ["layer-fixed", "rms-unit-offset"])
def test_norm_without_factor_is_rejected(kind):
    """The weight of the norm before the vocabulary is the multiplier of logits."""
    config = load_config(CONFIGS / "gpt2/tiny.yaml", ["model.mup_base_width=32"])
    gpt2 = CATALOGUE["gpt2"]
    family = change(gpt2, stacks={"decoder": change(gpt2.last_block, norm={"kind": kind})})
    spec = replace(spec_of("gpt2", 64, 32), family=family)
    assert [*mup_errors(config, spec)] == [
        "model.mup_base_width (32) is not defined for gpt2, whose norms have no weight, or 1 plus a weight: remove it."
    ]
