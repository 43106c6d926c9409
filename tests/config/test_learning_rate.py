"""Learning schedule_rates equal the formulas of the papers, and the schedules of transformers and torch.

transformers starts a warm-up with a rate of zero; here the first step has the rate of its second step. Warm-ups, and
schedules that count steps from 1, are therefore compared one step later.
"""

import math

import pytest
import torch
from transformers import get_scheduler
from transformers.optimization import get_wsd_schedule

from megaptm.config import OptimizerConfig, load_config
from megaptm.config.learning_rate import learning_rate, learning_rate_at, peak_learning_rate
from megaptm.config.read import UncheckedConfig
from megaptm.config.schedule import config_warnings
from megaptm.errors import UserError
from tests import ROOT

WARMUP, STEPS = 10, 50


def megaptm_rates(decay: str, *, steps: int = STEPS, width: int | None = None, **keys) -> list[float]:
    optimizer = OptimizerConfig(**{"lr": 0.01, "warmup_steps": WARMUP, "decay": decay} | keys)
    return [learning_rate(step, optimizer, steps=STEPS, width=width) for step in range(steps)]


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.01)


def schedule_rates(schedule: torch.optim.lr_scheduler.LRScheduler) -> list[float]:
    """Return the schedule_rates of STEPS + 1 steps."""
    result = []
    for _ in range(STEPS + 1):
        result.append(schedule.get_last_lr()[0])
        schedule.optimizer.step()
        schedule.step()
    return result


TRANSFORMERS = {
    "constant": ("constant_with_warmup", {}),
    "linear": ("linear", {}),
    "cosine": ("cosine", {}),
    "cosine to a floor": ("cosine_with_min_lr", {"min_lr_rate": 0.1}),
    "polynomial": ("polynomial", {"power": 3.0, "lr_end": 1e-3}),
}
MEGAPTM = {
    "constant": megaptm_rates("constant"),
    "linear": megaptm_rates("linear"),
    "cosine": megaptm_rates("cosine"),
    "cosine to a floor": megaptm_rates("cosine", min_lr_ratio=0.1),
    "polynomial": megaptm_rates("polynomial", power=3.0, min_lr_ratio=0.1),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_warmup_and_decay_equal_transformers(name):
    kind, keys = TRANSFORMERS[name]
    expected = schedule_rates(get_scheduler(kind, sgd(), WARMUP, STEPS, scheduler_specific_kwargs=keys))
    assert MEGAPTM[name] == pytest.approx([*expected[1 : WARMUP + 1], *expected[WARMUP:STEPS]], rel=1e-12)


def test_exponential_warmup_equals_torch():
    schedule = torch.optim.lr_scheduler.ExponentialLR(sgd(), gamma=100 ** (1 / WARMUP))
    warmup = megaptm_rates("constant", lr=1.0, min_lr_ratio=0.01, warmup_shape="exponential")[:WARMUP]
    assert warmup == pytest.approx(schedule_rates(schedule)[1 : WARMUP + 1], rel=1e-12)


def test_rsqrt_equals_transformers():
    expected = schedule_rates(get_scheduler("inverse_sqrt", sgd(), WARMUP, STEPS))
    assert megaptm_rates("rsqrt") == pytest.approx(expected[1:], rel=1e-12)


@pytest.mark.parametrize("decay", ["linear", "cosine", "1-sqrt"])
def test_warmup_stable_decay_equals_transformers(decay):
    schedule = get_wsd_schedule(sgd(), WARMUP, 15, num_stable_steps=25, decay_type=decay, min_lr_ratio=0.2)
    # Its warm-up starts at the minimum rate.
    expected = schedule_rates(schedule)[WARMUP:STEPS]
    assert megaptm_rates(decay, stable_steps=35, min_lr_ratio=0.2)[WARMUP:] == pytest.approx(expected, rel=1e-12)
    assert megaptm_rates(decay, stable_steps=35)[:WARMUP] == pytest.approx(
        [0.001 * (step + 1) for step in range(WARMUP)]
    )


def test_polynomial_without_warmup_equals_torch():
    expected = schedule_rates(torch.optim.lr_scheduler.PolynomialLR(sgd(), total_iters=STEPS, power=2.5))
    assert megaptm_rates("polynomial", power=2.5, warmup_steps=0) == pytest.approx(expected[:STEPS], rel=1e-9)


def test_noam_equals_the_transformer_formula():
    """arXiv:1706.03762, section 5.3; `lr` is a factor, 1 in the paper."""
    formula = [512**-0.5 * min(step**-0.5, step * 4000**-1.5) for step in range(1, 20_001)]
    actual = megaptm_rates("noam", lr=1.0, warmup_steps=4000, width=512, steps=20_000)
    assert actual == pytest.approx(formula, rel=1e-12)
    assert megaptm_rates("noam", lr=2.0, warmup_steps=4000, width=512) == pytest.approx(
        [2 * rate for rate in formula[:STEPS]]
    )


def test_noam_uses_the_width_of_the_model():
    words = ["optimizer.decay=noam", "optimizer.lr=1.0", "optimizer.warmup_steps=4000", "model.width=512"]
    config = load_config(ROOT / "configs/gpt2/small.yaml", [*words, "model.heads=8"])
    assert learning_rate_at(config, 3999) == peak_learning_rate(config) == pytest.approx((512 * 4000) ** -0.5)


def test_noam_uses_the_base_width_of_mup():
    """muP scales the rate of the base width by itself, so that it fits any width."""
    words = ["optimizer.decay=noam", "optimizer.lr=1.0", "optimizer.warmup_steps=4000", "model.mup_base_width=256"]
    for width in (256, 512):
        config = load_config(
            ROOT / "configs/gpt2/small.yaml", [*words, f"model.width={width}", f"model.heads={width // 64}"]
        )
        assert peak_learning_rate(config) == pytest.approx((256 * 4000) ** -0.5)


def test_halving_starts_when_the_validation_loss_rises():
    """CoVe (arXiv:1708.00107, section 4): from step 50 on, the rate is halved after each 20 steps."""
    optimizer = OptimizerConfig(lr=1.0, decay="halving", decay_steps=20, min_lr_ratio=0.1)
    assert {learning_rate(step, optimizer, steps=STEPS) for step in range(STEPS)} == {1.0}
    actual = [learning_rate(step, optimizer, steps=STEPS, rose=50) for step in range(50, 150)]
    assert actual == [0.5] * 20 + [0.25] * 20 + [0.125] * 20 + [0.1] * 40


def test_halving_needs_decay_steps_and_validation():
    words = ["optimizer.decay=halving", "optimizer.warmup_steps=0"]
    with pytest.raises(UserError, match=r"optimizer\.decay halving needs optimizer\.decay_steps"):
        load_config(ROOT / "configs/cove/base.yaml", [*words, "optimizer.decay_steps=null"])
    with pytest.raises(UserError, match=r"optimizer\.decay halving needs train\.validate_every"):
        load_config(ROOT / "configs/cove/base.yaml", [*words, "optimizer.decay_steps=10", "train.validate_every=null"])


def test_triangular_equals_the_ulmfit_formula():
    """arXiv:1801.06146, equation 3: the rate rises from peak / ratio in a tenth of the steps, and falls back."""
    peak, ratio, last = 0.01, 32, 50
    cut = math.floor(last * 0.1)

    def formula(t):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / 0.1 - 1))
        return peak * (1 + p * (ratio - 1)) / ratio

    actual = megaptm_rates("triangular", warmup_steps=cut, min_lr_ratio=1 / ratio)
    assert actual == pytest.approx([formula(t) for t in (*range(1, cut + 1), *range(cut, last))], rel=1e-12)


def test_rsqrt_with_10_000_stable_steps_as_t5_and_palm():
    """arXiv:1910.10683, section 3.1.2: 1 / sqrt(max(n, 10^4)); arXiv:2204.02311, section 5: the same of 10^-2."""
    actual = megaptm_rates("rsqrt", warmup_steps=0, stable_steps=10_000, steps=40_000)
    assert actual == pytest.approx([max(n, 10_000) ** -0.5 for n in range(1, 40_001)], rel=1e-12)


@pytest.mark.parametrize("decay", ["cosine", "linear", "polynomial", "rsqrt", "noam", "triangular"])
def test_rate_after_warmup_is_not_below_the_minimum(decay):
    keys = {"power": 3.0} if decay == "polynomial" else {}
    actual = megaptm_rates(decay, min_lr_ratio=0.3, steps=100 * STEPS, width=64, **keys)
    assert min(actual[WARMUP:]) == pytest.approx(0.3 * max(actual))


@pytest.mark.parametrize("decay", ["rsqrt", "linear", "cosine", "constant"])
def test_restart_repeats_the_schedule(decay):
    """ERNIE 2.0 warms up for each task (arXiv:1907.12412, 5.1.3). Decays end at the next restart."""
    actual = megaptm_rates(decay, restarts=[20, 35])
    optimizer = OptimizerConfig(lr=0.01, warmup_steps=WARMUP, decay=decay)
    stages = [learning_rate(step, optimizer, steps=length) for length in (20, 15, 15) for step in range(length)]
    assert actual == stages
    assert actual[20] == pytest.approx(0.001)


def test_restarts_count_steps_and_warmup_counts_full_batches_in_a_ramp():
    keys = ["optimizer.restarts=[60]", "optimizer.warmup_steps=20", "train.steps=200", "train.batch=32"]
    config = load_config(ROOT / "configs/bert/tiny.yaml", [*keys, "train.ramp={steps: {0: 16, 100: 32}}"])
    actual = [learning_rate_at(config, step) / peak_learning_rate(config) for step in range(200)]
    assert actual[:60:39] == pytest.approx([0.025, 1.0])
    # Until step 100 a step has half a batch.
    assert actual[60:101:39] == pytest.approx([0.025, 1.0])


@pytest.mark.parametrize(("steps", "warmup"), [(800, 100), (100, 35), (8, 2), (1, 1)])
def test_short_run_has_a_shorter_warmup(steps: int, warmup: int) -> None:
    config = load_config("bert/tiny", [f"train.steps={steps}", "model.vocabulary=100"])
    assert config.optimizer.warmup_steps == warmup
    assert any("the warm-up is limited to" in line for line in config_warnings(config)) == (warmup < 100)


def test_full_run_of_a_tiny_config_has_its_configured_warmup() -> None:
    for path in sorted((ROOT / "configs").glob("*/tiny*.yaml")):
        named = UncheckedConfig.read(path).values["optimizer"].get("warmup_steps", 0)
        assert load_config(path, ["model.vocabulary=4000"]).optimizer.warmup_steps == named, path
