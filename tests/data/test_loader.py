"""The samples of a step do not depend on ranks, workers, micro-batches or restarts."""

import itertools
import multiprocessing

import pytest
import torch

from megaptm.data import Loader, open_mix, read_validation
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus, tiny_special

BATCH, STEPS = 36, 2


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    root = tmp_path_factory.mktemp("loader")
    tiny_corpus(root / "a", seed=1)
    tiny_corpus(root / "b", seed=2)
    return open_mix(
        {str(root / "a"): 0.7, str(root / "b"): 0.3},
        objective="masked-lm-next-sentence",
        sequence=32,
        seed=0,
        special=tiny_special(),
    )


def concatenate(batches):
    """Return field -> [samples, ...] of several batches."""
    return {field: torch.cat([batch[field] for batch in batches]) for field in batches[0]}


def read(mix, *, ranks=1, start=0, steps=STEPS, microbatch=1, workers=0):
    """Return the global batch of each step, concatenated from the batches of all ranks."""
    steps_by_rank = []
    for rank in range(ranks):
        with Loader(
            mix, start_step=start, batch=BATCH, microbatch=microbatch, rank=rank, ranks=ranks, workers=workers
        ) as loader:
            loaded = list(itertools.islice(loader, steps))
        assert [step for step, _ in loaded] == list(range(start, start + steps))
        assert all(len(batch["tokens"]) == microbatch for _, batches in loaded for batch in batches)
        steps_by_rank.append([concatenate(batches) for _, batches in loaded])
    return [concatenate(list(step)) for step in zip(*steps_by_rank, strict=True)]


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, expected_batch in zip(batches, expected, strict=True):
        assert batch.keys() == expected_batch.keys()
        for field in batch:
            assert torch.equal(batch[field], expected_batch[field]), field


@pytest.fixture(scope="module")
def expected(mix):
    """Global batches of ten steps, from the samples of the mix."""

    def stack(step):
        samples = [mix.sample(step * BATCH + index) for index in range(BATCH)]
        return {field: torch.stack([torch.tensor(sample[field]) for sample in samples]) for field in samples[0]}

    return [stack(step) for step in range(10)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatch", [1, 3])
def test_ranks_and_microbatches_do_not_change_the_samples(mix, expected, ranks, microbatch):
    assert_same(read(mix, ranks=ranks, microbatch=microbatch), expected[:STEPS])


@pytest.mark.parametrize(("workers", "ranks"), [(1, 1), (2, 1), (1, 3), (2, 2)])
def test_workers_do_not_change_the_samples(mix, expected, workers, ranks):
    assert_same(read(mix, ranks=ranks, workers=workers, microbatch=2), expected[:STEPS])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("start", [1, 4, 7])
def test_loader_starts_at_any_step(mix, expected, start):
    assert_same(read(mix, start=start), expected[start : start + STEPS])
    assert_same(read(mix, start=start, ranks=2, workers=1), expected[start : start + STEPS])


def test_loader_starts_at_step_a_billion(mix):
    step = 10**9
    (batch,) = read(mix, start=step, steps=1)
    assert torch.equal(batch["tokens"][5], torch.tensor(mix.sample(step * BATCH + 5)["tokens"]))


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_does_not_use_torch_generator(mix, workers):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    read(mix, workers=workers, steps=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_shard_raises_user_error(tmp_path, workers):
    info = tiny_corpus(tmp_path).splits["train"].shards[0]
    content = bytearray((tmp_path / info.name).read_bytes())
    content[-2000] ^= 1
    (tmp_path / info.name).write_bytes(content)
    mix = open_mix({str(tmp_path): 1}, objective="causal-lm", sequence=32, seed=0, special=tiny_special())
    with (
        Loader(mix, batch=1, microbatch=1, workers=workers) as loader,
        pytest.raises(UserError, match=r"^\S+train-000000\.tar is damaged [^\n]*$"),
    ):
        next(loader)


def test_indivisible_batch_is_rejected(mix):
    with pytest.raises(UserError, match=r"train\.batch \(12\) must be a multiple of layout\.data \(5\)"):
        Loader(mix, batch=12, microbatch=1, ranks=5)


@pytest.fixture(scope="module")
def validation_mix(mix):
    return open_mix(
        dict.fromkeys(mix.names, 1),
        split="validation",
        objective="causal-lm",
        sequence=32,
        seed=0,
        special=tiny_special(),
    )


def test_validation_batches_are_finite_and_reproducible(validation_mix):
    expected = [concatenate(batches) for batches in read_validation(validation_mix, batch=4, microbatch=2)]
    assert len(expected) == validation_mix.fresh_samples // 4 > 1
    assert_same([concatenate(batches) for batches in read_validation(validation_mix, batch=4, microbatch=2)], expected)
    by_rank = [
        [*read_validation(validation_mix, batch=4, microbatch=1, rank=rank, ranks=2, max_steps=2)] for rank in (0, 1)
    ]
    assert_same([concatenate([*first, *second]) for first, second in zip(*by_rank, strict=True)], expected[:2])


def test_validation_split_smaller_than_a_batch_is_rejected(validation_mix):
    with pytest.raises(UserError, match="less than one batch of 1000: build the corpus with a larger validation split"):
        [*read_validation(validation_mix, batch=1000, microbatch=1)]
