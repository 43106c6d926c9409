"""Texts with image regions, from files to samples: masking, labels, batches of one task, and invalid region files."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.recipe import TokenizerRecipe
from megaptm.batch import IGNORED
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import Corpus, open_mix
from megaptm.data.batch_mix import BATCHES
from megaptm.errors import UserError
from megaptm.families.uniter.corpus.region_shapes import DETECTOR
from megaptm.families.uniter.region_files import RegionError, read_regions
from megaptm.families.uniter.spec import MASKED_REGION
from megaptm.objectives import build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.tokenizers import load_tokenizer
from tests.data_pipeline.images.pictures import build, write_tar
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus

WORDS, REGIONS, BATCH = 24, 8, 6
OPTIONS = {"regions": REGIONS, "features": DETECTOR[0], "classes": DETECTOR[1]}
ALL_TASKS = {
    "matching": {"task": "image-text-matching", "share": 2, **OPTIONS},
    "words": {"task": "image-text-masked-lm", "share": 2, **OPTIONS},
    "features": {"task": "masked-regions", "share": 1, **OPTIONS},
    "classes": {"task": "masked-regions-class", "share": 1, **OPTIONS},
    "likely": {"task": "masked-regions-distribution", "share": 1, **OPTIONS},
}
CASED = TOKENIZERS["uniter"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("regions") / "corpus"
    return region_corpus(out, images=80, tokenizer=CASED, validation=0.2, shard_bytes=64 << 10)


def open_regions(folder: Path, objective: Any, **options: Any):
    special = load_tokenizer(folder / "tokenizer").special
    settings = {"sequence": WORDS + REGIONS, "seed": 3, "special": special, **options}
    return open_mix({str(folder): 1.0}, objective=objective, **settings)


def single_task(task: str, **options: Any) -> dict[str, Any]:
    return {task: {**OPTIONS, **options}}


def arrays_by_text(folder: Path) -> dict[tuple[int, ...], list[dict[str, np.ndarray]]]:
    """Return the arrays of each file by the token ids of its text."""
    corpus, by_text = Corpus.open(folder), {}
    for info in corpus.split("train").shards:
        shard = corpus.open_shard(info)
        for number in range(len(shard)):
            arrays = dict(np.load(io.BytesIO(shard.blob("npz", number))))
            by_text.setdefault(tuple(shard.tokens(number).tolist()), []).append(arrays)
    return by_text


def own_files(sample: dict[str, np.ndarray], by_text: Any) -> list[dict[str, np.ndarray]]:
    """Return the arrays of files with the text of the sample."""
    text = sample["tokens"][:WORDS][sample["document_ids"][:WORDS] > 0]
    return by_text[tuple(text[1:-1].tolist())]


def test_layout_of_text_and_regions(folder):
    by_text, mix = arrays_by_text(folder), open_regions(folder, single_task("masked-regions"))
    special = load_tokenizer(folder / "tokenizer").special
    for number in range(40):
        sample = mix.sample(number)
        text = sample["tokens"][:WORDS][sample["document_ids"][:WORDS] > 0]
        assert text[0] == special.cls
        assert text[-1] == special.sep
        real = sample["document_ids"][WORDS:] > 0
        hidden = sample["tokens"][WORDS:] == MASKED_REGION
        [own] = [
            file
            for file in own_files(sample, by_text)
            if np.array_equal(file["norm_bb"], sample["region_boxes"][real, :6])
        ]
        assert (sample["region_boxes"][:, 6] == sample["region_boxes"][:, 4] * sample["region_boxes"][:, 5]).all()
        assert np.array_equal(sample["region_features"][real & ~hidden], own["features"][~hidden[real]])
        assert (sample["region_features"][hidden] == 0).all()
        assert (sample["segments"] == (np.arange(WORDS + REGIONS) >= WORDS)).all()
        predicted = (sample["masked_region_features"] != IGNORED).any(1)
        assert (sample["masked_positions"][predicted] - WORDS == np.flatnonzero(hidden)).all()
        assert np.array_equal(sample["masked_region_features"][predicted], own["features"][hidden[real]])


@pytest.mark.parametrize(
    ("task", "field", "to_labels"),
    [
        ("masked-regions-class", "region_labels", lambda probabilities: probabilities[:, 1:].argmax(1) + 1),
        ("masked-regions-distribution", "region_distributions", lambda probabilities: probabilities),
    ],
)
def test_region_labels_come_from_the_detector(folder, task, field, to_labels):
    """A class label is the most probable class except the background, class 0."""
    by_text, mix = arrays_by_text(folder), open_regions(folder, single_task(task))
    for number in range(30):
        sample = mix.sample(number)
        real = sample["document_ids"][WORDS:] > 0
        [own] = [
            file
            for file in own_files(sample, by_text)
            if np.array_equal(file["norm_bb"], sample["region_boxes"][real, :6])
        ]
        expected = to_labels(own["soft_labels"][np.flatnonzero(sample["tokens"][WORDS:] == MASKED_REGION)])
        assert np.array_equal(sample[field][: len(expected)], expected)
        assert (sample[field][len(expected) :] == IGNORED).all()


def test_words_and_regions_are_never_hidden_together(folder):
    mix = open_regions(folder, ALL_TASKS)
    mask = load_tokenizer(folder / "tokenizer").special.mask
    tasks = Counter[str]()
    for number in range(400):
        task = mix.sources[mix.locate(number).source].task.label
        sample = mix.sample(number)
        words = bool((sample["labels"] != IGNORED).any())
        regions = bool((sample["tokens"][WORDS:] == MASKED_REGION).any())
        assert (words, regions) == (task == "words", task in ("features", "classes", "likely"))
        assert words or not (sample["tokens"][:WORDS] == mask).any()
        assert (sample["matched"] != IGNORED) == (task == "matching")
        region_fields = ("masked_region_features", "region_labels", "region_distributions")
        predicted = {name for name in region_fields if (sample[name] != IGNORED).any()}
        assert predicted == {"features": {"masked_region_features"}, "classes": {"region_labels"}}.get(
            task, {"region_distributions"} if task == "likely" else set()
        )
        tasks[task] += 1
    assert set(tasks) == set(ALL_TASKS)


def test_masking_rates_of_regions_and_words(folder):
    """At least one region is hidden per sample."""
    mix = open_regions(folder, single_task("masked-regions", rate=0.4))
    hidden = num_regions = 0
    for number in range(300):
        sample = mix.sample(number)
        count = int((sample["document_ids"][WORDS:] > 0).sum())
        masked = sample["tokens"][WORDS:] == MASKED_REGION
        assert masked.sum() == max(1, round(0.4 * count))
        assert not masked[count:].any()
        hidden, num_regions = hidden + masked.sum(), num_regions + count
    assert hidden / num_regions == pytest.approx(0.4, abs=0.03)
    special = load_tokenizer(folder / "tokenizer").special
    mix, kinds = open_regions(folder, single_task("image-text-masked-lm")), Counter[str]()
    for number in range(1500):
        sample = mix.sample(number)
        for position, label in zip(sample["masked_positions"], sample["labels"], strict=True):
            if label != IGNORED:
                assert label not in special.specials
                shown = sample["tokens"][position]
                kinds["mask" if shown == special.mask else "same" if shown == label else "random"] += 1
    shares = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "random": 0.1}, abs=0.03)


def test_half_of_pairs_do_not_match(folder):
    by_text, mix = arrays_by_text(folder), open_regions(folder, single_task("image-text-matching"))
    matched = []
    for number in range(300):
        sample = mix.sample(number)
        real = sample["document_ids"][WORDS:] > 0
        files = own_files(sample, by_text)
        own = any(np.array_equal(file["features"], sample["region_features"][real]) for file in files)
        # Several images may have the same text.
        assert own if sample["matched"] else (not own or len(files) > 1)
        matched.append(int(sample["matched"]))
    assert np.mean(matched) == pytest.approx(0.5, abs=0.12)


def test_sample_depends_on_its_index_only(folder):
    schedule = BatchSchedule(BATCH)
    mix, again = (open_regions(folder, ALL_TASKS, schedule=schedule) for _ in range(2))
    copy = pickle.loads(pickle.dumps(mix))
    for number in (5, 900, 17, 2**20, 5):
        sample = mix.sample(number)
        mix.batch_spec.with_labels(sample).check(sample, maker="uniter")
        for other in (again, copy):
            same = other.sample(number)
            assert sample.keys() == same.keys()
            assert all(np.array_equal(sample[name], same[name]) for name in sample)


def test_training_samples_have_labels_of_their_task_only(folder):
    """Ranks compute only the heads of the batch's task. Validation samples have the labels of all tasks."""
    mix, validation = (
        open_regions(folder, ALL_TASKS, schedule=BatchSchedule(BATCH)),
        open_regions(folder, ALL_TASKS, split="validation"),
    )
    labels = {
        "matching": {"matched"},
        "words": {"labels"},
        "features": {"masked_region_features"},
        "classes": {"region_labels"},
        "likely": {"region_distributions"},
    }
    inputs = {*mix.batch_spec.fields} - {*mix.batch_spec.label_names}
    tasks = set()
    for number in range(0, 40 * BATCH, BATCH):
        task, sample = mix.sources[mix.locate(number).source].task.label, mix.sample(number)
        assert {*sample} == inputs | labels[task]
        assert all(sample[name].shape == mix.batch_spec.fields[name].shape for name in sample)
        tasks.add(task)
    assert tasks == {*ALL_TASKS}
    assert {*validation.sample(0)} == {*validation.batch_spec.fields} == inputs.union(*labels.values())


def test_each_batch_has_one_task_and_shares_are_exact(folder):
    mix = open_regions(folder, ALL_TASKS, schedule=BatchSchedule(BATCH))
    steps = Counter[int]()
    for step in range(BATCHES, 2 * BATCHES):
        [source] = {mix.locate(number).source for number in range(step * BATCH, (step + 1) * BATCH)}
        steps[source] += 1
    assert all(abs(steps[source] - BATCHES * share / 7) < 1 for source, share in enumerate((2, 2, 1, 1, 1)))
    # Each task reads its corpus without gaps.
    cursors = [*mix.cursors(BATCHES * BATCH).values()]
    for number in range(BATCHES * BATCH, (BATCHES + 20) * BATCH):
        location = mix.locate(number)
        sample_index = location.epoch * mix.orders[location.source].per_epoch + location.position
        assert sample_index == cursors[location.source]
        cursors[location.source] += 1
    assert [*mix.cursors((BATCHES + 20) * BATCH).values()] == cursors
    # Validation batches mix the tasks.
    validation = open_regions(folder, ALL_TASKS, split="validation")
    assert len({validation.locate(number).source for number in range(BATCH)}) > 1


def test_shares_of_corpora_hold_within_each_task(folder, tmp_path):
    region_corpus(tmp_path / "more", images=30, tokenizer=TokenizerRecipe(folder=str(folder / "tokenizer")))
    settings = {"sequence": WORDS + REGIONS, "seed": 3, "special": load_tokenizer(folder / "tokenizer").special}
    mix = open_mix(
        {str(folder): 1, str(tmp_path / "more"): 3}, objective=ALL_TASKS, schedule=BatchSchedule(BATCH), **settings
    )
    single = open_mix({str(folder): 1, str(tmp_path / "more"): 3}, objective=single_task("masked-regions"), **settings)
    numbers = range(BATCHES * BATCH)
    counts = Counter(mix.locate(number).source for number in numbers)
    for first in range(0, len(mix.sources), 2):
        share = counts[first] / (counts[first] + counts[first + 1])
        assert share == pytest.approx(single.quotas[0] / sum(single.quotas), abs=0.01)


def test_batch_ramp_and_tiny_share_are_rejected(folder):
    with pytest.raises(UserError, match=r"train\.ramp: each batch belongs to one task of objective"):
        open_regions(folder, ALL_TASKS, schedule=BatchSchedule(8, sizes_by_step=((0, 4), (10, 8))))
    small = {**ALL_TASKS, "words": {**ALL_TASKS["words"], "share": 0.001}}
    with pytest.raises(UserError, match=r"objective\.words\.share is less than one batch in 360"):
        open_regions(folder, small, schedule=BatchSchedule(BATCH))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"features": 2048},
            r"sample 0, of .*corpus: the regions of document \d+ of train-\d+\.tar cannot be read .* another detector "
            r".24 features and 17 classes, not 2,048 and 17.*objective masked-regions.*copy that shard again",
        ),
        ({"regions": 40}, r"data\.sequence \(32\) leaves 0 positions for a text before 40 regions"),
    ],
)
def test_options_that_contradict_the_corpus_are_rejected(folder, options, message):
    with pytest.raises(UserError, match=message):
        open_regions(folder, single_task("masked-regions", **options)).sample(0)


def npz(**arrays: np.ndarray) -> bytes:
    """Return a .npz file of the arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def valid_arrays(count: int = 3, **other: np.ndarray) -> dict[str, np.ndarray]:
    """Return valid arrays of `count` regions, some of them replaced."""
    rng = np.random.default_rng(0)
    arrays = {
        "features": rng.normal(size=(count, 4)).astype(np.float32),
        "norm_bb": rng.random((count, 6)),
        "soft_labels": np.full((count, 5), 0.2, dtype=np.float16),
        "conf": np.ones(count, dtype=np.float16),
    }
    return {**arrays, **other}


def zip_bomb() -> bytes:
    """Return a small file that unpacks to 80 MiB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", bytes(80 << 20))
    return file.getvalue()


def with_header(header: str) -> bytes:
    """Return a file whose array of features is the header and eight bytes."""
    file, encoded = io.BytesIO(), header.encode() + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("features.npy", b"\x93NUMPY\1\0" + len(encoded).to_bytes(2, "little") + encoded + bytes(8))
    return file.getvalue()


def damaged() -> bytes:
    """Return a compressed file with 40 damaged bytes."""
    file = io.BytesIO()
    np.savez_compressed(file, **valid_arrays(200))
    content = bytearray(file.getvalue())
    content[80:120] = bytes(40)
    return bytes(content)


def header(shape: str, dtype: str = "'<f8'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


NAN = "regions with NaN, or with values too large for half precision"
INVALID_FILES = {
    "flipped": (damaged(), "damaged"),
    "enormous": (with_header(header(f"({10**15}, 4)")), "damaged"),
    "overflow": (with_header(header(f"({2**70},)")), "damaged"),
    "negative": (with_header(header("(-1, -1)")), "damaged"),
    "deep": (with_header("(" * 3000), "damaged"),
    "unclosed": (with_header("{'a': '''"), "damaged"),
    "no type": (with_header(header("(1,)", "()")), "damaged"),
    "unsure": (npz(**valid_arrays(conf=np.array(["a", "b", "c"]))), "regions of another shape"),
    "pixels": (
        npz(**valid_arrays(norm_bb=np.full((3, 6), 480.0))),
        "regions with boxes that are not relative to the image",
    ),
    "scores": (
        npz(**valid_arrays(soft_labels=np.full((3, 5), -2.0))),
        "regions with class scores that are not probabilities",
    ),
    "cut": (npz(**valid_arrays())[:-40], "damaged"),
    "text": (b"no file of regions", "damaged"),
    "pickled": (npz(**valid_arrays(features=np.array([{}], dtype=object))), "damaged"),
    "bomb": (zip_bomb(), "regions of more than 64 MiB"),
    "bare": (npz(features=np.ones((3, 4))), "regions without norm_bb"),
    "flat": (npz(**valid_arrays(features=np.ones(4))), "regions of another shape"),
    "words": (npz(**valid_arrays(features=np.array([["a"] * 4] * 3))), "regions of another shape"),
    "uneven": (npz(**valid_arrays(norm_bb=np.ones((2, 6)))), "regions of another shape"),
    "boxes": (npz(**valid_arrays(norm_bb=np.ones((3, 4)))), "regions of another shape"),
    "wide": (npz(**valid_arrays(features=np.ones((3, 8)))), "regions of another detector"),
    "classes": (npz(**valid_arrays(soft_labels=np.ones((3, 9)))), "regions of another detector"),
    "none": (npz(**valid_arrays(0)), "no regions"),
    "nan": (npz(**valid_arrays(features=np.full((3, 4), np.nan))), NAN),
    "large": (npz(**valid_arrays(features=np.full((3, 4), 1e6))), NAN),
}


@pytest.mark.parametrize("name", INVALID_FILES)
def test_invalid_region_file_is_rejected(name):
    content, reason = INVALID_FILES[name]
    with pytest.raises(RegionError, match=reason):
        read_regions(content, features=4, classes=5)


def test_valid_region_file_is_read():
    """Areas are computed, and confidence is 1 if the file has none."""
    arrays = valid_arrays()
    regions = read_regions(npz(**{name: arrays[name] for name in arrays if name != "conf"}), features=4, classes=5)
    assert len(regions) == 3
    assert regions.boxes[:, 6] == pytest.approx(regions.boxes[:, 4] * regions.boxes[:, 5])
    assert (regions.confidence == 1).all()


def test_other_text_of_the_same_image_matches(folder):
    task = build_objective(single_task("image-text-matching", features=4, classes=5))
    context = SampleContext(load_tokenizer(folder / "tokenizer").special, np.random.default_rng(0), 32, True)
    own, same, other = (
        DocumentSlice(np.array([number]), slots=0, blobs={"npz": npz(**valid_arrays(count))})
        for number, count in ((7, 3), (8, 3), (9, 4))
    )
    assert [task.make_sample([own, shown], context)["matched"] for shown in (same, other)] == [1, 0]


@pytest.mark.parametrize("shards", [False, True])
def test_build_counts_and_skips_invalid_files(tmp_path, shards):
    source = tmp_path / "source"
    source.mkdir()
    files = {f"good{number}": npz(**valid_arrays(3 + number)) for number in range(4)}
    files |= {name: content for name, (content, _) in INVALID_FILES.items()}
    if shards:
        members = {}
        for name, content in files.items():
            members |= {f"{name}.npz": content, f"{name}.txt": f"what {name} shows".encode()}
        write_tar(source / "a.tar", {**members, "alone.txt": b"a text"})
    else:
        for name, content in files.items():
            (source / f"{name}.npz").write_bytes(content)
            (source / f"{name}.txt").write_text(f"what {name} shows")
        (source / "alone.txt").write_text("a text")
    report = build(
        source,
        tmp_path / "corpus",
        texts=True,
        regions=True,
        detector=(4, 5),
        validation=0,
        tokenizer=TokenizerRecipe(kind="wordpiece", vocabulary=80, lowercase=False),
    )
    assert report.splits["train"]["images"] == 4
    reasons = Counter(reason for _, reason in INVALID_FILES.values())
    assert report.dropped == {**reasons, "text without image": 1}
    assert report.size_name == "number of regions"


def test_hdf5_and_npz_give_the_same_corpus(tmp_path):
    """Links, virtual datasets and datasets without data in an HDF5 file are counted, not followed or allocated."""
    h5py = pytest.importorskip("h5py")
    invalid = {"elsewhere", "outside", "virtual", "flat", "bare", "never", "wide", "silent"}
    for file_format in ("npz", "hdf5"):
        (tmp_path / file_format).mkdir()
        for name in (*"abcd", *invalid - {"silent"}):
            (tmp_path / file_format / f"{name}.txt").write_text(f"what {name} shows")
    valid = {name: valid_arrays(3 + number) for number, name in enumerate("abcd")}
    for name, arrays in valid.items():
        (tmp_path / f"npz/{name}.npz").write_bytes(npz(**arrays))
    with h5py.File(tmp_path / "hdf5/all.h5", "w") as file:
        for name, arrays in {**valid, "wide": valid_arrays(features=np.ones((3, 8))), "silent": valid_arrays()}.items():
            for array, numbers in arrays.items():
                file[f"{name}/{array}"] = numbers
        file["elsewhere"] = h5py.ExternalLink("another.h5", "/")
        file["outside/features"] = h5py.SoftLink("/a/features")
        layout = h5py.VirtualLayout((3, 4), "f4")
        layout[:] = h5py.VirtualSource(tmp_path / "another.h5", "features", (3, 4))
        file.create_group("virtual").create_virtual_dataset("features", layout)
        file["flat"] = np.ones(4)
        file["bare/features"] = np.ones((3, 4))
        file.create_group("never").create_dataset("features", shape=(1 << 20, 4), dtype="f4")
    (tmp_path / "hdf5/cut.hdf5").write_bytes((tmp_path / "hdf5/all.h5").read_bytes()[:3000])
    options = {"texts": True, "regions": True, "detector": (4, 5), "validation": 0}
    reports = [build(tmp_path / form, tmp_path / f"of-{form}", **options, tokenizer=CASED) for form in ("npz", "hdf5")]
    assert [report.splits["train"]["images"] for report in reports] == [4, 4]
    assert reports[1].dropped == {
        "damaged": 1,
        "image without text": 1,
        "HDF5 regions behind a link": 2,
        "regions of another shape": 1,
        "HDF5 regions outside of a group": 1,
        "regions without norm_bb": 1,
        "regions of more than 64 MiB": 1,
        "regions of another detector": 1,
    }
    by_text = [arrays_by_text(tmp_path / f"of-{form}") for form in ("npz", "hdf5")]
    assert by_text[0].keys() == by_text[1].keys()
    for text, [arrays] in by_text[0].items():
        assert all((by_text[1][text][0][name] == array).all() for name, array in arrays.items())


def test_corpus_of_regions_has_no_images(folder):
    with pytest.raises(UserError, match="has no images, which objective image-labels reads"):
        open_regions(folder, {"image-labels": {"size": 8}}, sequence=17)
    assert build_objective("uniter").needs_own_batches
