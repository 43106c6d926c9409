"""A batch that ramps, beside megatron-core's."""

import pytest
from megatron.core.num_microbatches_calculator import RampupBatchsizeNumMicroBatchesCalculator

from megaptm.batch_schedule import BatchSchedule


@pytest.mark.parametrize(
    "batches",
    [
        BatchSchedule(1536, start=16, increment=16, samples=5_859_375),
        BatchSchedule(2048, start=192, increment=16, samples=9_765_625),
        BatchSchedule(256, start=32, increment=32, samples=1000),
    ],
    ids=["GPT-3", "BLOOM", "short"],
)
def test_steps_take_what_megatron_gives_them(batches):
    theirs = RampupBatchsizeNumMicroBatchesCalculator(
        global_batch_size=batches.whole,
        micro_batch_size=1,
        data_parallel_size=1,
        decrease_batch_size_if_needed=False,
        rank=1,
        start_global_batch_size=batches.start,
        batch_size_increment=batches.increment,
        ramup_samples=batches.samples,
    )
    seen, step = 0, 0
    while seen <= 1.1 * batches.samples:
        theirs.update(seen, consistency_check=True)
        assert (batches.first(step), batches.size(step)) == (seen, theirs.get())
        seen, step = seen + theirs.get(), step + 1
