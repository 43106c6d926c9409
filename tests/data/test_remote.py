"""Corpus in an object store: the same samples as in a folder, also with network faults."""

import multiprocessing
import threading
import time

import numpy as np
import pytest

from megaptm.data import Loader, open_mix
from megaptm.data.shards import Corpus
from megaptm.errors import UserError
from megaptm.storage import RemoteFileCache, RetryPolicy
from tests.data.corpora import equal_samples, publish, tiny_corpus, tiny_special

RETRY = RetryPolicy(seconds=30, deadline=1.0, pause=0.05, max_pause=0.2, report=lambda line: None)
URL = "s3://corpora/tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, s3):
    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    tiny_corpus(folder, documents=60, shards=12)
    publish(folder, URL, RETRY)
    return folder


@pytest.fixture
def cache(tmp_path):
    return RemoteFileCache(tmp_path / "cache", retry=RETRY)


def opened(location, cache=None, objective="causal-lm", **options):
    options = {"window": 2, "seed": 0, "sequence": 32, "special": tiny_special(), **options}
    return open_mix({str(location): 1.0}, objective=objective, cache=cache, **options)


def samples(mix, indices=None):
    return [mix.sample(index) for index in indices or range(mix.orders[0].per_epoch)]


def assert_same(samples, expected):
    assert len(samples) == len(expected)
    assert all(map(equal_samples, samples, expected))


def count_downloads(faults, suffix=".tar"):
    """Return path of a shard -> number of GET requests."""
    paths = [request.split()[1] for request in faults.requests if request.startswith("GET ")]
    return {path: paths.count(path) for path in paths if path.endswith(suffix)}


@pytest.mark.parametrize("objective", ["causal-lm", "masked-lm-next-sentence"])
def test_samples_equal_those_of_a_folder(folder, cache, faults, objective):
    assert_same(samples(opened(URL, cache, objective)), samples(opened(folder, objective=objective)))


@pytest.mark.parametrize("kind", ["reset", "error", "stall", "truncate", "corrupt"])
def test_network_faults_do_not_change_samples(folder, cache, faults, kind):
    faults.inject(kind, match=r"GET .*(tar|npy)$", times=2, seconds=1.5)
    faults.inject(kind, match=r"GET .*train-00000[3-7]\.tar$", times=2, seconds=1.5)
    assert_same(samples(opened(URL, cache)), samples(opened(folder)))
    assert faults.injected == [kind] * 4


def test_server_outage_does_not_change_samples(folder, cache, faults):
    mix = opened(URL, cache)
    first = samples(mix, range(3))
    faults.down()
    threading.Timer(2.0, faults.up).start()
    assert_same([*first, *samples(mix)[3:]], samples(opened(folder)))


@pytest.mark.parametrize("workers", [0, 2])
def test_long_outage_raises_user_error(folder, tmp_path, faults, workers):
    retry = RetryPolicy(seconds=3.0, deadline=3.0, pause=0.05, max_pause=0.2, report=lambda line: None)
    cache = RemoteFileCache(tmp_path)
    mix = opened(URL, cache)
    object.__setattr__(cache, "retry", retry)  # after opening, which may be slow on a busy machine
    faults.down()
    with (
        Loader(mix, batch=1, microbatch=1, workers=workers) as loader,
        pytest.raises(UserError, match=rf"^{URL}/train-0000\d\d\.\S+ could not be reached for \d+ s [^\n]*$"),
    ):
        next(loader)


def test_loader_processes_share_the_cache(folder, cache, faults):
    loaders = [Loader(opened(URL, cache), batch=2, microbatch=1, rank=rank, ranks=2, workers=2) for rank in (0, 1)]
    mix = opened(folder)
    for step in range(mix.orders[0].per_epoch // 2):
        for rank, loader in enumerate(loaders):
            [batch] = next(loader)[1]
            assert np.array_equal(batch["tokens"][0].numpy(), mix.sample(2 * step + rank)["tokens"])
    for loader in loaders:
        loader.close()
    assert set(count_downloads(faults).values()) == {1}


def test_cache_stays_below_its_maximum(folder, tmp_path, faults):
    sizes = {path.name: path.stat().st_size for path in folder.glob("train-*")}
    max_bytes = 3 * max(sizes.values())
    cache = RemoteFileCache(tmp_path, max_bytes=max_bytes, retry=RETRY)
    mix = opened(URL, cache, window=1)
    for index, expected in enumerate(samples(opened(folder, window=1))):
        assert_same([mix.sample(index)], [expected])
        # Each of four threads may free space for its own file before the files of the others arrive.
        assert sum(path.stat().st_size for path in tmp_path.glob("*/train-0*")) <= max_bytes + 4 * max(sizes.values())
    assert len(list(tmp_path.glob("*/*.tar"))) < 12


def test_shard_larger_than_the_cache_is_rejected(folder, tmp_path, faults):
    mix = opened(URL, RemoteFileCache(tmp_path, max_bytes=3000, retry=RETRY))
    with pytest.raises(UserError, match=r"^data\.max_cache_bytes \(3,000\) is less than the [\d,]+ bytes of s3://"):
        mix.sample(0)


def test_next_window_is_prefetched(folder, cache, faults):
    mix = opened(URL, cache)
    mix.sample(0)
    epoch = mix.orders[0]._epoch(0)
    next_window = {mix.orders[0].shards.info(int(shard)).name for shard in epoch.shards_of(1)}
    deadline = time.monotonic() + 20
    while not next_window <= {path.name for path in cache.folder.glob("*/*.tar")}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_damaged_cached_copy_is_downloaded_again(folder, cache, faults):
    samples(opened(URL, cache))
    copy = sorted(cache.folder.glob("*/train-000004.tar"))[0]
    content = bytearray(copy.read_bytes())
    content[1000] ^= 1
    copy.write_bytes(content)
    faults.requests.clear()
    assert_same(samples(opened(URL, cache)), samples(opened(folder)))
    assert count_downloads(faults) == {"/corpora/tiny/train-000004.tar": 1}


def test_damaged_remote_shard_is_quarantined(tmp_path, faults):
    url = "s3://corpora/damaged"
    tiny_corpus(tmp_path / "corpus", shards=1, seed=5)
    publish(tmp_path / "corpus", url, RETRY)
    faults.inject("corrupt", match=r"GET .*train-000000\.tar$", times=100)
    mix = opened(url, RemoteFileCache(tmp_path / "cache", retry=RETRY))
    with pytest.raises(UserError) as caught:
        mix.sample(0)
    [last_copy] = (tmp_path / "cache" / "quarantine").iterdir()
    assert str(caught.value) == (
        f"{url}/train-000000.tar is damaged: after 3 downloads its sha256 still differs from the manifest's "
        f"(last copy: {last_copy}). Upload the file again, or rebuild the corpus."
    )
    assert not list((tmp_path / "cache").glob("damaged-*/*.tar"))


def test_incomplete_upload_is_not_a_corpus(tmp_path, faults):
    url = "s3://corpora/half"
    tiny_corpus(tmp_path / "corpus", seed=6)
    publish(tmp_path / "corpus", url, RETRY)
    faults.inject("error", match=r"PUT .*train-000002\.tar$", times=1000)
    with pytest.raises(UserError, match="could not be reached"):
        publish(tmp_path / "corpus", url, RetryPolicy(seconds=3, deadline=5, pause=0.05, report=lambda line: None))
    with pytest.raises(UserError, match=rf"^{url}/manifest\.json does not exist, so {url} is not a finished corpus"):
        Corpus.open(url, RemoteFileCache(tmp_path / "cache", retry=RETRY))


def test_rebuilt_corpus_at_the_same_url_is_downloaded(tmp_path, faults):
    url, cache = "s3://corpora/again", RemoteFileCache(tmp_path / "cache", retry=RETRY)
    for seed in (7, 8):
        tiny_corpus(tmp_path / str(seed), seed=seed)
        publish(tmp_path / str(seed), url, RETRY)
        assert_same(samples(opened(url, cache)), samples(opened(tmp_path / str(seed))))


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer/tokenizer.json"])
def test_too_large_metadata_is_not_downloaded(tmp_path, faults, monkeypatch, name):
    url = "s3://corpora/large"
    tiny_corpus(tmp_path / "corpus", seed=9)
    (tmp_path / "corpus/tokenizer").mkdir(exist_ok=True)
    with (tmp_path / "corpus" / name).open("a") as file:
        file.write(" " * 100_001)
    publish(tmp_path / "corpus", url, RETRY)
    monkeypatch.setattr("megaptm.storage.files.MAX_METADATA_BYTES", 100_000)
    with pytest.raises(
        UserError, match=rf"^{url}/{name} has [\d,]+ bytes, more than the maximum of 100,000 .*check the path"
    ):
        Corpus.open(url, RemoteFileCache(tmp_path / "cache", retry=RETRY))
    assert not list((tmp_path / "cache").rglob(name))


def _read_all(cache, results):
    results.put([sample["tokens"].tolist() for sample in samples(opened(URL, cache))])


def test_concurrent_processes_download_each_shard_once(folder, cache, faults):
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_read_all, args=(cache, results)) for _ in range(3)]
    for process in processes:
        process.start()
    tokens = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert tokens == [[sample["tokens"].tolist() for sample in samples(opened(folder))]] * 3
    assert len(count_downloads(faults)) == 12
    assert set(count_downloads(faults).values()) == {1}
