"""Full sharding frees weights and gradients between uses, as planned, and is refused where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megaptm.config import Layout, load_config
from megaptm.errors import UserError
from megaptm.parallel.full_sharding import _add_to_main_grad
from megaptm.parallel.gradients import MainGrad
from megaptm.plan.memory import estimate_memory
from megaptm.plan.workload import Workload
from tests import ROOT
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, LENGTH, ROWS, batch, losses_of, micro_batches, tiny
from tests.ranks import run_ranks

SHARDED = Layout(microbatch=2, data=2, full_sharding=True)


def bytes_in_step(family: str, layout: Layout, precision: str) -> dict[str, Any]:
    """Return the peak bytes of weights and gradients in a step, and the bytes after it. Runs in a rank."""
    from megaptm.parallel import full_sharding

    full_sharding.ALIGNMENT = 1  # padding would be most of a tiny bias
    weights, gradients = [0], [0]
    allocate = full_sharding._allocate
    engine = filled_engine(tiny(family), layout, ADAM, losses=losses_of(family), seed=7, precision=precision)
    flat = [flat for unit in engine.model.sharded.units for flat in unit.flat]

    def shards() -> int:
        return sum(size(shard._shard_R) for shard in flat)

    def full_weights() -> int:
        return sum(shard._full_P.untyped_storage().size() for shard in flat)

    def full_gradients() -> int:
        return sum(shard._full_gradient_P.untyped_storage().size() for shard in flat)

    def allocate_and_count(tensor: Any) -> None:
        allocate(tensor)
        weights.append(shards() + full_weights())
        gradients.append(sum(size(shard.gradient_R) for shard in flat) + full_gradients())

    full_sharding._allocate = allocate_and_count
    batches = micro_batches(batch(family, 0), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None
    engine.train_step(batches, step=0, lr=1e-3)
    return {"weights": max(weights), "gradients": max(gradients), "left": full_weights() + full_gradients()}


def size(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize(
    "layout", [SHARDED, SHARDED.model_copy(update={"recompute": "full"})], ids=["", "recomputation"]
)
def test_memory_is_freed_as_planned(family: str, precision: str, layout: Layout) -> None:
    lengths = {name: LENGTH // (1 + index) for index, name in enumerate(tiny(family).family.stacks)}
    work = Workload(spec=tiny(family), lengths=lengths, layout=layout, batch=ROWS, precision=precision, optimizer=ADAM)
    [planned] = estimate_memory(work)
    for measured in run_ranks(2, bytes_in_step, family, layout, precision):
        assert measured["left"] == 0
        assert measured["weights"] == pytest.approx(planned.weights, rel=0.02)
        assert measured["gradients"] == pytest.approx(planned.gradients, rel=0.02)


def test_gradient_of_autograd_is_added_to_that_of_a_module() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.main_grad = torch.full((2,), 3.0)  # type: ignore[attr-defined]
    MainGrad(parameter, overlaps=False).mark_added()
    parameter.register_post_accumulate_grad_hook(_add_to_main_grad)
    parameter.sum().backward()
    assert parameter.main_grad.tolist() == [4.0, 4.0]  # type: ignore[attr-defined]
    assert parameter.grad is None


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        ("gpt2/small", ["layout.data=1"], "layout.full_sharding needs layout.data or layout.context of at least 2"),
        (
            "gpt2/small",
            ["layout.data=2", "layout.pipeline=2"],
            "layout.full_sharding gathers the weights of each layer",
        ),
        ("reformer/tiny", ["layout.data=2"], "the parts of the layers of .* run one by one"),
    ],
)
def test_impossible_full_sharding_is_refused(config: str, changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_config(ROOT / "configs" / f"{config}.yaml", ["layout.full_sharding=true", *changes])
