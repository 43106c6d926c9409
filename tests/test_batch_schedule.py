"""Which samples a step takes."""

import pytest

from megaptm.batch_schedule import BatchSchedule
from megaptm.errors import UserError

GPT3 = BatchSchedule(1536, start=16, increment=16, samples=12 * 10**9 // 2048)
LIKE_GPT3 = BatchSchedule(1536, start=16, increment=16, samples=100_000)
ODD = BatchSchedule(70, start=10, increment=20, samples=333)
STEEP = BatchSchedule(1000, start=1, increment=37, samples=50)
"""One step passes several increments."""


def test_without_a_ramp_every_step_is_whole():
    batches = BatchSchedule(12)
    assert [batches.size(step) for step in (0, 1, 10**9)] == [12] * 3
    assert [batches.first(step) for step in (0, 1, 10**9)] == [0, 12, 12 * 10**9]
    assert [batches.steps_in(samples) for samples in (0, 11, 12, 30)] == [0, 0, 1, 2]
    assert batches.sizes(3, 10) == {12: 7}


@pytest.mark.parametrize("batches", [LIKE_GPT3, ODD, STEEP], ids=["like GPT-3", "odd", "steep"])
def test_a_step_begins_where_the_one_before_it_ended_and_grows_with_what_was_read(batches):
    seen, sizes = 0, []
    while seen < batches.samples or len(sizes) < 20:
        step = len(sizes)
        share = min(1.0, seen / batches.samples)
        times = int(share * ((batches.whole - batches.start) // batches.increment) + 1e-9)
        assert batches.first(step) == seen
        assert batches.size(step) == batches.start + times * batches.increment
        assert batches.steps_in(seen) == step
        assert batches.steps_in(seen + batches.size(step) - 1) == step
        sizes.append(batches.size(step))
        seen += sizes[-1]
    end = len(sizes)
    assert (batches.first(end), batches.size(end)) == (seen, batches.whole)
    assert batches.sizes(0, end) == {size: sizes.count(size) for size in sizes}
    assert batches.sizes(2, end - 1) == {size: sizes[2:-1].count(size) for size in sizes[2:-1]}


def test_the_steps_of_gpt3_are_counted_without_walking_them():
    """Of 300 billion tokens: more steps than of whole batches, by those that the ramp makes small."""
    steps = GPT3.steps_in(300 * 10**9 // 2048)
    sizes = GPT3.sizes(0, steps)
    assert sum(sizes.values()) == steps > 300e9 / (2048 * 1536)
    assert sum(size * number for size, number in sizes.items()) == GPT3.first(steps)
    assert sorted(sizes) == list(range(16, 1537, 16))


@pytest.mark.parametrize(
    ("ramp", "sentence"),
    [
        (
            {"start": 12, "increment": 4, "samples": 99},
            r"train.ramp.start \(12\) must be less than train.batch \(12\).",
        ),
        (
            {"start": 4, "increment": 3, "samples": 99},
            r"train.ramp.increment \(3\) must divide the 8 rows between train.ramp.start \(4\) and train.batch \(12\).",
        ),
    ],
)
def test_a_ramp_that_does_not_lead_to_the_batch_is_refused(ramp, sentence):
    with pytest.raises(UserError, match=sentence):
        BatchSchedule(12, **ramp)
