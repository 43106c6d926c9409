"""Targets: mutations, readers in this process, and commands."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megaptm.errors import UserError
from tests.fuzz.corpora import mutate_index, mutate_manifest, mutate_shard, mutate_table, mutate_tokenizer
from tests.fuzz.image_targets import image_targets
from tests.fuzz.models import (
    import_commands,
    mutate_checkpoint,
    mutate_hugging_face,
    mutate_safetensors,
    mutate_tensors,
    read_hugging_face,
    read_run,
)
from tests.fuzz.mutations import Random, change_bytes, change_file, change_json, change_tree, change_yaml
from tests.fuzz.target import Command, Target

NUM_SAMPLES = 12
"""Number of samples that are read."""


def read_corpus(folder: Path) -> Any:
    from data_pipeline.verify import verify_corpus
    from megaptm.data import open_mix
    from megaptm.data.shards import Corpus
    from megaptm.run.corpora import load_corpus_tokenizer

    corpus = Corpus.open(folder)
    special = load_corpus_tokenizer(corpus).special
    digest = hashlib.sha256()
    objectives = [
        name
        for name, needed in (("masked-lm-next-sentence", "mask"), ("causal-lm", "end"), ("span-corruption", "pad"))
        if getattr(special, needed) is not None and (name != "span-corruption" or special.sentinels)
    ]
    error_of_sample = None
    for objective in objectives:
        try:
            mix = open_mix({str(folder): 1.0}, objective=objective, sequence=32, seed=0, special=special)
            for number in range(NUM_SAMPLES):
                for name, field in mix.sample(number).items():
                    digest.update(name.encode() + field.tobytes())
        except UserError as error:
            error_of_sample = error
    list(verify_corpus(folder))
    if error_of_sample:
        raise error_of_sample
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


def read_tokenizer(folder: Path) -> Any:
    from megaptm.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(folder / "tokenizer")
    text = "The king saw the cat. 漢字 é\n\n <|endoftext|> [MASK] 12"
    ids = tokenizer.encode(text)
    ends = tokenizer.encode_batch_with_ends([text, ""])
    tokenizer.save(folder / "saved")
    return [tokenizer.kind, tokenizer.vocabulary, ids.tolist(), str(ends), tokenizer.decode(ids)]


def run_commands(folder: Path) -> list[Command]:
    return [
        ["generate", str(folder), "--prompt", "The", "--tokens", "3"],
        ["export", "hf", str(folder), str(folder / "exported")],
        ["report", str(folder)],
        ["evaluate", str(folder), "--rows", "4", "--corpus", str(folder.parent / "materials/corpus-gpt2")],
    ]


def mutate_journals(folder: Path, rng: Random) -> bool:
    path = folder / rng.choice(["events.jsonl", "metrics.jsonl"])
    lines = path.read_bytes().splitlines()
    if rng.random() < 0.2:
        path.write_bytes(change_bytes(path.read_bytes(), rng))
        return False
    number = rng.randrange(len(lines))
    lines[number] = json.dumps(change_tree(json.loads(lines[number]), rng)).encode()
    path.write_bytes(b"\n".join(lines) + b"\n")
    return False


def read_journals(folder: Path) -> Any:
    from rich.console import Console

    from megaptm.report import summary
    from megaptm.report.history import History
    from megaptm.report.page import run_page
    from megaptm.resilience.events import last_saved_step

    last_saved_step(folder)
    summary.report_run(folder, console=Console(file=io.StringIO()))
    "".join(run_page(History.read(folder), []))


def mutate_elmo(folder: Path, rng: Random) -> bool:
    path = rng.choice(sorted(file for file in folder.iterdir() if file.name != "vectors.txt"))
    change_file(path, rng)
    return False


def read_elmo(folder: Path) -> Any:
    from megaptm.families.elmo.importer import import_elmo

    import_elmo(folder, folder / "imported")


def mutate_vectors(folder: Path, rng: Random) -> bool:
    path = folder / "vectors.txt"
    path.write_bytes(change_bytes(path.read_bytes(), rng))
    return False


def read_vectors(folder: Path) -> Any:
    from megaptm.run.word_vector_file import with_word_vectors

    return with_word_vectors(torch.zeros(3, 2), str(folder / "vectors.txt"), ["king", "queen", "the sea"]).tolist()


def elmo_commands(folder: Path) -> list[Command]:
    return [["import", "elmo", str(folder), str(folder / "imported")]]


def mutate_yaml(folder: Path, rng: Random) -> bool:
    change_yaml(rng.choice(sorted(folder.glob("*.yaml"))), rng)
    return False


def read_config(folder: Path) -> Any:
    from megaptm.config import config_to_yaml, load_config, read_config_draft, resolve_model
    from megaptm.config.yamls import flatten_keys
    from megaptm.plan.count import count_parameters
    from megaptm.run.folder import absolute_paths

    read_config_draft(folder / "it.yaml")
    config = absolute_paths(load_config(folder / "it.yaml"))
    flatten_keys(config.model_dump())
    count_parameters(resolve_model(config))
    config_to_yaml(config)


def config_commands(folder: Path) -> list[Command]:
    path = str(folder / "it.yaml")
    return [
        ["plan", path, "--machine", "a100-80g"],
        ["plan", path, "--machine", "a100-80g", "--nodes", "1", "--search"],
        ["train", path],  # its corpus does not exist
    ]


def read_recipe(folder: Path) -> Any:
    from data_pipeline.recipe import read_recipe as read

    json.dumps(read([str(folder / "it.yaml")]).for_manifest())


def recipe_commands(folder: Path) -> list[Command]:
    return [["corpus", "build", str(folder / "it.yaml"), f"out={folder / 'built'}", "workers=0"]]


def read_machine(folder: Path) -> Any:
    from megaptm.config import load_config
    from megaptm.plan.machine import load_machine
    from megaptm.plan.plan import make_plan

    machine = load_machine(str(folder / "it.yaml"))
    make_plan(load_config("configs/gpt2/small.yaml", ["data.mix={x: 1}"]), machine).to_json()


def machine_commands(folder: Path) -> list[Command]:
    path = str(folder / "it.yaml")
    return [
        ["plan", "configs/gpt2/small.yaml", "--machine", path],
        ["plan", "configs/gpt3/175b.yaml", "--machine", path, "--nodes", "128", "--json"],
    ]


def logits_sample(number: int) -> dict[str, np.ndarray]:
    """Return the sample of which logits are cached."""
    return {"tokens": np.arange(number, number + 8)}


def mutate_logits(folder: Path, rng: Random) -> bool:
    if rng.random() < 0.4:
        change_json(folder / "manifest.json", rng)
        return False
    path = folder / "train-000000.safetensors"
    path.write_bytes(change_bytes(path.read_bytes(), rng))
    if rehashed := rng.random() < 0.8:
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return not rehashed


def read_logits(folder: Path) -> Any:
    from megaptm.distillation.cached_logits import TeacherLogits

    logits = TeacherLogits.open(folder).split("train")
    fields_by_sample = [logits.fields(number, logits_sample(number)) for number in range(3)]
    return [(name, field.tolist()) for fields in fields_by_sample for name, field in fields.items()]


def logits_commands(folder: Path) -> list[Command]:
    words = ["configs/distilbert/tiny.yaml", f"distill.cached_logits={folder}", "distill.cosine=0", "run=run"]
    return [["train", *words], ["cache-logits", *words]]


TARGETS = {
    target.name: target
    for target in (
        Target("config", "config", mutate_yaml, read_config, config_commands),
        Target("manifest", "corpus-bert", mutate_manifest, read_corpus, corpus_commands),
        Target("shard table", "corpus-bert", mutate_table, read_corpus, corpus_commands),
        Target("index", "corpus-bert", mutate_index, read_corpus, corpus_commands),
        Target("shard", "corpus-bert", mutate_shard, read_corpus, corpus_commands),
        Target("tokenizer byte-bpe", "corpus-gpt2", mutate_tokenizer, read_tokenizer, corpus_commands),
        Target("tokenizer wordpiece", "corpus-bert", mutate_tokenizer, read_tokenizer, corpus_commands),
        Target("tokenizer unigram", "corpus-t5", mutate_tokenizer, read_tokenizer, corpus_commands),
        Target("checkpoint manifest", "run", mutate_checkpoint, read_run, run_commands),
        Target("checkpoint tensors", "run", mutate_tensors, read_run, run_commands),
        Target("journals", "run", mutate_journals, read_journals, lambda run: [["report", str(run)]]),
        Target("safetensors header", "hf", mutate_safetensors, read_hugging_face, import_commands),
        Target("Hugging Face folder", "hf", mutate_hugging_face, read_hugging_face, import_commands),
        Target("ELMo folder", "elmo", mutate_elmo, read_elmo, elmo_commands),
        Target("word vectors", "elmo", mutate_vectors, read_vectors, elmo_commands),
        Target("teacher logits", "logits", mutate_logits, read_logits, logits_commands),
        Target("recipe", "recipe", mutate_yaml, read_recipe, recipe_commands),
        Target("machine", "machine", mutate_yaml, read_machine, machine_commands),
        *image_targets(),
    )
}
