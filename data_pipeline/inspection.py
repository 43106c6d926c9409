"""Inspect a corpus: sizes, lengths, decoded texts, and samples of an objective."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from data_pipeline.packing import packing_by_length, packing_sums, packing_table
from data_pipeline.report import histogram_table
from megaptm.batch import IGNORED, BatchSpec
from megaptm.console import Console
from megaptm.data import Mix
from megaptm.data.files import open_tar, tar_members
from megaptm.data.shards import Corpus
from megaptm.data.token_types import ShardTokenType, find_shard_token_type
from megaptm.errors import UserError
from megaptm.families import contributions
from megaptm.objectives.text_questions import QUESTIONS, question_field
from megaptm.storage import parse_json
from megaptm.tokenizers import Tokenizer, load_tokenizer

MEASURED_SAMPLES = 256
"""Number of samples in which padding is counted."""
LABEL_STYLE = "bold black on yellow"


def inspect_corpus(
    folder: str | Path,
    console: Console | None = None,
    *,
    objective: str | None = None,
    split: str = "train",
    count: int = 3,
    sequence: int = 128,
) -> None:
    """Print the sizes of a corpus, a histogram of lengths, and `count` documents, or `count` samples of an
    objective."""
    if count < 0:
        raise UserError(f"count ({count}) must be 0 or more.")
    console, corpus = console or Console(), Corpus.open(folder)
    tokenizer = load_tokenizer(corpus.folder / "tokenizer")
    console.print(Text(f"corpus {corpus.name}", "italic"), soft_wrap=True)
    console.print(corpus_table(corpus, tokenizer))
    if not (kind := _token_type(corpus)).is_label:
        content = "documents" if kind.noun == "document" else f"texts of {kind.noun}s"
        lengths = np.concatenate([index[:, 1] for index in corpus.indexes([*corpus.split(split).shards])])
        powers = Counter(np.log2(lengths).astype(int).tolist())
        bins = {1 << power: documents for power, documents in powers.items()}
        console.print(histogram_table(bins, f"{split} {content} by length in tokens"))
        console.print(packing_table(packing_by_length(packing_sums(lengths))))
    panels = (
        _sample_documents(corpus, tokenizer, split, count, sequence)
        if objective is None
        else _first_samples(folder, tokenizer, objective, split, count, sequence)
    )
    for panel in panels:
        console.print(panel)


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun: `1 shard`, `2,000 shards`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _token_type(corpus: Corpus) -> ShardTokenType:
    return find_shard_token_type(corpus.manifest.dtype)


def corpus_table(corpus: Corpus, tokenizer: Tokenizer) -> Table:
    """Return a table of a corpus: id, tokenizer, sizes and recipe."""
    table, kind = Table(box=None, show_header=False), _token_type(corpus)
    table.add_row("id", corpus.manifest.id)
    if kind.is_label:
        table.add_row("labels", f"{tokenizer.vocabulary:,}")
    else:
        table.add_row("tokenizer", f"{tokenizer.kind}, {tokenizer.vocabulary:,} ids")
    for name, split in corpus.manifest.splits.items():
        counts = [format_count(split.samples, kind.noun)]
        counts += [] if kind.is_label else [format_count(split.tokens, "token")]
        counts += [
            f"{split.bytes:,} bytes{' of text' if kind.noun == 'document' else ''}",
            format_count(len(split.shards), "shard"),
        ]
        table.add_row(name, ", ".join(counts))
    made_from = yaml.safe_dump(shown_recipe(corpus.manifest.made_from), sort_keys=False, allow_unicode=True)
    table.add_row("made from", Text(made_from.rstrip()))
    return table


def shown_recipe(made_from: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe of a corpus without unset values and empty tables. A step without settings is retained."""
    recipe = {key: shown_recipe(value) if isinstance(value, Mapping) else value for key, value in made_from.items()}
    return {key: value for key, value in recipe.items() if value is not None and value != {}}


def _sample_documents(corpus: Corpus, tokenizer: Tokenizer, split: str, count: int, sequence: int) -> Iterator[Panel]:
    """Yield documents evenly spread over a split of a corpus, cut to `sequence` tokens."""
    shards = corpus.split(split).shards
    first_samples = np.cumsum([0, *(info.samples for info in shards)])
    for number in np.unique(np.linspace(0, first_samples[-1] - 1, count).astype(int)):
        location = int(np.searchsorted(first_samples, number, side="right")) - 1
        document = int(number - first_samples[location])
        tokens = corpus.open_shard(shards[location]).tokens(document)
        text = tokenizer.decode(tokens[:sequence]) + (" ..." if len(tokens) > sequence else "")
        source = _document_source(corpus.folder / shards[location].name, document)
        yield Panel(Text(text), title=Text(f"{source}: {format_count(len(tokens), 'token')}"), title_align="left")


def _document_source(shard: Path, document: int) -> str:
    """Return the source of a shard's document."""
    try:
        with open_tar(shard) as tar:
            notes = (member for member in tar_members(tar) if member.isreg() and member.name.endswith(".json"))
            member = next(islice(notes, document, None))
            return str(parse_json(tar.extractfile(member).read(), shard, remedy="rebuild the corpus")["source"])  # type: ignore[union-attr]  # regular
    except (tarfile.TarError, OSError, StopIteration, KeyError, TypeError, ValueError):
        # The metadata are informative only: documents are found and verified through the index.
        return f"{shard.name}, document {document}"


def _first_samples(
    location: str | Path, tokenizer: Tokenizer, objective: str, split: str, count: int, sequence: int
) -> Iterator[Panel]:
    """Yield the first samples of a corpus that a run with seed 0 would train on."""
    from megaptm.config.yamls import read_override
    from megaptm.data.opening import open_mix
    from megaptm.objectives import build_objective

    task = build_objective(read_override(f"objective={objective}").values["objective"])
    mix = open_mix(
        {str(location): 1.0}, split=split, objective=task, sequence=sequence, seed=0, special=tokenizer.special
    )
    yield Panel(_padding_line(mix), title=task.name, title_align="left")
    for number in range(count):
        sample = mix.sample(number)
        yield Panel(
            show_sample(sample, mix.batch_spec, tokenizer), title=f"{task.name}, sample {number}", title_align="left"
        )


def _padding_line(mix: Mix) -> str:
    """Return the share of padding in samples of the objective."""
    count = min(MEASURED_SAMPLES, mix.fresh_samples)
    samples = [mix.sample(number) for number in range(count)]
    tokens = [name for name in samples[0] if name == "tokens" or name.endswith("_tokens")] if samples else []
    shares = []
    for name in tokens:
        ids = name.removesuffix("tokens") + "document_ids"
        is_padding = [sample[ids] == 0 if ids in sample else sample[name] == mix.special.pad for sample in samples]
        stream = f"{name.removesuffix('_tokens')}: " if len(tokens) > 1 else ""
        shares.append(f"{stream}{np.mean(is_padding):.1%}")
    return f"padding: {', '.join(shares)} of the positions of {count:,} samples"


def show_sample(sample: Mapping[str, np.ndarray], batch: BatchSpec, tokenizer: Tokenizer) -> Text:
    """Return a sample as text: the model's input, with the labels highlighted."""
    for show in contributions("inspection", "SHOW_SAMPLE"):
        if (text := show(sample, batch, tokenizer)) is not None:
            return text  # type: ignore[no-any-return]  # of a module found by its name
    tokens = sample["tokens"]
    if "document_ids" in sample:
        tokens = tokens[sample["document_ids"] > 0]
    text = Text()
    if batch.num_predicted is not None and "labels" in sample:
        masked = zip(sample["masked_positions"], sample["labels"], strict=True)
        answers = {int(at): int(id_) for at, id_ in masked if id_ >= 0}
        start = 0
        for at, answer in sorted(answers.items()):
            text.append(tokenizer.decode(tokens[start:at]) + " ")
            text.append(f"{tokenizer.decode(tokens[at : at + 1])}→{tokenizer.decode([answer])}", LABEL_STYLE)
            text.append(" ")
            start = at + 1
        text.append(tokenizer.decode(tokens[start:]))
    else:
        text.append(tokenizer.decode(tokens))
    if batch.num_predicted is None and "labels" in sample:
        labels = sample["labels"][sample["labels"] >= 0]
        text.append("\n\nlabels: ")
        # With several streams, the labels are those of the last one.
        label_text = (
            tokenizer.decode(labels) if len(batch.streams) > 1 else f"the next token, at {len(labels)} positions"
        )
        text.append(label_text, LABEL_STYLE)
    for name in batch.label_names:
        if batch.fields[name].shape == () and (answer := int(sample[name])) != IGNORED:
            says = next(
                (question.label_meanings for masked, question in QUESTIONS.items() if question_field(masked) == name),
                (),
            )
            about, label_text = ("second text", says[answer]) if says else (name, str(answer))
            text.append(f"\n\n{about}: ")
            text.append(label_text, LABEL_STYLE)
    return text
