"""A loss over all rows of the global batch: what one pass over the whole batch says, however the rows are laid out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from megaptm.checkpoint.store import Store
from megaptm.config import CommunicationConfig, Layout, OptimizerConfig
from megaptm.errors import UserError
from megaptm.layers.attention import Attend
from megaptm.models import build_model, fill, initial_value
from tests.layouts.cases import ADAM, ROWS, batch, losses_of, micro_batches, tiny, train_and_save
from tests.models.pairs import PairsHead
from tests.ranks import run_ranks

FAMILY = "two towers, compared over all rows"


def first_step(layout: Layout, dropout: float, communication: CommunicationConfig | None = None) -> dict[str, Any]:
    """The first step's losses and gradient norm, and an evaluation before it, by the engine."""
    from megaptm.parallel.engine import Engine

    spec, losses = tiny(FAMILY, dropout=dropout), losses_of(FAMILY)
    engine = Engine(spec, layout, ADAM, losses=losses, seed=7, communication=communication)
    mine = [micro_batches(batch(FAMILY, 0), layout, engine.ranks.data) if engine.ranks.tensor == 0 else None][0]
    evaluated = engine.evaluate(mine).losses
    done = engine.step(mine, step=0, lr=0.0)
    return {"evaluated": evaluated, "losses": done.losses, "norm": done.gradient_norm, "counts": done.counts}


def plainly(dropout: float) -> dict[str, Any]:
    """The same by torch alone: one model, one batch, one backward pass."""
    from megaptm.parallel.groups import open_groups, seed_step

    ranks = open_groups(Layout(microbatch=8))
    model, fields = build_model(tiny(FAMILY, dropout=dropout)), batch(FAMILY, 0)
    fill(model, seed=7)
    with torch.no_grad():
        evaluated = {name: (loss / count).item() for name, (loss, count) in model.eval()(fields).items()}
    seed_step(7, 0, ranks)
    losses = {name: loss / count for name, (loss, count) in model.train()(fields).items()}
    sum(weight * losses[name] for name, weight in losses_of(FAMILY).items()).backward()
    norm = torch.stack([one.grad.norm() for one in model.parameters() if one.grad is not None]).norm().item()
    return {"evaluated": evaluated, "losses": {name: loss.item() for name, loss in losses.items()}, "norm": norm}


LAYOUTS = {
    "one process, micro-batches of one row": Layout(microbatch=1),
    "DP2": Layout(microbatch=2, data=2),
    "DP4 distributed optimizer": Layout(microbatch=1, data=4, distributed_optimizer=True),
    "TP2 + SP, recompute": Layout(microbatch=4, tensor=2, sequence_parallel=True, recompute="full"),
    "DP2 x PP2 interleaved": Layout(microbatch=1, data=2, pipeline=2, virtual=2),
}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return run_ranks(1, plainly, 0.0)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_loss_and_gradient_are_those_of_the_whole_batch(reference: dict[str, Any], layout: str) -> None:
    for result in run_ranks(LAYOUTS[layout].processes, first_step, LAYOUTS[layout], 0.0):
        assert result["evaluated"] == pytest.approx(reference["evaluated"], rel=1e-5)
        assert result["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)
        assert result["counts"]["pairs"] == 5


def test_messages_beside_the_passes_change_nothing(reference: dict[str, Any]) -> None:
    layout, communication = LAYOUTS["DP2 x PP2 interleaved"], CommunicationConfig(overlap_p2p_comm=True)
    for result in run_ranks(layout.processes, first_step, layout, 0.0, communication):
        assert result["evaluated"] == pytest.approx(reference["evaluated"], rel=1e-5)
        assert result["losses"] == pytest.approx(reference["losses"], rel=1e-5)
        assert result["norm"] == pytest.approx(reference["norm"], rel=1e-5)


def compared(layout: Layout) -> list[tuple[int, int]]:
    """The own rows and all rows of each comparison in a step of this rank."""
    really, sizes = PairsHead.compare, []

    def compare(head: PairsHead, features: Tensor, answers: Tensor, own: slice) -> Tensor:
        sizes.append((len(range(*own.indices(len(features)))), len(features)))
        return really(head, features, answers, own)

    with patch.object(PairsHead, "compare", compare):
        first_step(layout, 0.0)
    return sizes


def test_a_data_rank_compares_its_own_rows_with_all() -> None:
    for sizes in run_ranks(4, compared, Layout(microbatch=1, data=4)):
        assert {*sizes} == {(ROWS // 4, ROWS)}


def refused(name: str, wrong: Callable[[Tensor], Tensor]) -> str:
    """What is said of a head one of whose functions gives something else."""
    really = getattr(PairsHead, name)
    with (
        patch.object(PairsHead, name, lambda *given, **batch: wrong(really(*given, **batch))),
        pytest.raises(UserError) as error,
    ):
        first_step(Layout(microbatch=4), 0.0)
    return str(error.value)


def halved(features: Tensor) -> Tensor:
    return features.bfloat16()


def one_row(features: Tensor) -> Tensor:
    return features[:1]


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("features", halved, "gave [4, 17] in bfloat16 for 4 rows: it must give [4, F] in float32"),
        ("features", one_row, "gave [1, 17] in float32 for 4 rows"),
        ("compare", one_row, "gave [1] for 8 of 8 rows: it must give the loss of each of the rows `own`"),
    ],
)
def test_a_head_that_gives_something_else_is_refused(name: str, wrong: Callable[[Tensor], Tensor], said: str) -> None:
    assert f"PairsHead.{name} {said}" in run_ranks(1, refused, name, wrong)[0]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_both_passes_draw_the_same_dropout(recompute: str) -> None:
    layout = Layout(microbatch=8, recompute=recompute)
    drawn, plain = run_ranks(1, first_step, layout, 0.3)[0], run_ranks(1, plainly, 0.3)[0]
    assert drawn["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert drawn["norm"] == pytest.approx(plain["norm"], rel=1e-5)
    assert drawn["losses"]["pairs"] != pytest.approx(drawn["evaluated"]["pairs"], rel=1e-4)


def both_passes(layout: Layout) -> tuple[Tensor, Tensor] | None:
    """The features of each row in either pass of a step with dropout, where the head is."""
    from megaptm.parallel.engine import Engine

    engine = Engine(tiny(FAMILY, dropout=0.3), layout, ADAM, losses=losses_of(FAMILY), seed=7)
    really, given = PairsHead.features, []
    with patch.object(
        PairsHead, "features", lambda *streams, **batch: given.append(really(*streams, **batch)) or given[-1]
    ):
        mine = micro_batches(batch(FAMILY, 0), layout, engine.ranks.data)
        engine.step(mine if engine.ranks.tensor == 0 else None, step=0, lr=0.0)
    if not given:
        return None
    half = len(given) // 2
    return torch.cat(given[:half]).detach(), torch.cat(given[half:]).detach()


@pytest.mark.parametrize("layout", ["DP2 x PP2 interleaved", "TP2 + SP, recompute"])
def test_both_passes_draw_the_same_dropout_in_every_layout(layout: str) -> None:
    drawn = [pair for pair in run_ranks(LAYOUTS[layout].processes, both_passes, LAYOUTS[layout]) if pair]
    assert len(drawn) == 2
    for first, second in drawn:
        assert len(first) == ROWS // LAYOUTS[layout].data
        assert torch.equal(first, second)


def passes(layout: Layout, losses: dict[str, float]) -> tuple[int, dict[str, float]]:
    """How often the head is asked for features in an evaluation, and what that says."""
    from megaptm.parallel.engine import Engine

    engine, really, asked = Engine(tiny(FAMILY), layout, ADAM, losses=losses, seed=7), PairsHead.features, []
    with patch.object(PairsHead, "features", lambda *given, **batch: asked.append(1) or really(*given, **batch)):
        found = engine.evaluate(micro_batches(batch(FAMILY, 0), layout, engine.ranks.data)).losses
    return len(asked), found


def test_an_evaluation_of_compared_rows_alone_is_one_pass(reference: dict[str, Any]) -> None:
    for asked, found in run_ranks(2, passes, Layout(microbatch=4, pipeline=2), {"pairs": 1.0}):
        assert asked <= 2
        assert found == {"pairs": pytest.approx(reference["evaluated"]["pairs"], rel=1e-5)}
    [(asked, _)] = run_ranks(1, passes, Layout(microbatch=4), losses_of(FAMILY))
    assert asked == 4


def test_a_batch_of_one_micro_batch_is_passed_once(reference: dict[str, Any]) -> None:
    [(asked, found)] = run_ranks(1, passes, Layout(microbatch=8), losses_of(FAMILY))
    assert asked == 1
    assert found == {name: pytest.approx(one, rel=1e-5) for name, one in reference["evaluated"].items()}


def kernels(layout: Layout) -> list[bool]:
    """Whether attention may take cuDNN's kernel, at each call; and after the step."""
    from megaptm.parallel.engine import Engine

    engine, asked = Engine(tiny(FAMILY), layout, ADAM, losses=losses_of(FAMILY), seed=7), []
    for module in engine.stages[0].modules():
        if isinstance(module, Attend):
            module.register_forward_pre_hook(lambda *_: asked.append(torch.backends.cuda.cudnn_sdp_enabled()))
    engine.step(micro_batches(batch(FAMILY, 0), layout, 0), step=0, lr=0.0)
    return [*asked, torch.backends.cuda.cudnn_sdp_enabled()]


def test_both_passes_take_the_same_kernel_of_attention() -> None:
    """cuDNN's may be refused in the second one alone, where there are gradients; another kernel draws other dropout."""
    *asked, after = run_ranks(1, kernels, Layout(microbatch=4))[0]
    assert len(asked) == 2 * 2 * 4
    assert not any(asked)
    assert after


def temperatures(layout: Layout) -> list[float]:
    """What the model multiplies cosines by, in bfloat16: at first, and after each of two small steps."""
    from megaptm.parallel.engine import Engine

    engine = Engine(tiny("clip"), layout, ADAM, losses=losses_of("clip"), seed=7, precision="bf16")
    head, seen = engine.stages[-1].model.head["image-text"], []
    for step in range(3):
        seen.append(head.scale.exp().item())
        engine.step(micro_batches(batch("clip", step), layout, engine.ranks.data), step=step, lr=1e-4)
    assert head.image.weight.dtype == torch.bfloat16
    return seen


@pytest.mark.parametrize(
    "layout", [Layout(microbatch=4), Layout(microbatch=4, data=2, distributed_optimizer=True)], ids=["one", "DP2"]
)
def test_a_temperature_moves_by_less_than_bfloat16_can_say(layout: Layout) -> None:
    for first, *others in run_ranks(layout.processes, temperatures, layout):
        assert first == pytest.approx(1 / 0.07, rel=1e-6)
        for before, after in pairwise([first, *others]):
            assert 0 < abs(after / before - 1) < 1e-3


EVERY_GRADIENT = {
    "one process, two passes": Layout(microbatch=2),
    "DP2": Layout(microbatch=2, data=2),
    "DP4": Layout(microbatch=2, data=4),
    "TP2 x DP2": Layout(microbatch=2, tensor=2, data=2),
    "PP2": Layout(microbatch=2, pipeline=2),
}
NEAR = 1e-12
"""Of the loss, and of a gradient as a share of its length, or in all if that is less than 1: what is read is a weight,
which rounds, too. In float32 a sum of two sums differs by 2e-6 (TP2 x DP2), which says nothing of what is summed."""


def in_double(family: str, layout: Layout, folder: str, optimizer: OptimizerConfig) -> dict[str, Any]:
    """A step with float64 in the place of float32, wherever the engine, megatron-core or a loss says that."""
    from megaptm.parallel.optimizers import build

    names = {torch: ("float32", "float"), torch.Tensor: ("float",)}
    # What was said when its class was made is float32 for good.
    options = dict.fromkeys(("main_grads", "main_params", "exp_avg", "exp_avg_sq"), torch.float64)
    config = partial(build.MegatronOptimizerConfig, **{f"{name}_dtype": kind for name, kind in options.items()})
    with ExitStack() as patched:
        patched.enter_context(patch.object(build, "MegatronOptimizerConfig", config))
        patched.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float64)
        for place, several in names.items():
            wide = torch.float64 if place is torch else torch.Tensor.double
            for name in several:
                patched.enter_context(patch.object(place, name, wide))
        return train_and_save(family, layout, folder, 0, 1, "fp32", 0.0, 0, optimizer)


def moved(layout: Layout, folder: Path) -> tuple[dict[str, Tensor], float]:
    """All gradients of CLIP, which a step of plain descent moves its weights by; and the loss."""
    plain = OptimizerConfig(name="sgd", lr=1.0)
    [first, *_] = run_ranks(layout.processes, in_double, "clip", layout, str(folder), plain)
    reader, spec, gradients = Store(folder).load(1).reader, tiny("clip"), {}
    for stored in reader.names():
        kind, _, name = stored.partition("/")
        if kind == "weight":
            weight = reader.read(stored).double()
            gradients[name] = initial_value(spec, name, tuple(weight.shape), 7).double() - weight
    return gradients, first["losses"][0]


@pytest.fixture(scope="module")
def moved_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], float]:
    return moved(Layout(microbatch=8), tmp_path_factory.mktemp("alone"))


@pytest.mark.drill
@pytest.mark.parametrize("name", EVERY_GRADIENT)
def test_loss_and_every_gradient_of_clip_are_those_of_one_process(
    moved_alone: tuple[dict[str, Tensor], float], tmp_path: Path, name: str
) -> None:
    gradients, loss = moved(EVERY_GRADIENT[name], tmp_path)
    alone, expected = moved_alone
    assert loss == pytest.approx(expected, rel=NEAR)
    assert gradients.keys() == alone.keys()
    assert "head.image-text.scale" in gradients
    for one, gradient in alone.items():
        assert gradient.norm() > 0
        assert (gradients[one] - gradient).norm() <= NEAR * max(1.0, gradient.norm().item()), one
