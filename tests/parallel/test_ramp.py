"""Batch size ramp, compared with megatron-core's."""

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
def test_batch_ramp_equals_megatron(batches):
    reference = RampupBatchsizeNumMicroBatchesCalculator(
        global_batch_size=batches.final_size,
        micro_batch_size=1,
        data_parallel_size=1,
        decrease_batch_size_if_needed=False,
        rank=1,
        start_global_batch_size=batches.start,
        batch_size_increment=batches.increment,
        ramup_samples=batches.samples,
    )
    num_samples, step = 0, 0
    while num_samples <= 1.1 * batches.samples:
        reference.update(num_samples, consistency_check=True)
        assert (batches.first_sample(step), batches.size(step)) == (num_samples, reference.get())
        num_samples, step = num_samples + reference.get(), step + 1
