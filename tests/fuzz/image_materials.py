"""Unchanged files of families of images: sources, corpora, runs, exports, a table of meanings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
import yaml

from megaptm.config import config_to_yaml, load_config
from megaptm.families.unimo.corpus.meanings import read_meanings, write_meanings
from megaptm.families.uniter.corpus.region_shapes import DETECTOR, write_region_shapes
from megaptm.hub.huggingface import to_hugging_face
from megaptm.run.checkpoint import open_checkpoint
from megaptm.tokenizers import load_tokenizer
from tests import ROOT
from tests.data_pipeline.images.pictures import build, picture, write_tar
from tests.fuzz.addresses import write_remote_corpus
from tests.fuzz.image_targets import CAPTION_TOKENIZER, FAMILIES, REGION_TOKENIZER, image_targets
from tests.fuzz.retrieved import write_retrieved
from tests.train.runs import save_initial

SMALL = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "model.ffn=32",
    "track.enabled=false",
    "train.batch=2",
    "layout.microbatch=2",
)
FAMILY_OPTIONS = {
    "vit": (),
    "clip": (
        "model.stacks={text: {layers: 1, context: 16}}",
        "objective={image-text: {size: 32, text_length: 16}}",
    ),
    "uniter": ("data.sequence=24",),
    "unimo": (),
}


def make(folder: Path, folders: set[str]) -> None:
    """Write the requested folders of materials. With few requested, only those that take no time."""
    _write_sources(folder)
    labels, texts, regions = (folder / f"corpus-{name}" for name in ("labels", "captions", "regions"))
    build(folder / "images", labels, validation=0.5, shard_bytes=1 << 12)
    if not folders & {target.folder for target in image_targets() if not target.is_short}:
        return
    build(folder / "pairs", texts, texts=True, tokenizer=CAPTION_TOKENIZER, validation=0.5, seed=2)
    build(
        folder / "regions",
        regions,
        texts=True,
        regions=True,
        detector=DETECTOR,
        tokenizer=REGION_TOKENIZER,
        validation=0.3,
    )
    meanings = folder / "meanings/it.json"
    meanings.parent.mkdir()
    shutil.copy(ROOT / "configs/unimo/shapes.tsv", meanings.with_name("it.tsv"))
    write_meanings(read_meanings(meanings.with_name("it.tsv")), load_tokenizer(regions / "tokenizer"), meanings)
    write_retrieved(regions, folder / "retrieved")
    write_remote_corpus(texts, folder / "corpus-elsewhere")
    corpora = {"vit": labels, "clip": texts, "uniter": regions, "unimo": regions}
    _write_configs(folder, corpora, meanings)
    for family in FAMILIES:
        config, run = load_config(folder / f"config-images/{family}.yaml"), folder / f"run-{family}"
        save_initial(config, run)
        shutil.copytree(corpora[family] / "tokenizer", run / "tokenizer")
    for family in ("vit", "clip"):
        checkpoint = open_checkpoint(folder / f"run-{family}")
        out = folder / f"hf-{family}"
        to_hugging_face(checkpoint.spec, checkpoint.weights(), checkpoint.tokenizer, out, dtype=torch.float32)


def _write_sources(folder: Path) -> None:
    """Write images by label, images with text, both as files and as shards, and regions with text."""
    for number in range(10):
        form = ("JPEG", "PNG", "WEBP", "GIF", "TIFF")[number % 5]
        path = folder / "images" / ("cat", "dog")[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        suffix = {"JPEG": "jpg", "TIFF": "tif"}.get(form, form.lower())
        (path / f"{number}.{suffix}").write_bytes(picture(form, 16, 12, seed=number))
    (folder / "pairs").mkdir()
    pairs: list[dict[str, bytes]] = [{}, {}]
    labels: list[dict[str, bytes]] = [{}, {}]
    for number in range(6):
        suffix, form = (("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP"))[number % 3]
        image, text = picture(form, 16, 12, seed=number), f"a picture of {number} cats".encode()
        note = json.dumps({"caption": text.decode(), "label": number % 2, "width": 16}).encode()
        (folder / f"pairs/{number}.{suffix}").write_bytes(image)
        (folder / f"pairs/{number}").with_suffix(".json" if number % 2 else ".txt").write_bytes(
            note if number % 2 else text
        )
        text_file = {f"{number}.json": note} if number % 2 else {f"{number}.txt": text}
        pairs[number % 2] |= {f"{number}.{suffix}": image, **text_file}
        label = {f"{number}.json": note} if number % 2 else {f"{number}.cls": str(number % 2).encode()}
        labels[number % 2] |= {f"{number}.{suffix}": image, **label}
    for name, shards in (("pair-shards", pairs), ("label-shards", labels)):
        (folder / name).mkdir()
        for number, files in enumerate(shards):
            write_tar(folder / f"{name}/{number}.tar", files)
    (folder / "label-shards/names.txt").write_text("cat\ndog\n")
    write_region_shapes(folder / "regions", images=10)


def _write_configs(folder: Path, corpora: dict[str, Path], meanings: Path) -> None:
    """Write the tiny config of each family, smaller, with the corpora in `folder`."""
    config_folder = folder / "config-images"
    config_folder.mkdir()
    for family in FAMILIES:
        config = yaml.safe_load((ROOT / f"configs/{family}/tiny.yaml").read_text())
        config["extends"], config["run"] = str(ROOT / "configs/defaults.yaml"), "run"
        config["data"]["mix"] = {str(corpora[family]): 1.0}
        if "contrast" in config["objective"]:
            config["objective"]["contrast"]["meanings"] = str(meanings)
        (config_folder / f"{family}.yaml").write_text(yaml.safe_dump(config))
        vocabulary = load_tokenizer(corpora[family] / "tokenizer").vocabulary
        words = [*SMALL, *FAMILY_OPTIONS[family], f"model.vocabulary={vocabulary}"]
        smaller = load_config(config_folder / f"{family}.yaml", words)
        (config_folder / f"{family}.yaml").write_text(config_to_yaml(smaller))
