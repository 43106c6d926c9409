"""Samples of each step, with batch ramps and skipped batches."""

import pytest

from megaptm.batch_schedule import BatchSchedule
from megaptm.errors import UserError

GPT3 = BatchSchedule(1536, start=16, increment=16, samples=12 * 10**9 // 2048)
LIKE_GPT3 = BatchSchedule(1536, start=16, increment=16, samples=100_000)
ODD = BatchSchedule(70, start=10, increment=20, samples=333)
STEEP = BatchSchedule(1000, start=1, increment=37, samples=50)
"""The size grows by several increments in one step."""
PALM = BatchSchedule(2048, sizes_by_step=((0, 512), (50_000, 1024), (115_000, 2048)))
"""arXiv:2204.02311, section 5: of 255,000 steps."""


def test_constant_batch_size():
    batches = BatchSchedule(12)
    assert [batches.size(step) for step in (0, 1, 10**9)] == [12] * 3
    assert [batches.first_sample(step) for step in (0, 1, 10**9)] == [0, 12, 12 * 10**9]
    assert [batches.steps_in(samples) for samples in (0, 11, 12, 30)] == [0, 0, 1, 2]
    assert batches.sizes(3, 10) == {12: 7}


@pytest.mark.parametrize("batches", [LIKE_GPT3, ODD, STEEP], ids=["like GPT-3", "odd", "steep"])
def test_ramp_grows_with_the_samples_read(batches):
    samples_read, sizes = 0, []
    while samples_read < batches.samples or len(sizes) < 20:
        step = len(sizes)
        share = min(1.0, samples_read / batches.samples)
        times = int(share * ((batches.final_size - batches.start) // batches.increment) + 1e-9)
        assert batches.first_sample(step) == samples_read
        assert batches.size(step) == batches.start + times * batches.increment
        assert batches.steps_in(samples_read) == step
        assert batches.steps_in(samples_read + batches.size(step) - 1) == step
        sizes.append(batches.size(step))
        samples_read += sizes[-1]
    end = len(sizes)
    assert batches.first_sample(end) == samples_read
    assert batches.size(end) == batches.final_size
    assert batches.sizes(0, end) == {size: sizes.count(size) for size in sizes}
    assert batches.sizes(2, end - 1) == {size: sizes[2:-1].count(size) for size in sizes[2:-1]}


def test_gpt3_ramp():
    """300 billion tokens take more steps than with full batches, because the ramp starts with small ones."""
    steps = GPT3.steps_in(300 * 10**9 // 2048)
    sizes = GPT3.sizes(0, steps)
    assert sum(sizes.values()) == steps > 300e9 / (2048 * 1536)
    assert sum(size * steps_of_size for size, steps_of_size in sizes.items()) == GPT3.first_sample(steps)
    assert sorted(sizes) == list(range(16, 1537, 16))


def test_palm_batch_sizes_by_step():
    assert [PALM.size(step) for step in (0, 49_999, 50_000, 114_999, 115_000, 10**6)] == [
        512,
        512,
        1024,
        1024,
        2048,
        2048,
    ]
    assert PALM.first_sample(255_000) == 50_000 * 512 + 65_000 * 1024 + 140_000 * 2048
    assert PALM.first_sample(255_000) * 2048 == pytest.approx(780e9, rel=0.01)
    assert PALM.steps_in(PALM.first_sample(60_000)) == 60_000
    assert PALM.sizes(49_000, 255_000) == {512: 1000, 1024: 65_000, 2048: 140_000}


@pytest.mark.parametrize(
    "batches",
    [
        BatchSchedule(12, sizes_by_step=((0, 4), (3, 8), (5, 12))),
        BatchSchedule(12, sizes_by_step=((0, 12),)),
        BatchSchedule(12, sizes_by_step=((0, 12), (3, 4), (5, 12))),
    ],
)
def test_batch_sizes_by_step_are_consecutive(batches):
    samples_read = 0
    for step in range(10):
        assert batches.first_sample(step) == samples_read
        assert batches.steps_in(samples_read) == batches.steps_in(samples_read + batches.size(step) - 1) == step
        assert batches.size(step) == [rows for begin, rows in batches.sizes_by_step if begin <= step][-1]
        samples_read += batches.size(step)


def test_sizes_count_equal_batches_together():
    batches = BatchSchedule(12, sizes_by_step=((0, 12), (3, 4), (5, 12)))
    assert batches.sizes(1, 8) == {12: 5, 4: 2}
    assert batches.changes == {0: 12, 3: 4, 5: 12}


@pytest.mark.parametrize(
    ("later", "step", "expected"),
    [
        (BatchSchedule(24), 7, {0: 4, 3: 8, 6: 12, 7: 24}),
        (BatchSchedule(24), 6, {0: 4, 3: 8, 6: 24}),
        (BatchSchedule(8), 4, {0: 4, 3: 8}),
        (BatchSchedule(16, sizes_by_step=((0, 8), (9, 16))), 4, {0: 4, 3: 8, 9: 16}),
    ],
)
def test_changes_after_a_step_keep_the_sizes_before(later, step, expected):
    earlier = BatchSchedule(12, sizes_by_step=((0, 4), (3, 8), (6, 12)))
    assert later.changes_after(earlier, step) == expected


@pytest.mark.parametrize(
    ("ramp", "sentence"),
    [
        ({"sizes_by_step": ((1, 4), (2, 12))}, r"train.ramp.steps starts at step 1: add the batch size of step 0."),
        (
            {"sizes_by_step": ((0, 4), (2, 8))},
            r"train.ramp.steps ends .* batch size of 8, which must be train.batch \(12\).",
        ),
        ({"sizes_by_step": ((0, 4), (9, 8), (2, 12))}, r"train.ramp.steps: the steps \(0, 9, 2\) must be ascending"),
        (
            {"start": 12, "increment": 4, "samples": 99},
            r"train.ramp.start \(12\) must be less than train.batch \(12\).",
        ),
        (
            {"start": 4, "increment": 3, "samples": 99},
            r"train\.ramp\.increment \(3\) must divide the 8 samples between train\.ramp\.start \(4\) and",
        ),
    ],
)
def test_invalid_ramp_is_refused(ramp, sentence):
    with pytest.raises(UserError, match=sentence):
        BatchSchedule(12, **ramp)


@pytest.mark.parametrize("ramp", [{}, {"start": 4, "increment": 4, "samples": 24}], ids=["whole", "ramp"])
def test_skipped_batches_are_not_read(ramp):
    plain, skipping = BatchSchedule(12, **ramp), BatchSchedule(12, **ramp, skips=((2, 3), (5, 1)))
    skipped = [0, 0, *[3 * plain.size(2)] * 3, *[3 * plain.size(2) + plain.size(5)] * 4]
    for step, samples in enumerate(skipped):
        assert skipping.size(step) == plain.size(step)
        assert skipping.num_trained(step) == plain.first_sample(step)
        assert skipping.first_sample(step) == plain.first_sample(step) + samples
        end = skipping.first_sample(step) + skipping.size(step)
        assert skipping.steps_in(end - 1) == step
        assert skipping.steps_in(end) == step + 1
