"""Texts with regions of images, from files to samples: what is hidden and what is asked, never words and regions at
once; batches of one task; files of other detectors, and worse ones."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_pipeline.images.region_shapes import DETECTOR
from data_pipeline.recipe import TokenizerRecipe
from megaptm.batch import IGNORED, MASKED_REGION
from megaptm.batch_schedule import BatchSchedule
from megaptm.data import Corpus, open_mix
from megaptm.data.batch_mix import BATCHES
from megaptm.errors import UserError
from megaptm.objectives import build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.objectives.region_files import RegionError, read_regions
from megaptm.tokenizers import load as load_tokenizer
from tests.data_pipeline.images.pictures import build, write_tar
from tests.data_pipeline.images.region_corpora import TOKENIZERS, region_corpus

WORDS, REGIONS, ROWS = 24, 8, 6
OPTIONS = {"regions": REGIONS, "features": DETECTOR[0], "classes": DETECTOR[1]}
ALL = {
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


def opened(folder: Path, objective: Any, **options: Any):
    told = {"sequence": WORDS + REGIONS, "seed": 3, "special": load_tokenizer(folder / "tokenizer").special, **options}
    return open_mix({str(folder): 1.0}, objective=objective, **told)


def one(task: str, **options: Any) -> dict[str, Any]:
    return {task: {**OPTIONS, **options}}


def documents(folder: Path) -> dict[tuple[int, ...], list[dict[str, np.ndarray]]]:
    """Ids of a text -> arrays of the files that have it."""
    corpus, found = Corpus.open(folder), {}
    for info in corpus.split("train").shards:
        shard = corpus.open_shard(info)
        for number in range(len(shard)):
            arrays = dict(np.load(io.BytesIO(shard.blob("npz", number))))
            found.setdefault(tuple(shard.tokens(number).tolist()), []).append(arrays)
    return found


def own_files(sample: dict[str, np.ndarray], known: Any) -> list[dict[str, np.ndarray]]:
    text = sample["tokens"][:WORDS][sample["document_ids"][:WORDS] > 0]
    return known[tuple(text[1:-1].tolist())]


def test_a_row_is_a_text_and_the_regions_of_its_image(folder):
    known, mix = documents(folder), opened(folder, one("masked-regions"))
    special = load_tokenizer(folder / "tokenizer").special
    for number in range(40):
        sample = mix.sample(number)
        text = sample["tokens"][:WORDS][sample["document_ids"][:WORDS] > 0]
        assert (text[0], text[-1]) == (special.cls, special.sep)
        there = sample["document_ids"][WORDS:] > 0
        hidden = sample["tokens"][WORDS:] == MASKED_REGION
        [found] = [
            one for one in own_files(sample, known) if np.array_equal(one["norm_bb"], sample["region_boxes"][there, :6])
        ]
        assert (sample["region_boxes"][:, 6] == sample["region_boxes"][:, 4] * sample["region_boxes"][:, 5]).all()
        assert np.array_equal(sample["region_features"][there & ~hidden], found["features"][~hidden[there]])
        assert (sample["region_features"][hidden] == 0).all()
        assert (sample["segments"] == (np.arange(WORDS + REGIONS) >= WORDS)).all()
        asked = (sample["masked_region_features"] != IGNORED).any(1)
        assert (sample["masked_positions"][asked] - WORDS == np.flatnonzero(hidden)).all()
        assert np.array_equal(sample["masked_region_features"][asked], found["features"][hidden[there]])


def test_classes_are_the_likeliest_but_the_background_and_distributions_are_the_files(folder):
    known = documents(folder)
    labels, probabilities = (opened(folder, one(f"masked-regions-{name}")) for name in ("class", "distribution"))
    for number in range(30):
        for mix, field in ((labels, "region_labels"), (probabilities, "region_distributions")):
            sample = mix.sample(number)
            there = sample["document_ids"][WORDS:] > 0
            [found] = [
                one
                for one in own_files(sample, known)
                if np.array_equal(one["norm_bb"], sample["region_boxes"][there, :6])
            ]
            wanted = found["soft_labels"][np.flatnonzero(sample["tokens"][WORDS:] == MASKED_REGION)]
            told = sample[field][: len(wanted)]
            if field == "region_labels":
                assert (told == wanted[:, 1:].argmax(1) + 1).all()
            else:
                assert np.array_equal(told, wanted)
            assert (sample[field][len(wanted) :] == IGNORED).all()


def test_words_and_regions_are_never_hidden_at_once(folder):
    mix = opened(folder, ALL)
    mask = load_tokenizer(folder / "tokenizer").special.mask
    seen = Counter[str]()
    for number in range(400):
        task = mix.sources[mix.locate(number).source].task.label
        sample = mix.sample(number)
        words = bool((sample["labels"] != IGNORED).any())
        regions = bool((sample["tokens"][WORDS:] == MASKED_REGION).any())
        assert (words, regions) == (task == "words", task in ("features", "classes", "likely"))
        assert words or not (sample["tokens"][:WORDS] == mask).any()
        assert (sample["matched"] != IGNORED) == (task == "matching")
        asked = ("masked_region_features", "region_labels", "region_distributions")
        told = {name for name in asked if (sample[name] != IGNORED).any()}
        assert told == {"features": {"masked_region_features"}, "classes": {"region_labels"}}.get(
            task, {"region_distributions"} if task == "likely" else set()
        )
        seen[task] += 1
    assert set(seen) == set(ALL)


def test_a_seventh_of_regions_and_words_is_hidden(folder):
    """MASKSTAT: 15% of each, one at least, so that rows this short have a few more."""
    mix = opened(folder, one("masked-regions", rate=0.4))
    hidden = there = 0
    for number in range(300):
        sample = mix.sample(number)
        count = int((sample["document_ids"][WORDS:] > 0).sum())
        here = sample["tokens"][WORDS:] == MASKED_REGION
        assert here.sum() == max(1, round(0.4 * count))
        assert not here[count:].any()
        hidden, there = hidden + here.sum(), there + count
    assert hidden / there == pytest.approx(0.4, abs=0.03)
    special = load_tokenizer(folder / "tokenizer").special
    mix, kinds = opened(folder, one("image-text-masked-lm")), Counter[str]()
    for number in range(1500):
        sample = mix.sample(number)
        for at, label in zip(sample["masked_positions"], sample["labels"], strict=True):
            if label != IGNORED:
                assert label not in special.specials
                shown = sample["tokens"][at]
                kinds["mask" if shown == special.mask else "same" if shown == label else "random"] += 1
    shares = {kind: count / kinds.total() for kind, count in kinds.items()}
    assert shares == pytest.approx({"mask": 0.8, "same": 0.1, "random": 0.1}, abs=0.03)


def test_half_of_the_rows_show_another_texts_image(folder):
    known, mix = documents(folder), opened(folder, one("image-text-matching"))
    matched = []
    for number in range(300):
        sample = mix.sample(number)
        there = sample["document_ids"][WORDS:] > 0
        files = own_files(sample, known)
        own = any(np.array_equal(one["features"], sample["region_features"][there]) for one in files)
        # Of several images with one text another's may be shown.
        assert own if sample["matched"] else (not own or len(files) > 1)
        matched.append(int(sample["matched"]))
    assert np.mean(matched) == pytest.approx(0.5, abs=0.12)


def test_a_sample_depends_on_its_number_alone(folder):
    schedule = BatchSchedule(ROWS)
    mix, again = (opened(folder, ALL, schedule=schedule) for _ in range(2))
    copy = pickle.loads(pickle.dumps(mix))
    for number in (5, 900, 17, 2**20, 5):
        ours = mix.sample(number)
        mix.batch.with_labels(ours).check(ours, maker="uniter")
        for other in (again, copy):
            theirs = other.sample(number)
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def test_samples_of_a_step_say_what_their_task_asks_and_nothing_of_others(folder):
    """So that no rank computes another's heads; what is read has one shape in all steps. Held-out rows are of all."""
    mix, held = opened(folder, ALL, schedule=BatchSchedule(ROWS)), opened(folder, ALL, split="validation")
    asked = {
        "matching": {"matched"},
        "words": {"labels"},
        "features": {"masked_region_features"},
        "classes": {"region_labels"},
        "likely": {"region_distributions"},
    }
    read = {*mix.batch.fields} - {*mix.batch.label_names}
    seen = set()
    for number in range(0, 40 * ROWS, ROWS):
        task, sample = mix.sources[mix.locate(number).source].task.label, mix.sample(number)
        assert {*sample} == read | asked[task]
        assert all(sample[name].shape == mix.batch.fields[name].shape for name in sample)
        seen.add(task)
    assert seen == {*ALL}
    assert {*held.sample(0)} == {*held.batch.fields} == read.union(*asked.values())


def test_each_batch_is_of_one_task_and_shares_are_exact(folder):
    mix = opened(folder, ALL, schedule=BatchSchedule(ROWS))
    steps = Counter[int]()
    for step in range(BATCHES, 2 * BATCHES):
        [source] = {mix.locate(number).source for number in range(step * ROWS, (step + 1) * ROWS)}
        steps[source] += 1
    assert all(abs(steps[source] - BATCHES * share / 7) < 1 for source, share in enumerate((2, 2, 1, 1, 1)))
    # Each task goes through its corpus without gaps, wherever it stands.
    cursors = [*mix.cursors(BATCHES * ROWS).values()]
    for number in range(BATCHES * ROWS, (BATCHES + 20) * ROWS):
        place = mix.locate(number)
        assert place.epoch * mix.orders[place.source].per_epoch + place.position == cursors[place.source]
        cursors[place.source] += 1
    assert [*mix.cursors((BATCHES + 20) * ROWS).values()] == cursors
    # Held-out samples are of any task, since nothing is learned of them.
    held = opened(folder, ALL, split="validation")
    assert len({held.locate(number).source for number in range(ROWS)}) > 1


def test_corpora_have_their_shares_within_a_task(folder, tmp_path):
    region_corpus(tmp_path / "more", images=30, tokenizer=TokenizerRecipe(folder=str(folder / "tokenizer")))
    told = {"sequence": WORDS + REGIONS, "seed": 3, "special": load_tokenizer(folder / "tokenizer").special}
    mix = open_mix({str(folder): 1, str(tmp_path / "more"): 3}, objective=ALL, schedule=BatchSchedule(ROWS), **told)
    alone = open_mix({str(folder): 1, str(tmp_path / "more"): 3}, objective=one("masked-regions"), **told)
    numbers = range(BATCHES * ROWS)
    seen = Counter(mix.locate(number).source for number in numbers)
    for first in range(0, len(mix.sources), 2):
        ours = seen[first] / (seen[first] + seen[first + 1])
        assert ours == pytest.approx(alone.quotas[0] / sum(alone.quotas), abs=0.01)


def test_a_batch_that_grows_and_a_share_that_is_too_small_are_one_sentence(folder):
    with pytest.raises(UserError, match=r"train\.ramp: each batch belongs to one task of objective"):
        opened(folder, ALL, schedule=BatchSchedule(8, sizes_by_step=((0, 4), (10, 8))))
    small = {**ALL, "words": {**ALL["words"], "share": 0.001}}
    with pytest.raises(UserError, match=r"objective\.words\.share is less than one batch in 360"):
        opened(folder, small, schedule=BatchSchedule(ROWS))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"features": 2048},
            r"sample 0, of .*corpus: the regions of document \d+ of train-\d+\.tar cannot be read .* another detector "
            r".24 features and 17 classes, not 2,048 and 17.*objective masked-regions.*copy that shard again",
        ),
        ({"regions": 40}, r"data\.sequence \(32\) leaves 0 positions for a text before 40 regions"),
    ],
)
def test_what_does_not_fit_a_corpus_is_one_sentence(folder, options, said):
    with pytest.raises(UserError, match=said):
        opened(folder, one("masked-regions", **options)).sample(0)


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def good(count: int = 3, **other: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {
        "features": rng.normal(size=(count, 4)).astype(np.float32),
        "norm_bb": rng.random((count, 6)),
        "soft_labels": np.full((count, 5), 0.2, dtype=np.float16),
        "conf": np.ones(count, dtype=np.float16),
    }
    return {**made, **other}


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("features.npy", bytes(80 << 20))
    return file.getvalue()


def saying(header: str) -> bytes:
    """A file whose array of features is a header, and eight bytes."""
    file, said = io.BytesIO(), header.encode() + b"\n"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("features.npy", b"\x93NUMPY\1\0" + len(said).to_bytes(2, "little") + said + bytes(8))
    return file.getvalue()


def flipped() -> bytes:
    """A compressed file with damage in the midst of it."""
    file = io.BytesIO()
    np.savez_compressed(file, **good(200))
    content = bytearray(file.getvalue())
    content[80:120] = bytes(40)
    return bytes(content)


def header(shape: str, dtype: str = "'<f8'") -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}}}"


NAN = "regions with NaN, or with values too large for half precision"
BAD = {
    "flipped": (flipped(), "damaged"),
    "enormous": (saying(header(f"({10**15}, 4)")), "damaged"),
    "overflow": (saying(header(f"({2**70},)")), "damaged"),
    "negative": (saying(header("(-1, -1)")), "damaged"),
    "deep": (saying("(" * 3000), "damaged"),
    "unclosed": (saying("{'a': '''"), "damaged"),
    "no type": (saying(header("(1,)", "()")), "damaged"),
    "unsure": (npz(**good(conf=np.array(["a", "b", "c"]))), "regions of another shape"),
    "pixels": (npz(**good(norm_bb=np.full((3, 6), 480.0))), "regions with boxes that are not relative to the image"),
    "scores": (npz(**good(soft_labels=np.full((3, 5), -2.0))), "regions with class scores that are not probabilities"),
    "cut": (npz(**good())[:-40], "damaged"),
    "text": (b"no file of regions", "damaged"),
    "pickled": (npz(**good(features=np.array([{}], dtype=object))), "damaged"),
    "bomb": (bomb(), "regions of more than 64 MiB"),
    "bare": (npz(features=np.ones((3, 4))), "regions without norm_bb"),
    "flat": (npz(**good(features=np.ones(4))), "regions of another shape"),
    "words": (npz(**good(features=np.array([["a"] * 4] * 3))), "regions of another shape"),
    "uneven": (npz(**good(norm_bb=np.ones((2, 6)))), "regions of another shape"),
    "boxes": (npz(**good(norm_bb=np.ones((3, 4)))), "regions of another shape"),
    "wide": (npz(**good(features=np.ones((3, 8)))), "regions of another detector"),
    "classes": (npz(**good(soft_labels=np.ones((3, 9)))), "regions of another detector"),
    "none": (npz(**good(0)), "no regions"),
    "nan": (npz(**good(features=np.full((3, 4), np.nan))), NAN),
    "large": (npz(**good(features=np.full((3, 4), 1e6))), NAN),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_is_none_is_refused_with_a_reason(name):
    content, reason = BAD[name]
    with pytest.raises(RegionError, match=reason):
        read_regions(content, features=4, classes=5)


def test_a_good_file_is_read_with_areas_and_without_confidence():
    arrays = good()
    found = read_regions(npz(**{name: arrays[name] for name in arrays if name != "conf"}), features=4, classes=5)
    assert len(found) == 3
    assert found.boxes[:, 6] == pytest.approx(found.boxes[:, 4] * found.boxes[:, 5])
    assert (found.confidence == 1).all()


def test_another_text_of_the_same_image_is_a_match(folder):
    task = build_objective(one("image-text-matching", features=4, classes=5))
    context = SampleContext(load_tokenizer(folder / "tokenizer").special, np.random.default_rng(0), 32, True)
    own, same, other = (
        DocumentSlice(np.array([number]), slots=0, blobs={"npz": npz(**good(count))})
        for number, count in ((7, 3), (8, 3), (9, 4))
    )
    assert [task.make([own, shown], context)["matched"] for shown in (same, other)] == [1, 0]


@pytest.mark.parametrize("shards", [False, True])
def test_a_build_counts_bad_files_and_goes_on(tmp_path, shards):
    source = tmp_path / "source"
    source.mkdir()
    files = {f"good{number}": npz(**good(3 + number)) for number in range(4)}
    files |= {name: content for name, (content, _) in BAD.items()}
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
    reasons = Counter(reason for _, reason in BAD.values())
    assert report.dropped == {**reasons, "text without image": 1}
    assert report.regions


def test_an_hdf5_file_of_many_images_is_files_of_each(tmp_path):
    """The same corpus; what in it is no image's own numbers is counted, and neither followed nor made room for."""
    h5py = pytest.importorskip("h5py")
    wrong = {"elsewhere", "outside", "virtual", "flat", "bare", "never", "wide", "silent"}
    for form in ("npz", "hdf5"):
        (tmp_path / form).mkdir()
        for name in (*"abcd", *wrong - {"silent"}):
            (tmp_path / form / f"{name}.txt").write_text(f"what {name} shows")
    good_ones = {name: good(3 + number) for number, name in enumerate("abcd")}
    for name, arrays in good_ones.items():
        (tmp_path / f"npz/{name}.npz").write_bytes(npz(**arrays))
    with h5py.File(tmp_path / "hdf5/all.h5", "w") as file:
        for name, arrays in {**good_ones, "wide": good(features=np.ones((3, 8))), "silent": good()}.items():
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
    usual = {"texts": True, "regions": True, "detector": (4, 5), "validation": 0}
    told = [build(tmp_path / form, tmp_path / f"of-{form}", **usual, tokenizer=CASED) for form in ("npz", "hdf5")]
    assert [report.splits["train"]["images"] for report in told] == [4, 4]
    assert told[1].dropped == {
        "damaged": 1,
        "image without text": 1,
        "HDF5 regions behind a link": 2,
        "regions of another shape": 1,
        "HDF5 regions outside of a group": 1,
        "regions without norm_bb": 1,
        "regions of more than 64 MiB": 1,
        "regions of another detector": 1,
    }
    by_text = [documents(tmp_path / f"of-{form}") for form in ("npz", "hdf5")]
    assert by_text[0].keys() == by_text[1].keys()
    for text, [arrays] in by_text[0].items():
        assert all((by_text[1][text][0][name] == array).all() for name, array in arrays.items())


def test_a_corpus_of_regions_has_no_images(folder):
    with pytest.raises(UserError, match="has no images, which objective image-labels reads"):
        opened(folder, {"image-labels": {"size": 8}}, sequence=17)
    assert build_objective("uniter").needs_own_batches
