"""Targets of families of images (docs/images.md): mutations, readers and commands."""

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

from data_pipeline.recipe import TokenizerRecipe
from megaptm.errors import UserError
from megaptm.families.uniter.corpus.region_shapes import DETECTOR
from tests.fuzz.addresses import addresses_commands, mutate_addresses, read_addresses
from tests.fuzz.corpora import mutate_index, mutate_manifest, mutate_shard, mutate_table, mutate_tokenizer
from tests.fuzz.models import (
    import_commands,
    mutate_checkpoint,
    mutate_safetensors,
    mutate_tensors,
    mutate_weights_index,
    read_run,
)
from tests.fuzz.mutations import Random, change_bytes, change_file, change_json, change_yaml
from tests.fuzz.pictures import mutate_by_name, mutate_tar
from tests.fuzz.rehash import rehash_corpus
from tests.fuzz.retrieved import mutate_retrieved, read_retrieved, retrieved_commands
from tests.fuzz.target import Command, Target

IMAGE_LABELS = ({"image-labels": {"size": 8}}, 5)
PATCHES = ({"masked-patches": {"size": 8, "crop": "none"}}, 5)
IMAGE_TEXT = ({"image-text": {"size": 8, "text_length": 12}}, 5)
SHAPE_OPTIONS = {"regions": 6, "features": 24}
REGIONS = tuple(
    ({name: SHAPE_OPTIONS | {"classes": 17}}, 24)
    for name in ("image-text-matching", "image-text-masked-lm", "masked-regions-distribution", "masked-areas-class")
)
"""Objectives, each with its number of positions."""
CAPTION_TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=265, specials="clip")
REGION_TOKENIZER = TokenizerRecipe(kind="byte-bpe", vocabulary=270, specials="roberta")
Objectives = tuple[tuple[dict[str, Any], int], ...]
FAMILIES = ("vit", "clip", "uniter", "unimo")


def samples(folder: Path, objectives: Objectives) -> Iterator[Any]:
    """Yield the first samples of each split of a corpus."""
    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.run.corpora import load_corpus_tokenizer

    corpus = Corpus.open(folder)
    special = load_corpus_tokenizer(corpus).special
    for objective, sequence in objectives:
        for split in (split for split, sums in corpus.manifest.splits.items() if sums.samples):
            mix = open_mix(
                {str(folder): 1.0}, split=split, objective=objective, sequence=sequence, seed=0, special=special
            )
            for number in range(min(mix.fresh_samples, 12)):
                yield mix.sample(number)


def digest_of(samples: Iterator[Any]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        for name, field in sample.items():
            digest.update(name.encode() + field.tobytes())
    return digest.hexdigest()


def corpus_reader(*objectives: tuple[dict[str, Any], int]) -> Callable[[Path], Any]:
    """Return a function that reads a corpus."""

    def read(folder: Path) -> Any:
        from data_pipeline.verify import verify_corpus

        refused, digests = None, []
        for objective in objectives:
            try:
                digests.append(digest_of(samples(folder, (objective,))))
            except UserError as error:
                refused = error
        list(verify_corpus(folder))
        if refused:
            raise refused
        return digests

    return read


def source_reader(*objectives: tuple[dict[str, Any], int], **options: Any) -> Callable[[Path], Any]:
    """Return a function that builds a corpus from a folder. What it does not drop must be readable."""

    def read(folder: Path) -> Any:
        from rich.console import Console

        from data_pipeline.verify import verify_corpus
        from megaptm.families.vit.corpus.build import build_images
        from megaptm.families.vit.corpus.recipe import recipe_class

        quiet, built = Console(file=io.StringIO()), folder.with_name("built")
        recipe = recipe_class(options)(source=str(folder), validation=0.4, **options)
        try:
            report = build_images(recipe, built, workers=0, console=quiet, overwrite=True)
            assert all(check.is_valid for check in verify_corpus(built))
            try:
                digest = digest_of(samples(built, objectives))
            except UserError as error:
                raise AssertionError(f"kept, and then: {error}") from error
        finally:
            shutil.rmtree(built, ignore_errors=True)
        return [digest, report.dropped]

    return read


def source_commands(*words: str) -> Callable[[Path], list[Command]]:
    return lambda folder: [
        ["corpus", "images", str(folder), f"out={folder / 'built'}", "workers=0", "validation=0.4", *words]
    ]


def mutate_source(folder: Path, rng: Random) -> bool:
    """Change a file in a folder, or in a shard there."""
    path = rng.choice(sorted(file for file in folder.rglob("*") if file.is_file()))
    if path.suffix == ".tar":
        mutate_tar(path, rng)
    elif path.name == "names.txt":
        path.write_bytes(change_bytes(path.read_bytes(), rng))
    else:
        path.write_bytes(mutate_by_name(path.name, path.read_bytes(), rng))
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


def mutate_corpus(folder: Path, rng: Random) -> bool:
    ways = (mutate_manifest, mutate_table, mutate_index, mutate_shard, mutate_picture_of_shard, mutate_tokenizer)
    return rng.choice(ways)(folder, rng)


def mutate_picture_of_shard(folder: Path, rng: Random) -> bool:
    """Change the bytes of an image in a shard, and update the hashes."""
    path = folder / f"{rng.choice(['train', 'validation'])}-000000.tar"
    content = path.read_bytes()
    with tarfile.open(path) as tar:
        ranges = [
            (member.offset_data, member.size) for member in tar if not member.name.endswith((".json", ".txt", ".cls"))
        ]
        name = next(member.name for member in tar if not member.name.endswith((".json", ".txt", ".cls")))
    start, size = rng.choice(ranges)
    mutated = mutate_by_name(name, content[start : start + size], rng)[:size].ljust(size, b"\0")
    path.write_bytes(content[:start] + mutated + content[start + size :])
    rehash_corpus(folder)
    return False


def mutate_hugging_face(folder: Path, rng: Random) -> bool:
    names = ["config.json"] * 4 + ["preprocessor_config.json"] * 3 + ["index", "weights", "weights"]
    names += [path.name for path in folder.glob("tokenizer*.json")]
    name = rng.choice(names)
    if name == "weights":
        return mutate_safetensors(folder, rng)
    if name == "index":
        return mutate_weights_index(folder, rng)
    change_json(folder / name, rng)
    return False


def read_hugging_face(folder: Path) -> Any:
    """Import a model as it is and for larger images; return its outputs."""
    from megaptm.hub.import_run import import_run
    from megaptm.inference.loaded_model import load_model

    loaded = load_model(folder)
    outputs = model_outputs(loaded)
    import_run(str(folder), folder / "imported", ["model.context=26"])
    return outputs


def model_outputs(loaded: Any) -> Any:
    """Return outputs of a CLIP model; for other models, the sum of their parameters."""
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
        result = [
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
            result.append([*result[-1][:2], f"distill={{teacher: {folder}, hidden: 1}}", *result[-1][3:]])
        if family == "clip":
            result.append(["evaluate", str(folder), "--rows", "2", "--zero-shot", str(materials / "corpus-labels")])
        return result

    return commands


def mutate_run(folder: Path, rng: Random) -> bool:
    way = rng.randrange(3)
    if way == 0:
        return mutate_checkpoint(folder, rng)
    if way == 1:
        return mutate_tensors(folder, rng)
    change_yaml(folder / "config.yaml", rng)
    return False


def read_image_run(folder: Path) -> Any:
    from megaptm.inference.loaded_model import load_model

    return [read_run(folder), model_outputs(load_model(folder))]


def mutate_config(folder: Path, rng: Random) -> bool:
    """Change the config of one family, and remove the others."""
    chosen = rng.choice(FAMILIES)
    for family in FAMILIES:
        if family != chosen:
            (folder / f"{family}.yaml").unlink()
    change_yaml(folder / f"{chosen}.yaml", rng)
    return False


def read_config(folder: Path) -> Any:
    """Read configs as `megaptm train` does before it starts processes."""
    from megaptm.config import config_to_yaml, resolve_model
    from megaptm.config.yamls import flatten_keys
    from megaptm.plan.count import count_parameters
    from megaptm.run.corpora_checks import check_corpora
    from megaptm.run.folder import absolute_paths
    from megaptm.run.folder import read_config as read

    for path in folder.glob("*.yaml"):
        config = absolute_paths(read(path, []))
        flatten_keys(config.model_dump())
        count_parameters(resolve_model(config))
        config_to_yaml(config)
        check_corpora(config)


def config_commands(folder: Path) -> list[Command]:
    path = next(str(folder / f"{family}.yaml") for family in FAMILIES if (folder / f"{family}.yaml").exists())
    return [
        ["plan", path, "--machine", "a100-80g"],
        ["plan", path, "--machine", "a100-80g", "--nodes", "1", "--search"],
        ["train", path, "train.batch=1048576"],
    ]


def mutate_meanings(folder: Path, rng: Random) -> bool:
    path = folder / rng.choice(["it.json", "it.json", "it.tsv"])
    change_file(path, rng)
    return False


def read_meanings(folder: Path) -> Any:
    """Read both files, and return captions that are rewritten by the first."""
    import numpy as np

    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.families.unimo.corpus.meanings import read_meanings as read
    from megaptm.families.unimo.corpus.meanings import write_meanings
    from megaptm.families.unimo.meanings import load_meanings
    from megaptm.run.corpora import load_corpus_tokenizer

    corpus = folder.parent / "materials/corpus-regions"
    tokenizer = load_corpus_tokenizer(Corpus.open(corpus))
    write_meanings(read(folder / "it.tsv"), tokenizer, folder / "again.json")
    load_meanings.cache_clear()
    words = SHAPE_OPTIONS | {
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


REGION_WORDS = ("texts=true", "regions=true", "detector=[24, 17]", "tokenizer.vocabulary=120")
TEXTS = ("texts=true", "tokenizer.vocabulary=265")


SHORT = ("corpus of labels",)


def image_targets() -> Iterator[Target]:
    """Yield all targets."""
    for target in _targets():
        builds_corpus = target.mutate is mutate_source
        yield replace(target, is_short=target.name in SHORT, read_share=0.125 if builds_corpus else 1.0)


def _targets() -> Iterator[Target]:
    captions = {"texts": True, "tokenizer": CAPTION_TOKENIZER}
    regions = {"texts": True, "regions": True, "detector": DETECTOR, "tokenizer": REGION_TOKENIZER}
    yield Target("images by label", "images", mutate_source, source_reader(IMAGE_LABELS, PATCHES), source_commands())
    yield Target("shards with labels", "label-shards", mutate_source, source_reader(IMAGE_LABELS), source_commands())
    yield Target(
        "images with texts", "pairs", mutate_source, source_reader(IMAGE_TEXT, **captions), source_commands(*TEXTS)
    )
    yield Target(
        "shards with texts",
        "pair-shards",
        mutate_source,
        source_reader(IMAGE_TEXT, duplicates="near", **captions),
        source_commands(*TEXTS, "duplicates=exact"),
    )
    yield Target(
        "regions with texts",
        "regions",
        mutate_source,
        source_reader(*REGIONS, **regions),
        source_commands(*REGION_WORDS),
    )
    corpora = (
        ("labels", "vit", "image-labels", 17, (IMAGE_LABELS, PATCHES)),
        ("captions", "clip", "image-text", 17, (IMAGE_TEXT,)),
        ("regions", "uniter", "{image-text-matching: {regions: 6, features: 24, classes: 17}}", 24, REGIONS),
    )
    for name, family, objective, sequence, objectives in corpora:
        commands = corpus_commands(family, objective, sequence)
        yield Target(f"corpus of {name}", f"corpus-{name}", mutate_corpus, corpus_reader(*objectives), commands)
    for family in ("vit", "clip"):
        yield Target(
            f"Hugging Face's {family}",
            f"hf-{family}",
            mutate_hugging_face,
            read_hugging_face,
            hugging_face_commands(family),
        )
    for family in FAMILIES:
        yield Target(f"run of {family}", f"run-{family}", mutate_run, read_image_run, run_commands(family))
    yield Target("configs of images", "config-images", mutate_config, read_config, config_commands)
    yield Target("meanings", "meanings", mutate_meanings, read_meanings, meanings_commands)
    yield Target("retrieved documents", "retrieved", mutate_retrieved, read_retrieved, retrieved_commands)
    yield Target("addresses of shards", "corpus-elsewhere", mutate_addresses, read_addresses, addresses_commands)
