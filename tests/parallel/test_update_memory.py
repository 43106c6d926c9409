"""Temporary memory of an update: bounded by batches of tensors, and planned."""

from unittest.mock import patch

import pytest
from torch.profiler import ProfilerActivity, profile

from megaptm.config import Layout, OptimizerConfig
from megaptm.families import CATALOGUE
from megaptm.plan.memory import estimate_memory
from megaptm.plan.workload import Workload
from megaptm.spec import ModelSpec, Size
from tests.engines import filled_engine
from tests.layouts.cases import VOCABULARY, batch, micro_batches
from tests.ranks import run_ranks

ALONE, COPIED = Layout(microbatch=4), Layout(microbatch=4, data=2)
DIVIDED = Layout(microbatch=4, data=2, distributed_optimizer=True)
SPEC = ModelSpec(
    family=CATALOGUE["gpt2"],
    size=Size(layers=4, width=256, heads=4, ffn=1024),
    vocabulary=VOCABULARY,
    context=64,
    dropout=0.0,
)
SMALL_BATCH = 1 << 18
"""Elements of one matrix of the feed-forward."""


def update(name: str, layout: Layout, batch_size: int | None) -> tuple[float, int]:
    """Return the loss after two steps, and the peak of temporary bytes in the update after them."""
    batch_size = 1 << 27 if batch_size is None else batch_size
    with patch("megaptm.parallel.optimizers.part.UPDATE_BATCH", batch_size):
        settings = OptimizerConfig(lr=1e-3, name=name, betas=(0.9, 0.95))
        engine = filled_engine(SPEC, layout, settings, losses={"lm": 1.0}, seed=1)
        batches = micro_batches(batch("gpt2", 0), layout, engine.ranks.data)
        losses = [engine.train_step(batches, step=step, lr=settings.lr).loss for step in range(3)]
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            engine.optimizer.rule.step()
    held = peak = 0
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return losses[-1], peak


@pytest.mark.parametrize(("name", "min_ratio"), [("stable-adamw", 0.999), ("muon", 0.7)])
def test_temporary_bytes_are_planned(name, min_ratio):
    [(_, peak)] = run_ranks(1, update, name, ALONE, None)
    settings = OptimizerConfig(lr=1e-3, name=name, betas=(0.9, 0.95))
    work = Workload(spec=SPEC, lengths={"decoder": 8}, layout=ALONE, batch=4, precision="fp32", optimizer=settings)
    [memory] = estimate_memory(work)
    assert memory.update > 0
    assert min_ratio <= peak / (memory.update + memory.activations + memory.logits + memory.workspace) <= 1.001


@pytest.mark.parametrize("layout", [ALONE, COPIED, DIVIDED], ids=["one process", "DP2", "DP2 distributed optimizer"])
@pytest.mark.parametrize("name", ["stable-adamw", "muon"])
def test_batches_bound_the_memory(name, layout):
    processes = layout.processes
    for small, large in zip(
        run_ranks(processes, update, name, layout, SMALL_BATCH),
        run_ranks(processes, update, name, layout, None),
        strict=True,
    ):
        assert small[0] == pytest.approx(large[0], rel=1e-7)
        assert small[1] < large[1] / 2


def losses_by_adamw(layout: Layout, offload: bool, batch_size: int) -> list[float]:
    with patch("megaptm.parallel.optimizers.part.UPDATE_BATCH", batch_size):
        settings = OptimizerConfig(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, offload=offload)
        engine = filled_engine(SPEC, layout, settings, losses={"lm": 1.0}, seed=1)
        return [
            engine.train_step(micro_batches(batch("gpt2", step), layout, engine.ranks.data), step=step, lr=1e-3).loss
            for step in range(4)
        ]


@pytest.mark.parametrize("layout", [ALONE, DIVIDED], ids=["one process", "DP2 distributed optimizer"])
def test_offloaded_moments_give_the_same_weights(layout):
    expected = run_ranks(layout.processes, losses_by_adamw, layout, False, 1 << 27)
    assert run_ranks(layout.processes, losses_by_adamw, layout, True, SMALL_BATCH) == expected


def test_plan_has_no_moments_on_the_device():
    def planned(offload):
        settings = OptimizerConfig(lr=1e-3, offload=offload)
        work = Workload(spec=SPEC, lengths={"decoder": 64}, layout=ALONE, batch=4, optimizer=settings)
        [memory] = estimate_memory(work)
        return memory

    assert planned(True).optimizer == planned(False).optimizer / 3  # the float32 weights stay
