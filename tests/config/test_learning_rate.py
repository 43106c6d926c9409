"""The rate of each step is that of the papers' formulas, and of transformers' and torch's schedules where they are.

transformers gives step 0 of a warm-up the rate zero, and would waste it; here the first step has what it gives the
second. So a rise, and what counts steps from one, is compared one step later.
"""

import math

import pytest
import torch
from transformers import get_scheduler
from transformers.optimization import get_wsd_schedule

from megaptm.config import OptimizerConfig, load
from megaptm.config.learning_rate import learning_rate, learning_rate_at, peak_learning_rate
from megaptm.config.read import UncheckedConfig
from megaptm.config.schedule import config_warnings
from megaptm.errors import UserError
from tests import ROOT

WARMUP, STEPS = 10, 50


def ours(decay: str, *, steps: int = STEPS, width: int | None = None, **keys) -> list[float]:
    optimizer = OptimizerConfig(**{"lr": 0.01, "warmup_steps": WARMUP, "decay": decay} | keys)
    return [learning_rate(step, optimizer, steps=STEPS, width=width) for step in range(steps)]


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)


def rates(schedule: torch.optim.lr_scheduler.LRScheduler) -> list[float]:
    """Of one step more than a run has."""
    found = []
    for _ in range(STEPS + 1):
        found.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return found


THEIRS = {
    "constant": ("constant_with_warmup", {}),
    "linear": ("linear", {}),
    "cosine": ("cosine", {}),
    "cosine to a floor": ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    "polynomial": ("polynomial", {"power": 3.0, "lr_end": 1e-3}),
}
OURS = {
    "constant": ours("constant"),
    "linear": ours("linear"),
    "cosine": ours("cosine"),
    "cosine to a floor": ours("cosine", min_lr_ratio=0.1),
    "polynomial": ours("polynomial", power=3.0, min_lr_ratio=0.1),
}


@pytest.mark.parametrize("name", THEIRS)
def test_a_rise_and_a_fall_to_an_end_are_those_of_transformers(name):
    kind, keys = THEIRS[name]
    theirs = rates(get_scheduler(kind, sgd(), WARMUP, STEPS, scheduler_specific_kwargs=keys))
    assert OURS[name] == pytest.approx([*theirs[1 : WARMUP + 1], *theirs[WARMUP:STEPS]], rel=1e-12)


def test_the_inverse_square_root_is_that_of_transformers():
    theirs = rates(get_scheduler("inverse_sqrt", sgd(), WARMUP, STEPS))
    assert ours("rsqrt") == pytest.approx(theirs[1:], rel=1e-12)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_a_rate_that_is_stable_for_a_while_is_that_of_transformers(decay):
    """Warm-up, stable, decay: there by the length of each part."""
    schedule = get_wsd_schedule(sgd(), WARMUP, 15, num_stable_steps=25, decay_type=decay, min_lr_ratio=0.2)
    # Its rise begins at the floor.
    theirs = rates(schedule)[WARMUP:STEPS]
    assert ours(decay, stable_steps=35, min_lr_ratio=0.2)[WARMUP:] == pytest.approx(theirs, rel=1e-12)
    assert ours(decay, stable_steps=35)[:WARMUP] == pytest.approx([0.001 * (step + 1) for step in range(WARMUP)])


def test_a_polynomial_without_a_rise_is_that_of_torch():
    theirs = rates(torch.optim.lr_scheduler.PolynomialLR(sgd(), total_iters=STEPS, power=2.5))
    assert ours("polynomial", power=2.5, warmup_steps=0) == pytest.approx(theirs[:STEPS], rel=1e-9)


def test_noam_is_the_transformers_formula():
    """arXiv:1706.03762, section 5.3; `lr` is a factor, 1 in the paper."""
    formula = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in range(1, 20_001)]
    found = ours("noam", lr=1.0, warmup_steps=4000, width=512, steps=20_000)
    assert found == pytest.approx(formula, rel=1e-12)
    assert ours("noam", lr=2.0, warmup_steps=4000, width=512) == pytest.approx([2 * rate for rate in formula[:STEPS]])


def test_a_run_takes_the_width_of_its_model():
    words = ["optimizer.decay=noam", "optimizer.lr=1.0", "optimizer.warmup_steps=4000", "model.width=512"]
    config = load(ROOT / "configs/gpt2/small.yaml", [*words, "model.heads=8"])
    assert learning_rate_at(config, 3999) == peak_learning_rate(config) == pytest.approx((512 * 4000) ** -0.5)


def test_halving_begins_when_the_held_out_loss_rises_and_goes_on_by_epochs():
    """CoVe's (arXiv:1708.00107, section 4): here after 50 steps, by half for each 20."""
    optimizer = OptimizerConfig(lr=1.0, decay="halving", decay_steps=20, min_lr_ratio=0.1)
    assert {learning_rate(step, optimizer, steps=STEPS) for step in range(STEPS)} == {1.0}
    found = [learning_rate(step, optimizer, steps=STEPS, rose=50) for step in range(50, 150)]
    assert found == [0.5] * 20 + [0.25] * 20 + [0.125] * 20 + [0.1] * 40


def test_halving_asks_for_what_it_needs():
    words = ["optimizer.decay=halving", "optimizer.warmup_steps=0"]
    with pytest.raises(UserError, match=r"optimizer\.decay halving needs optimizer\.decay_steps"):
        load(ROOT / "configs/cove/base.yaml", [*words, "optimizer.decay_steps=null"])
    with pytest.raises(UserError, match=r"optimizer\.decay halving needs train\.validate_every"):
        load(ROOT / "configs/cove/base.yaml", [*words, "optimizer.decay_steps=10", "train.validate_every=null"])


def test_triangular_is_ulmfits_formula():
    """arXiv:1801.06146, equation 3: from 1/ratio of the peak up, in a tenth of the time, and down again."""
    peak, ratio, last = 0.01, 32, 50
    cut = math.floor(last * 0.1)

    def formula(t):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / 0.1 - 1))
        return peak * (1 + p * (ratio - 1)) / ratio

    found = ours("triangular", warmup_steps=cut, min_lr_ratio=1 / ratio)
    assert found == pytest.approx([formula(t) for t in (*range(1, cut + 1), *range(cut, last))], rel=1e-12)


def test_t5_and_palm_stay_for_10_000_steps():
    """arXiv:1910.10683, section 3.1.2: 1 / sqrt(max(n, 10^4)); arXiv:2204.02311, section 5: the same of 10^-2."""
    found = ours("rsqrt", warmup_steps=0, stable_steps=10_000, steps=40_000)
    assert found == pytest.approx([max(n, 10_000) ** -0.5 for n in range(1, 40_001)], rel=1e-12)


@pytest.mark.parametrize("decay", ["cosine", "linear", "polynomial", "rsqrt", "noam", "triangular"])
def test_no_rate_after_the_rise_is_below_the_floor(decay):
    keys = {"power": 3.0} if decay == "polynomial" else {}
    found = ours(decay, min_lr_ratio=0.3, steps=100 * STEPS, width=64, **keys)
    assert min(found[WARMUP:]) == pytest.approx(0.3 * max(found))


@pytest.mark.parametrize("decay", ["rsqrt", "linear", "cosine", "constant"])
def test_after_a_restart_the_rate_is_that_of_a_run_that_begins(decay):
    """ERNIE 2.0 warms up for each task (arXiv:1907.12412, 5.1.3); what falls to an end, ends with the next stage."""
    found = ours(decay, restarts=[20, 35])
    optimizer = OptimizerConfig(lr=0.01, warmup_steps=WARMUP, decay=decay)
    stages = [learning_rate(step, optimizer, steps=length) for length in (20, 15, 15) for step in range(length)]
    assert found == stages
    assert found[20] == pytest.approx(0.001)


def test_restarts_are_steps_of_the_run_where_the_batch_ramps_and_the_rise_is_of_whole_batches():
    keys = ["optimizer.restarts=[60]", "optimizer.warmup_steps=20", "train.steps=200", "train.batch=32"]
    config = load(ROOT / "configs/bert/tiny.yaml", [*keys, "train.ramp={steps: {0: 16, 100: 32}}"])
    found = [learning_rate_at(config, step) / peak_learning_rate(config) for step in range(200)]
    assert found[:60:39] == pytest.approx([0.025, 1.0])
    # Until step 100 a step is half a batch.
    assert found[60:101:39] == pytest.approx([0.025, 1.0])


@pytest.mark.parametrize(("steps", "warmup"), [(800, 100), (100, 35), (8, 2), (1, 1)])
def test_a_short_run_of_a_tiny_config_has_a_shorter_warmup(steps: int, warmup: int) -> None:
    config = load("bert/tiny", [f"train.steps={steps}", "model.vocabulary=100"])
    assert config.optimizer.warmup_steps == warmup
    assert any("the warm-up is limited to" in line for line in config_warnings(config)) == (warmup < 100)


def test_a_tiny_config_of_full_length_has_the_warmup_that_it_names() -> None:
    for path in sorted((ROOT / "configs").glob("*/tiny*.yaml")):
        named = UncheckedConfig.read(path).values["optimizer"].get("warmup_steps", 0)
        assert load(path, ["model.vocabulary=4000"]).optimizer.warmup_steps == named, path
