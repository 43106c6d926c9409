"""Files of the families of images (docs/images.md): what is spoiled, who reads it, and which commands read it."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_pipeline.images.region_shapes import DETECTOR
from data_pipeline.recipe import TokenizerRecipe
from megaptm.errors import UserError
from tests.fuzz.addresses import addresses_commands, read_addresses, spoil_addresses
from tests.fuzz.corpora import spoil_index, spoil_manifest, spoil_shard, spoil_table, spoil_tokenizer
from tests.fuzz.models import (
    import_commands,
    read_run,
    spoil_checkpoint,
    spoil_safetensors,
    spoil_tensors,
    spoil_weights_index,
)
from tests.fuzz.mutations import Random, change_bytes, change_file, change_json, change_yaml
from tests.fuzz.pictures import spoil_by_name, spoil_tar
from tests.fuzz.retrieved import found_commands, read_found, spoil_found
from tests.fuzz.seals import seal_corpus
from tests.fuzz.target import Command, Target

IMAGE_LABELS = ({"image-labels": {"size": 8}}, 5)
PATCHES = ({"masked-patches": {"size": 8, "crop": "none"}}, 5)
IMAGE_TEXT = ({"image-text": {"size": 8, "text_length": 12}}, 5)
OF_SHAPES = {"regions": 6, "features": 24}
REGIONS = tuple(
    ({name: OF_SHAPES | {"classes": 17}}, 24)
    for name in ("image-text-matching", "image-text-masked-lm", "masked-regions-distribution", "masked-areas-class")
)
"""Objectives, each with the places of a row."""
CAPTION_TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=265, specials="clip")
REGION_TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=270, specials="roberta")
Objectives = tuple[tuple[dict[str, Any], int], ...]
FAMILIES = ("vit", "clip", "uniter", "unimo")


def samples(folder: Path, objectives: Objectives) -> Iterator[Any]:
    """All rows of a corpus, of both splits."""
    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.run.corpora import tokenizer_of

    corpus = Corpus.open(folder)
    special = tokenizer_of(corpus).special
    for objective, sequence in objectives:
        for split in (split for split, sums in corpus.manifest.splits.items() if sums.samples):
            mix = open_mix(
                {str(folder): 1.0}, split=split, objective=objective, sequence=sequence, seed=0, special=special
            )
            for number in range(min(mix.fresh_samples, 12)):
                yield mix.sample(number)


def digest_of(rows: Iterator[Any]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        for name, field in row.items():
            digest.update(name.encode() + field.tobytes())
    return digest.hexdigest()


def reads_corpus(*objectives: tuple[dict[str, Any], int]) -> Callable[[Path], Any]:
    """Who reads all of a corpus."""

    def read(folder: Path) -> Any:
        from data_pipeline.verify import verify_corpus

        refused, found = None, []
        for one in objectives:
            try:
                found.append(digest_of(samples(folder, (one,))))
            except UserError as error:
                refused = error
        list(verify_corpus(folder))
        if refused:
            raise refused
        return found

    return read


def reads_source(*objectives: tuple[dict[str, Any], int], **options: Any) -> Callable[[Path], Any]:
    """Who builds a corpus of a folder; what was kept is good, and is read to the end."""

    def read(folder: Path) -> Any:
        from rich.console import Console

        from data_pipeline.images.build import build_images
        from data_pipeline.images.recipe import ImageRecipe
        from data_pipeline.verify import verify_corpus

        quiet, built = Console(file=io.StringIO()), folder.with_name("built")
        recipe = ImageRecipe(source=str(folder), validation=0.4, **options)
        try:
            report = build_images(recipe, built, workers=0, console=quiet, overwrite=True)
            assert all(check.is_valid for check in verify_corpus(built))
            try:
                found = digest_of(samples(built, objectives))
            except UserError as error:
                raise AssertionError(f"kept, and then: {error}") from error
        finally:
            shutil.rmtree(built, ignore_errors=True)
        return [found, report.dropped]

    return read


def source_commands(*words: str) -> Callable[[Path], list[Command]]:
    return lambda folder: [
        ["corpus", "images", str(folder), f"out={folder / 'built'}", "workers=0", "validation=0.4", *words]
    ]


def spoil_source(folder: Path, draw: Random) -> bool:
    """A file of a folder, or of a shard there."""
    path = draw.choice(sorted(one for one in folder.rglob("*") if one.is_file()))
    if path.suffix == ".tar":
        spoil_tar(path, draw)
    elif path.name == "names.txt":
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    else:
        path.write_bytes(spoil_by_name(path.name, path.read_bytes(), draw))
    return False


def corpus_commands(family: str, objective: str, sequence: int) -> Callable[[Path], list[Command]]:
    return lambda folder: [
        ["corpus", "verify", str(folder)],
        ["corpus", "inspect", str(folder), "--count", "2"],
        ["corpus", "inspect", str(folder), "--objective", objective, "--sequence", str(sequence)],
        [
            "train",
            str(folder.parent / f"materials/config-images/{family}.yaml"),
            f"data.mix={{{folder}: 1}}",
            f"run={folder / 'run'}",
            "train.batch=1048576",
        ],
    ]


def spoil_corpus(folder: Path, draw: Random) -> bool:
    ways = (spoil_manifest, spoil_table, spoil_index, spoil_shard, spoil_picture_of_shard, spoil_tokenizer)
    return draw.choice(ways)(folder, draw)


def spoil_picture_of_shard(folder: Path, draw: Random) -> bool:
    """The bytes of an image where the index says it is; hashes are right again."""
    path = folder / f"{draw.choice(['train', 'validation'])}-000000.tar"
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        places = [(one.offset_data, one.size) for one in tar if not one.name.endswith((".json", ".txt", ".cls"))]
        name = next(one.name for one in tar if not one.name.endswith((".json", ".txt", ".cls")))
    start, size = draw.choice(places)
    spoiled = spoil_by_name(name, content[start : start + size], draw)[:size].ljust(size, b"\0")
    path.write_bytes(content[:start] + spoiled + content[start + size :])
    seal_corpus(folder)
    return False


def spoil_hugging_face(folder: Path, draw: Random) -> bool:
    names = ["config.json"] * 4 + ["preprocessor_config.json"] * 3 + ["index", "weights", "weights"]
    names += [path.name for path in folder.glob("tokenizer*.json")]
    name = draw.choice(names)
    if name == "weights":
        return spoil_safetensors(folder, draw)
    if name == "index":
        return spoil_weights_index(folder, draw)
    change_json(folder / name, draw)
    return False


def read_hugging_face(folder: Path) -> Any:
    """Imported, as it is and for larger images, and asked."""
    from megaptm.hub.import_run import import_run
    from megaptm.inference.loaded_model import load_model

    loaded = load_model(folder)
    answers = asked(loaded)
    import_run(str(folder), folder / "imported", ["model.context=26"])
    return answers


def asked(loaded: Any) -> Any:
    """What a model of images and texts says of some; of others the sum of what they are."""
    from tests.data_pipeline.images.pictures import picture

    if loaded.spec.name == "clip":
        images = loaded.encode_images([picture(), picture("PNG")])
        return [images.nan_to_num(9).tolist(), loaded.encode(["a cat", ""]).nan_to_num(9).tolist()]
    return float(sum(value.double().nan_to_num(0, 1, -1).sum() for value in loaded.model.parameters()))


def hugging_face_commands(family: str) -> Callable[[Path], list[Command]]:
    corpus = {"vit": "labels", "clip": "captions"}[family]

    def commands(folder: Path) -> list[Command]:
        materials = folder.parent / "materials"
        return [
            *import_commands(folder),
            ["import", "hf", str(folder), str(folder / "imported"), "model.context=26"],
            ["evaluate", str(folder), "--corpus", str(materials / f"corpus-{corpus}"), "--rows", "2"],
        ]

    return commands


def run_commands(family: str) -> Callable[[Path], list[Command]]:
    def commands(folder: Path) -> list[Command]:
        materials = folder.parent / "materials"
        found = [
            ["evaluate", str(folder)],
            ["generate", str(folder), "--prompt", "a <mask> cat", "--tokens", "2"],
            ["export", "hf", str(folder), str(folder / "exported")],
            ["report", str(folder)],
            [
                "train",
                str(materials / f"config-images/{family}.yaml"),
                f"train.init_from={folder}",
                f"run={folder / 'run'}",
                "train.batch=1048576",
            ],
        ]
        if family == "vit":
            found.append([*found[-1][:2], f"distill={{teacher: {folder}, hidden: 1}}", *found[-1][3:]])
        if family == "clip":
            found.append(["evaluate", str(folder), "--rows", "2", "--zero-shot", str(materials / "corpus-labels")])
        return found

    return commands


def spoil_run(folder: Path, draw: Random) -> bool:
    way = draw.randrange(3)
    if way == 0:
        return spoil_checkpoint(folder, draw)
    if way == 1:
        return spoil_tensors(folder, draw)
    change_yaml(folder / "config.yaml", draw)
    return False


def read_image_run(folder: Path) -> Any:
    from megaptm.inference.loaded_model import load_model

    return [read_run(folder), asked(load_model(folder))]


def spoil_config(folder: Path, draw: Random) -> bool:
    """One of the families'; the others are put aside."""
    chosen = draw.choice(FAMILIES)
    for family in FAMILIES:
        if family != chosen:
            (folder / f"{family}.yaml").unlink()
    change_yaml(folder / f"{chosen}.yaml", draw)
    return False


def read_config(folder: Path) -> Any:
    """As `megaptm train` does before the first process."""
    from megaptm.config import dump, resolve_model
    from megaptm.plan.count import count_parameters
    from megaptm.run.changes import flat
    from megaptm.run.corpora_checks import check_corpora
    from megaptm.run.folder import absolute_paths
    from megaptm.run.folder import read_config as read

    for path in folder.glob("*.yaml"):
        config = absolute_paths(read(path, []))
        flat(config.model_dump())
        count_parameters(resolve_model(config))
        dump(config)
        check_corpora(config)


def config_commands(folder: Path) -> list[Command]:
    path = next(str(folder / f"{family}.yaml") for family in FAMILIES if (folder / f"{family}.yaml").exists())
    return [
        ["plan", path, "--machine", "a100-80g"],
        ["plan", path, "--machine", "a100-80g", "--nodes", "1", "--search"],
        ["train", path, "train.batch=1048576"],
    ]


def spoil_meanings(folder: Path, draw: Random) -> bool:
    path = folder / draw.choice(["it.json", "it.json", "it.tsv"])
    change_file(path, draw)
    return False


def read_meanings(folder: Path) -> Any:
    """Both files, and captions rewritten by the first."""
    import numpy as np

    from data_pipeline.annotate.meanings import read_meanings as read
    from data_pipeline.annotate.meanings import write_meanings
    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.objectives.meanings import load_meanings
    from megaptm.run.corpora import tokenizer_of

    corpus = folder.parent / "materials/corpus-regions"
    tokenizer = tokenizer_of(Corpus.open(corpus))
    write_meanings(read(folder / "it.tsv"), tokenizer, folder / "again.json")
    load_meanings.cache_clear()
    words = OF_SHAPES | {
        "classes": 17,
        "max_paraphrases": 1,
        "max_rewritten_negatives": 2,
        "meanings": str(folder / "it.json"),
    }
    mix = open_mix(
        {str(corpus): 1.0}, objective={"cross-modal-contrast": words}, sequence=64, seed=0, special=tokenizer.special
    )
    assert all(np.isfinite(field).all() for field in mix.sample(0).values())
    return [json.loads((folder / "again.json").read_text()), digest_of(mix.sample(number) for number in range(4))]


def meanings_commands(folder: Path) -> list[Command]:
    materials = folder.parent / "materials"
    tokenizer = str(materials / "corpus-regions/tokenizer")
    config = str(materials / "config-images/unimo.yaml")
    counts = "regions: 9, features: 24, classes: 17, max_paraphrases: 0, max_rewritten_negatives: 2"
    meanings = f"objective={{cross-modal-contrast: {{{counts}, meanings: '{folder / 'it.json'}'}}}}"
    return [
        ["corpus", "meanings", str(folder / "it.tsv"), "--tokenizer", tokenizer, "--out", str(folder / "out.json")],
        ["train", config, meanings, f"run={folder / 'run'}", "train.batch=1048576"],
    ]


OF_REGIONS = ("texts=true", "regions=true", "detector=[24, 17]", "tokenizer.vocabulary=120")
TEXTS = ("texts=true", "tokenizer.vocabulary=265")


SHORT = ("corpus of labels",)


def image_targets() -> Iterator[Target]:
    """All of them."""
    return (replace(target, short=target.name in SHORT) for target in _targets())


def _targets() -> Iterator[Target]:
    captions = {"texts": True, "tokenizer": CAPTION_TOKENIZER}
    regions = {"texts": True, "regions": True, "detector": DETECTOR, "tokenizer": REGION_TOKENIZER}
    yield Target("images by label", "images", spoil_source, reads_source(IMAGE_LABELS, PATCHES), source_commands())
    yield Target("shards with labels", "label-shards", spoil_source, reads_source(IMAGE_LABELS), source_commands())
    yield Target(
        "images with texts", "pairs", spoil_source, reads_source(IMAGE_TEXT, **captions), source_commands(*TEXTS)
    )
    yield Target(
        "shards with texts",
        "pair-shards",
        spoil_source,
        reads_source(IMAGE_TEXT, duplicates="near", **captions),
        source_commands(*TEXTS, "duplicates=exact"),
    )
    yield Target(
        "regions with texts",
        "regions",
        spoil_source,
        reads_source(*REGIONS, **regions),
        source_commands(*OF_REGIONS),
    )
    corpora = (
        ("labels", "vit", "image-labels", 17, (IMAGE_LABELS, PATCHES)),
        ("captions", "clip", "image-text", 17, (IMAGE_TEXT,)),
        ("regions", "uniter", "{image-text-matching: {regions: 6, features: 24, classes: 17}}", 24, REGIONS),
    )
    for name, family, objective, sequence, objectives in corpora:
        commands = corpus_commands(family, objective, sequence)
        yield Target(f"corpus of {name}", f"corpus-{name}", spoil_corpus, reads_corpus(*objectives), commands)
    for family in ("vit", "clip"):
        yield Target(
            f"Hugging Face's {family}",
            f"hf-{family}",
            spoil_hugging_face,
            read_hugging_face,
            hugging_face_commands(family),
        )
    for family in FAMILIES:
        yield Target(f"run of {family}", f"run-{family}", spoil_run, read_image_run, run_commands(family))
    yield Target("configs of images", "config-images", spoil_config, read_config, config_commands)
    yield Target("meanings", "meanings", spoil_meanings, read_meanings, meanings_commands)
    yield Target("retrieved documents", "retrieved", spoil_found, read_found, found_commands)
    yield Target("addresses of shards", "corpus-elsewhere", spoil_addresses, read_addresses, addresses_commands)
