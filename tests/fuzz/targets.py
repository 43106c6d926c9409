"""What is spoiled, who reads it in this process, and which commands read it."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from megaptm.checkpoint.manifest import content_id as checkpoint_id
from megaptm.data.files import npy_bytes
from megaptm.errors import UserError
from tests.fuzz.mutations import NUMBERS, Random, change_bytes, change_json, change_tree, change_yaml
from tests.fuzz.seals import seal_corpus, seal_manifest

COUNTED = 12
"""Samples that are read of a mix."""
Command = list[str]


@dataclass(frozen=True)
class Target:
    """A kind of file."""

    name: str
    folder: str
    """Of `materials`, which is copied for each case."""
    spoil: Callable[[Path, Random], bool]
    """Change a file of the copied folder; whether a hash still tells, so that nothing else may be read than before."""
    read: Callable[[Path], Any]
    """Read all that a command would read; what it returns is compared."""
    commands: Callable[[Path], list[Command]]


def read_corpus(folder: Path) -> Any:
    from data_pipeline.verify import verify_corpus
    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.run.corpora import tokenizer_of

    corpus = Corpus.open(folder)
    special = tokenizer_of(corpus).special
    digest = hashlib.sha256()
    objectives = [
        name
        for name, needed in (("masked-lm-next-sentence", "mask"), ("causal-lm", "end"), ("span-corruption", "pad"))
        if getattr(special, needed) is not None and (name != "span-corruption" or special.sentinels)
    ]
    refused = None
    for objective in objectives:
        try:
            mix = open_mix({str(folder): 1.0}, objective=objective, sequence=32, seed=0, special=special)
            for number in range(COUNTED):
                for name, field in mix.sample(number).items():
                    digest.update(name.encode() + field.tobytes())
        except UserError as error:
            refused = error
    list(verify_corpus(folder))
    if refused:
        raise refused
    return digest.hexdigest()


def corpus_commands(folder: Path) -> list[Command]:
    return [
        ["corpus", "verify", str(folder)],
        ["corpus", "inspect", str(folder), "--count", "2"],
        ["corpus", "inspect", str(folder), "--objective", "masked-lm-next-sentence", "--sequence", "32"],
        [
            "train",
            "configs/bert/tiny.yaml",
            f"data.mix={{{folder}: 1}}",
            "run=run",
            "model.vocabulary=150",
            "train.batch=1048576",
        ],
    ]


def spoil_manifest(folder: Path, draw: Random) -> bool:
    path = folder / "manifest.json"
    if draw.random() < 0.3:
        change_json(path, draw)
        return True
    seal_manifest(path, change_tree(json.loads(path.read_text()), draw))
    return False


def _spoil_array(path: Path, draw: Random) -> None:
    array = np.load(path)
    for _ in range(draw.choice([1, 1, 3])):
        row = array[draw.randrange(len(array))]
        column: Any = draw.choice(array.dtype.names) if array.dtype.names else draw.randrange(len(row))
        number = draw.choice([*NUMBERS, draw.randrange(-5, 5)])
        if array.dtype.names and array.dtype[column].shape:
            row[column] = number % 256
        else:
            row[column] = (
                (int(row[column]) + draw.choice([0, number]) if draw.random() < 0.3 else number)
                % 2**63
                * (-1 if number < 0 else 1)
            )
    if draw.random() < 0.2:
        array = array[draw.choice([slice(0, 0), slice(None, -1), slice(1, None), slice(None, None, -1)])]
    path.write_bytes(npy_bytes(array))


def spoil_table(folder: Path, draw: Random) -> bool:
    path = folder / f"{draw.choice(['train', 'validation'])}.shards.npy"
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    else:
        _spoil_array(path, draw)
    if sealed := draw.random() < 0.7:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["splits"][path.name.split(".")[0]]["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        seal_manifest(folder / "manifest.json", manifest)
    return not sealed


def spoil_index(folder: Path, draw: Random) -> bool:
    path = folder / "train-000000.index.npy"
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    else:
        _spoil_array(path, draw)
    if sealed := draw.random() < 0.8:
        try:
            total = int(np.load(path)[:, 1].sum()) if draw.random() < 0.5 else None
        except (ValueError, IndexError, EOFError, OSError, SyntaxError, TypeError, TokenError):
            total = None
        seal_corpus(folder, tokens={"train": total} if total is not None else None)
    return not sealed


def spoil_shard(folder: Path, draw: Random) -> bool:
    path = folder / "train-000000.tar"
    if draw.random() < 0.6:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    else:
        _spoil_member(path, draw)
    if sealed := draw.random() < 0.8:
        seal_corpus(folder)
    return not sealed


def _spoil_member(path: Path, draw: Random) -> None:
    """A tar whose members have other names, kinds, or contents."""
    with tarfile.open(path) as tar:
        members = [(member, tar.extractfile(member)) for member in tar]
        read = [(member, file.read() if file else b"") for member, file in members]
    chosen = draw.randrange(len(read))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (member, content) in enumerate(read):
            if number == chosen:
                way = draw.randrange(5)
                if way == 0:
                    member.name = draw.choice(["../../escape.tokens.npy", "/etc/x.json", "a" * 300 + ".json", "é.json"])
                elif way == 1:
                    member.type, member.linkname = draw.choice([tarfile.SYMTYPE, tarfile.LNKTYPE]), "/etc/passwd"
                elif way == 2:
                    member.type = draw.choice([tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE])
                elif way == 3:
                    content = change_bytes(content, draw)
                else:
                    content = b""
                member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    path.write_bytes(out.getvalue())


def spoil_tokenizer(folder: Path, draw: Random) -> bool:
    path = folder / "tokenizer" / draw.choice(["tokenizer.json"] * 4 + ["tokenizer_config.json"])
    change_json(path, draw)
    if draw.random() < 0.8:
        with suppress(Exception):  # it can no longer be loaded: then its fingerprint is of no matter
            seal_corpus(folder)
    return False


def read_tokenizer(folder: Path) -> Any:
    from megaptm.tokenizers import load

    tokenizer = load(folder / "tokenizer")
    text = "The king saw the cat. 漢字 é\n\n <|endoftext|> [MASK] 12"
    ids = tokenizer.encode(text)
    ends = tokenizer.encode_batch_with_ends([text, ""])
    tokenizer.save(folder / "saved")
    return [tokenizer.kind, tokenizer.vocabulary, ids.tolist(), str(ends), tokenizer.decode(ids)]


def spoil_checkpoint(folder: Path, draw: Random) -> bool:
    path = folder / "checkpoints/step-00000007/manifest.json"
    if draw.random() < 0.3:
        change_json(path, draw)
        return True
    manifest = change_tree(json.loads(path.read_text()), draw)
    if isinstance(manifest, dict):
        manifest = {**manifest, "id": checkpoint_id(manifest)}
    path.write_text(json.dumps(manifest))
    return False


def spoil_tensors(folder: Path, draw: Random) -> bool:
    path = folder / "checkpoints/step-00000007/rank-00000.safetensors"
    path.write_bytes(change_bytes(path.read_bytes(), draw))
    if sealed := draw.random() < 0.5:
        place = path.with_name("manifest.json")
        manifest = json.loads(place.read_text())
        manifest["files"][0] |= {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        place.write_text(json.dumps({**manifest, "id": checkpoint_id(manifest)}))
    return not sealed


def read_run(folder: Path) -> Any:
    from megaptm.inference.loaded_model import open_run
    from megaptm.run.checkpoint import open_checkpoint
    from megaptm.run.compatibility import compatibility, refuse_another, refuse_other_text

    trained = open_run(folder)
    for check, wanted in ((refuse_another, compatibility(trained.spec, "")), (refuse_other_text, {})):
        try:
            check(open_checkpoint(folder).checkpoint, wanted)  # type: ignore[operator]
        except UserError:
            continue
    return float(sum(value.double().nan_to_num(0, 1, -1).sum() for value in trained.model.parameters()))


def run_commands(folder: Path) -> list[Command]:
    return [
        ["generate", str(folder), "--prompt", "The", "--tokens", "3"],
        ["export", "hf", str(folder), str(folder / "exported")],
        ["report", str(folder)],
        ["evaluate", str(folder), "--rows", "4", "--corpus", str(folder.parent / "materials/corpus-gpt2")],
    ]


def spoil_journals(folder: Path, draw: Random) -> bool:
    path = folder / draw.choice(["events.jsonl", "metrics.jsonl"])
    lines = path.read_bytes().splitlines()
    if draw.random() < 0.2:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
        return False
    number = draw.randrange(len(lines))
    lines[number] = json.dumps(change_tree(json.loads(lines[number]), draw)).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return False


def read_journals(folder: Path) -> Any:
    from rich.console import Console

    from megaptm.report import summary
    from megaptm.resilience.events import last_saved

    last_saved(folder)
    summary.report(folder, console=Console(file=io.StringIO()))


def spoil_safetensors(folder: Path, draw: Random) -> bool:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    if draw.random() < 0.3:
        path.write_bytes(change_bytes(content, draw))
        return False
    size = int.from_bytes(content[:8], "little")
    header = json.dumps(change_tree(json.loads(content[8 : 8 + size]), draw)).encode()
    length = len(header) if draw.random() < 0.8 else abs(draw.choice(NUMBERS)) % 2**64
    path.write_bytes(length.to_bytes(8, "little") + header + content[8 + size :])
    return False


def spoil_hugging_face(folder: Path, draw: Random) -> bool:
    name = draw.choice(
        ["config.json"] * 3 + ["generation_config.json", "tokenizer.json", "tokenizer_config.json", "index"]
    )
    if name != "index":
        change_json(folder / name, draw)
        return False
    tensors = json.loads(_header(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00001-of-00001.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(change_tree(index, draw)))
    return False


def _header(path: Path) -> bytes:
    content = path.read_bytes()
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def read_hugging_face(folder: Path) -> Any:
    from megaptm.hub.import_run import import_run

    import_run(str(folder), folder / "imported")


def import_commands(folder: Path) -> list[Command]:
    return [["import", "hf", str(folder), str(folder / "imported")]]


def spoil_elmo(folder: Path, draw: Random) -> bool:
    path = draw.choice(sorted(one for one in folder.iterdir() if one.name != "vectors.txt"))
    if path.suffix == ".json":
        change_json(path, draw)
    else:
        path.write_bytes(change_bytes(path.read_bytes(), draw))
    return False


def read_elmo(folder: Path) -> Any:
    from megaptm.hub.elmo_import import import_elmo

    import_elmo(folder, folder / "imported")


def spoil_vectors(folder: Path, draw: Random) -> bool:
    path = folder / "vectors.txt"
    path.write_bytes(change_bytes(path.read_bytes(), draw))
    return False


def read_vectors(folder: Path) -> Any:
    from megaptm.words.text_file import with_vectors

    return with_vectors(torch.zeros(3, 2), str(folder / "vectors.txt"), ["king", "queen", "the sea"]).tolist()


def elmo_commands(folder: Path) -> list[Command]:
    return [["import", "elmo", str(folder), str(folder / "imported")]]


def spoil_yaml(folder: Path, draw: Random) -> bool:
    change_yaml(draw.choice(sorted(folder.glob("*.yaml"))), draw)
    return False


def read_config(folder: Path) -> Any:
    from megaptm.config import draft, dump, load, resolve_model
    from megaptm.plan.count import count
    from megaptm.run.folder import absolute_paths, flat

    draft(folder / "it.yaml")
    config = absolute_paths(load(folder / "it.yaml"))
    flat(config.model_dump())
    count(resolve_model(config))
    dump(config)


def config_commands(folder: Path) -> list[Command]:
    path = str(folder / "it.yaml")
    return [
        ["plan", path, "--machine", "a100-80g"],
        ["plan", path, "--machine", "a100-80g", "--nodes", "1", "--search"],
        ["train", path],  # whose corpus is nowhere
    ]


def read_recipe(folder: Path) -> Any:
    from data_pipeline.recipe import read_recipe as read

    json.dumps(read([str(folder / "it.yaml")]).plain())


def recipe_commands(folder: Path) -> list[Command]:
    return [["corpus", "build", str(folder / "it.yaml"), f"out={folder / 'built'}", "workers=0"]]


def read_machine(folder: Path) -> Any:
    from megaptm.config import load
    from megaptm.plan.machine import load_machine
    from megaptm.plan.plan import plan

    machine = load_machine(str(folder / "it.yaml"))
    plan(load("configs/gpt2/small.yaml", ["data.mix={x: 1}"]), machine).numbers()


def machine_commands(folder: Path) -> list[Command]:
    path = str(folder / "it.yaml")
    return [
        ["plan", "configs/gpt2/small.yaml", "--machine", path],
        ["plan", "configs/gpt3/175b.yaml", "--machine", path, "--nodes", "128", "--json"],
    ]


def kept_sample(number: int) -> dict[str, np.ndarray]:
    """Of whose places logits are kept."""
    return {"tokens": np.arange(number, number + 8)}


def spoil_logits(folder: Path, draw: Random) -> bool:
    if draw.random() < 0.4:
        change_json(folder / "manifest.json", draw)
        return False
    path = folder / "train-000000.safetensors"
    path.write_bytes(change_bytes(path.read_bytes(), draw))
    if sealed := draw.random() < 0.8:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return not sealed


def read_logits(folder: Path) -> Any:
    from megaptm.data.teacher_logits import TeacherLogits

    logits = TeacherLogits.open(folder).of("train")
    found = [logits.fields(number, kept_sample(number)) for number in range(3)]
    return [(name, field.tolist()) for fields in found for name, field in fields.items()]


def logits_commands(folder: Path) -> list[Command]:
    words = ["configs/distilbert/tiny.yaml", f"distill.cached={folder}", "distill.cosine=0", "run=run"]
    return [["train", *words], ["cache-logits", *words]]


TARGETS = {
    target.name: target
    for target in (
        Target("config", "config", spoil_yaml, read_config, config_commands),
        Target("manifest", "corpus-bert", spoil_manifest, read_corpus, corpus_commands),
        Target("shard table", "corpus-bert", spoil_table, read_corpus, corpus_commands),
        Target("index", "corpus-bert", spoil_index, read_corpus, corpus_commands),
        Target("shard", "corpus-bert", spoil_shard, read_corpus, corpus_commands),
        Target("tokenizer byte-bpe", "corpus-gpt2", spoil_tokenizer, read_tokenizer, corpus_commands),
        Target("tokenizer wordpiece", "corpus-bert", spoil_tokenizer, read_tokenizer, corpus_commands),
        Target("tokenizer unigram", "corpus-t5", spoil_tokenizer, read_tokenizer, corpus_commands),
        Target("checkpoint manifest", "run", spoil_checkpoint, read_run, run_commands),
        Target("checkpoint tensors", "run", spoil_tensors, read_run, run_commands),
        Target("journals", "run", spoil_journals, read_journals, lambda run: [["report", str(run)]]),
        Target("safetensors header", "hf", spoil_safetensors, read_hugging_face, import_commands),
        Target("Hugging Face folder", "hf", spoil_hugging_face, read_hugging_face, import_commands),
        Target("ELMo folder", "elmo", spoil_elmo, read_elmo, elmo_commands),
        Target("word vectors", "elmo", spoil_vectors, read_vectors, elmo_commands),
        Target("teacher logits", "logits", spoil_logits, read_logits, logits_commands),
        Target("recipe", "recipe", spoil_yaml, read_recipe, recipe_commands),
        Target("machine", "machine", spoil_yaml, read_machine, machine_commands),
    )
}
