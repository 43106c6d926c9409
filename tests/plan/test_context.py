"""Context ranks in plans: activations equal autograd's, counts equal a dry run's, and a search tries them."""

from __future__ import annotations

import pytest
import torch

from megaptm.config import Layout, load_config
from megaptm.layers.context import ContextRanks, UsesContextRanks
from megaptm.models.initial import init_weights
from megaptm.models.model import Model
from megaptm.parallel.context import ContextHook
from megaptm.plan import activations
from megaptm.plan.machine import load_machine
from megaptm.plan.plan import make_plan
from megaptm.plan.search import search_layouts
from megaptm.plan.workload import Workload
from megaptm.spec import change
from tests.models.tiny import mean_losses, tiny_batch
from tests.plan.test_dry_run import dry_run
from tests.plan.test_memory import VARIANTS_OF_LAYERS, small

H100 = load_machine("h100-80g")
LONG = ["data.sequence=32768", "model.context=32768", "train.batch=64"]


def saved_bytes(layers: int) -> int:
    """Return the bytes that the forward pass of one of two context ranks saves, without weights."""
    spec = small(change(VARIANTS_OF_LAYERS["bert"], dropout=0.0, heads=("mlm",)), layers=layers)
    model, context = Model(spec), ContextRanks(0, 2, lambda part: torch.cat([part, part]))
    init_weights(model, seed=7)
    for module in model.modules():
        if isinstance(module, UsesContextRanks):
            module.context = context
    fields = ContextHook(spec, context).prepare_batch(tiny_batch("bert", rows=2, sequence=64))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        mean_losses(model.train()(fields).losses)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in saved}
    return sum(nbytes for pointer, nbytes in storages.items() if pointer not in weights)


def test_activations_of_a_layer_equal_autograd() -> None:
    work = Workload(
        spec=small(change(VARIANTS_OF_LAYERS["bert"], dropout=0.0), layers=2),
        lengths={"encoder": 64},
        layout=Layout(microbatch=2, context=2),
        batch=2,
        precision="fp32",
        has_mask=True,
    )
    assert saved_bytes(3) - saved_bytes(2) == pytest.approx(activations.layer_bytes(work, "encoder"), rel=0.03)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("gpt2/small.yaml", ["layout={context: 2, tensor: 2, pipeline: 2, microbatch: 1, sequence_parallel: true}"]),
        ("bert/base.yaml", ["layout={context: 4, microbatch: 2}", "objective={masked-lm: {}}"]),
    ],
)
def test_dry_run_agrees(config: str, words: list[str]) -> None:
    assert dry_run(config, *words)["agrees"]


def test_context_ranks_divide_activations_but_for_keys() -> None:
    plans = [
        make_plan(load_config("gpt3/xl", [*LONG, "layout={microbatch: 1, data: 8}", f"layout.context={context}"]), H100)
        for context in (1, 4)
    ]
    alone, divided = (plan.memory[0].activations for plan in plans)
    # 24 layers of width 2,048 in bf16: keys and values, and a copy of the attention output.
    stream = 24 * 32768 * 2048 * 2
    assert divided == pytest.approx((alone - 2 * stream) / 4 + 2 * stream + stream / 4, rel=0.01)
    assert plans[0].step.context == 0 < plans[1].step.context


def test_search_tries_context_ranks_for_long_sequences() -> None:
    config = load_config("gpt3/xl", LONG)
    contexts = {candidate.layout.context for candidate in search_layouts(config, H100, 16).fitting}
    assert contexts == {1, 2, 4, 8}


def test_search_tries_no_context_ranks_for_short_sequences() -> None:
    result = search_layouts(load_config("gpt2/small"), H100, 8)
    assert {candidate.layout.context for candidate in (*result.fitting, *result.too_large)} == {1}
