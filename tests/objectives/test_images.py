"""Samples of images: crops, patches and masked patches depend only on run, epoch and sample."""

from __future__ import annotations

import numpy as np
import pytest

from megaptm.data import Loader, open_mix
from megaptm.data.shards import Shard
from megaptm.errors import UserError
from megaptm.families.vit.objectives import ImageLabels, MaskedPatches
from megaptm.families.vit.pixels import (
    CropBox,
    center_square,
    crop_and_scale,
    from_patches,
    mean_colors,
    open_image,
    random_crop,
    to_patches,
)
from megaptm.families.vit.spec import IMAGE, MASKED_PATCH, PATCH
from megaptm.objectives import build_objective
from megaptm.objectives.objective import DocumentSlice, SampleContext
from megaptm.tokenizers import load_tokenizer
from tests.data.corpora import tiny_special
from tests.data_pipeline.images.pictures import build, encoded, folder_of_labels, huge, picture, pixels

SEQUENCE = 17


def context(seed: int = 0, *, sequence: int = SEQUENCE) -> SampleContext:
    return SampleContext(tiny_special(), np.random.default_rng(seed), sequence, document_mask=True)


def make_sample(objective, content: bytes, *, seed: int = 0, label: int = 3):
    piece = [DocumentSlice(np.array([label]), slots=0, blobs={"jpg": content})]
    return objective.make_sample(piece, context(seed))


@pytest.mark.parametrize("content", [huge(), picture()[:200], b""])
def test_undecodable_image_names_its_source(content):
    with pytest.raises(UserError, match=r"photo cannot be decoded .*: give another"):
        ImageLabels(size=8).decode_patches(content, 4, np.random.default_rng(0), source="photo", remedy="give another")


def test_patches_round_trip():
    image = np.random.default_rng(0).integers(256, size=(12, 12, 3)).astype(np.uint8)
    patches = to_patches(image, 4)
    assert patches.shape == (9, 48)
    assert (from_patches(patches, 4) == image).all()
    assert (patches[1, :4] == image[0, 4:8, 0]).all()
    assert (patches[3, 16:20] == image[4, :4, 1]).all()


def test_mean_colors_have_three_bits_per_channel():
    image = np.zeros((2, 4, 3), np.uint8)
    image[:, 2:] = (255, 128, 31)
    assert mean_colors(to_patches(image, 2)).tolist() == [0, 7 << 6 | 4 << 3 | 0]


def test_center_crop_is_scaled():
    import PIL.Image

    content = encoded(PIL.Image.fromarray(pixels(40, 24)), "PNG")
    sample = make_sample(ImageLabels(size=8, crop="center", flip=False), content)
    assert sample["tokens"].tolist() == [IMAGE, *[PATCH] * 16]
    assert sample["image_label"] == 3
    shown = from_patches(sample["patches"], 2).astype(int)
    expected = pixels(40, 24)[:, 8:32].reshape(8, 3, 8, 3, 3).mean((1, 3))
    assert np.abs(shown - expected).max() < 12
    uncropped = from_patches(make_sample(ImageLabels(size=8, crop="none", flip=False), content)["patches"], 2).astype(
        int
    )
    assert np.abs(uncropped - pixels(40, 24).reshape(8, 3, 8, 5, 3).mean((1, 3))).max() < 16


def test_half_of_images_are_mirrored():
    objective = ImageLabels(size=8, crop="none")
    images = [from_patches(make_sample(objective, picture(), seed=seed)["patches"], 2) for seed in range(60)]
    plain = from_patches(make_sample(objective.for_validation(), picture())["patches"], 2)
    mirrored = [(image == plain[:, ::-1]).all() for image in images]
    assert all(flag or (image == plain).all() for flag, image in zip(mirrored, images, strict=True))
    assert 15 < sum(mirrored) < 45


def test_random_crops_have_requested_area_and_ratio():
    rng = np.random.default_rng(0)
    boxes = [random_crop(320, 200, (0.1, 0.6), rng) for _ in range(400)]
    area_shares = [(box.x1 - box.x0) * (box.y1 - box.y0) / (320 * 200) for box in boxes]
    ratios = [(box.x1 - box.x0) / (box.y1 - box.y0) for box in boxes]
    assert min(area_shares) > 0.095
    assert max(area_shares) < 0.61
    assert np.mean(area_shares) == pytest.approx(0.35, abs=0.03)
    assert min(ratios) > 0.72
    assert max(ratios) < 1.39
    assert all(0 <= box.x0 < box.x1 <= 320 and 0 <= box.y0 < box.y1 <= 200 for box in boxes)
    assert random_crop(1000, 10, (0.9, 1.0), rng) == center_square(1000, 10) == CropBox(495, 0, 505, 10)


def test_large_jpeg_is_decoded_at_reduced_size():
    box, shown = CropBox(200, 100, 1400, 1000), {}
    for image_format, side in (("JPEG", 200), ("PNG", 1600)):
        with open_image(picture(image_format, width=1600, height=1200)) as image:
            shown[image_format] = crop_and_scale(image, box, 60).astype(int)
            assert max(image.size) == side
    assert shown["PNG"].std() > 15
    assert np.abs(shown["JPEG"] - shown["PNG"]).mean() < 4


def test_masked_patches_have_published_rates():
    objective = MaskedPatches(size=80, crop="none", flip=False)
    content, sequence = picture(width=80, height=80), 401
    piece = [DocumentSlice(np.array([0]), slots=0, blobs={"jpg": content})]
    plain = ImageLabels(size=80, crop="none", flip=False).make_sample(piece, context(sequence=sequence))
    outcomes = np.zeros(3)
    for seed in range(40):
        sample = objective.make_sample(piece, context(seed, sequence=sequence))
        positions = sample["masked_positions"]
        assert len(np.unique(positions)) == len(positions) == 200
        assert (positions >= 1).all()
        assert (sample["patch_colors"] == mean_colors(plain["patches"])[positions - 1]).all()
        hidden = sample["tokens"][positions] == MASKED_PATCH
        replaced = (sample["patches"][positions - 1] != plain["patches"][positions - 1]).any(-1)
        assert not (hidden & replaced).any()
        outcomes += hidden.sum(), replaced.sum(), (~hidden & ~replaced).sum()
        unmasked = np.setdiff1d(np.arange(1, sequence), positions)
        assert (sample["tokens"][unmasked] == PATCH).all()
        assert (sample["patches"][unmasked - 1] == plain["patches"][unmasked - 1]).all()
    assert (outcomes / outcomes.sum()).round(2).tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.02)


@pytest.mark.parametrize(("sequence", "size"), [(18, 8), (1, 8), (17, 10)])
def test_sequence_that_does_not_fit_the_image_is_rejected(sequence, size):
    with pytest.raises(UserError, match=r"data.sequence \("):
        ImageLabels(size=size).check(tiny_special(), sequence)


def test_truncated_image_is_rejected():
    with pytest.raises(UserError, match="cannot be decoded"):
        make_sample(ImageLabels(size=8), picture(width=200, height=200)[:-900])


def test_validation_images_are_not_augmented():
    assert ImageLabels(size=8).for_validation() == ImageLabels(size=8, crop="center", flip=False)
    both = build_objective(
        {"image-labels": {"size": 8, "share": 0.5}, "masked-patches": {"size": 8, "crop": "none", "share": 0.5}}
    ).for_validation()
    assert [(task.objective.crop, task.objective.flip) for task in both.tasks] == [("center", False), ("none", False)]


@pytest.fixture(scope="module")
def mix(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    build(folder_of_labels(folder / "source", num_valid=30), folder / "corpus", validation=0.1, shard_bytes=10_000)
    special = load_tokenizer(folder / "corpus/tokenizer").special
    return open_mix(
        {str(folder / "corpus"): 1.0}, objective={"masked-patches": {"size": 8}}, sequence=17, seed=4, special=special
    )


def read_batches(mix, *, start: int, steps: int, rank: int = 0, ranks: int = 1, workers: int = 0):
    with Loader(mix, start_step=start, batch=8, microbatch=2, rank=rank, ranks=ranks, workers=workers) as loader:
        return [next(loader)[1] for _ in range(steps)]


def test_batches_are_independent_of_ranks_workers_and_start(mix):
    """Compare more than one epoch."""
    expected = read_batches(mix, start=0, steps=12)
    assert mix.fresh_samples < 12 * 8
    for ranks, workers in ((2, 2), (4, 0)):
        parts = [read_batches(mix, start=5, steps=7, rank=rank, ranks=ranks, workers=workers) for rank in range(ranks)]
        for step in range(7):
            batches = [batch for part in parts for batch in part[step]]
            assert len(batches) == 4
            for batch, other in zip(batches, expected[5 + step], strict=True):
                assert batch.keys() == other.keys()
                assert all(batch[name].equal(other[name]) for name in batch)


def test_damaged_image_names_its_shard(mix, monkeypatch):
    """The user copies that shard again, not the whole corpus."""
    monkeypatch.setattr(Shard, "blob", lambda *_: b"damaged")
    message = (
        r"sample 0, of .*: the image of document \d+ of train-\d+\.tar cannot be decoded .*: copy that shard again"
    )
    with pytest.raises(UserError, match=message):
        mix.sample(0)


def test_crops_differ_in_each_epoch(mix):
    [order] = mix.orders
    patches = {}
    for number in range(2 * order.per_epoch):
        location = mix.locate(number)
        [document] = order.piece(location.epoch, location.position)
        content = next(iter(document.blobs.values()))
        patches.setdefault(content, []).append(mix.sample(number)["patches"].tobytes())
    assert all(len(views) % 2 == 0 for views in patches.values())  # some files are in the corpus twice
    assert sum(len({*views}) == len(views) for views in patches.values()) > 0.95 * len(patches)


def test_text_objectives_do_not_import_pillow():
    import subprocess
    import sys

    code = (
        "import sys, megaptm.data, megaptm.config, megaptm.objectives, megaptm.families, megaptm.run.corpora, "
        "megaptm.tokenizers; sys.exit('PIL' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
