"""Training steps of compiled layers, and what the compiler did. Imported by worker processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from megaptm.config import Layout
from tests.engines import filled_engine
from tests.layouts.cases import ADAM, batch, losses_of, micro_batches, tiny, train_and_save


def steps_of(
    family: str,
    layout: Layout,
    backend: str | Callable[..., Any] | None,
    dropout: float = 0.0,
    steps: int = 3,
) -> dict[str, Any]:
    """Return losses and gradient norms of training steps, gradients of the last one, losses of an evaluation, numbers
    of graphs and graph breaks, and what was logged. `backend`: of the compiler; None: layers are eager."""
    import torch._dynamo
    from torch._dynamo.utils import counters

    from megaptm.parallel import compiled
    from megaptm.parallel.full_sharding import is_sharded, own_range

    torch._dynamo.reset()
    counters.clear()
    log: list[str] = []
    with patch.object(compiled, "BACKEND", backend or compiled.BACKEND):
        engine = filled_engine(
            tiny(family, dropout=dropout),
            layout,
            ADAM,
            losses=losses_of(family),
            seed=7,
            global_tokens="global_tokens" in batch(family, 0),
            compiles=backend is not None,
            log=log.append,
        )

    def local(step: int) -> list[dict[str, torch.Tensor]] | None:
        return micro_batches(batch(family, step), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None

    results = [engine.train_step(local(step), step=step, lr=ADAM.lr) for step in range(steps)]
    graphs = counters["stats"]["unique_graphs"]
    gradients = {
        placement.name: (own_range(parameter).gradient if is_sharded(parameter) else main_grad(parameter)).clone()
        for stage in engine.model.stages
        for placement, parameter in stage.placed_parameters()
        if parameter.requires_grad
    }
    return {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "gradients": gradients,
        "evaluation": engine.evaluate(local(99)).losses,
        "graphs": graphs,
        "breaks": dict(counters["graph_break"]),
        "log": log,
    }


def main_grad(parameter: torch.Tensor) -> torch.Tensor:
    gradient: torch.Tensor = parameter.main_grad  # type: ignore[attr-defined]
    return gradient


def largest_difference(results: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference of losses and norms, relative to each, and of gradients, relative to the largest
    gradient of the model."""
    numbers = zip(
        [*results["losses"], *results["norms"], *results["evaluation"].values()],
        [*expected["losses"], *expected["norms"], *expected["evaluation"].values()],
        strict=True,
    )
    # With full sharding a rank may own nothing of a parameter.
    owned = {name: gradient for name, gradient in expected["gradients"].items() if gradient.numel()}
    scale = max(float(gradient.abs().max()) for gradient in owned.values())
    gradients = (float((results["gradients"][name] - gradient).abs().max()) / scale for name, gradient in owned.items())
    return max(*(abs(own - other) / abs(other) for own, other in numbers), *gradients)


def resume_compiled(family: str, layout: Layout, folder: str, start: int, steps: int) -> dict[str, Any]:
    """`cases.train_and_save` with compiled layers and dropout, in a process that has compiled nothing yet."""
    import torch._dynamo

    torch._dynamo.reset()
    return train_and_save(family, layout, folder, start, steps, dropout=0.1, compiles=True)


def refused(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """Fail as a compiler without a C++ compiler does."""
    raise RuntimeError("no compiler was found\nbelow /usr/bin")
