"""Names of labels, which the config of a model of images has in the place of a tokenizer's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.storage import read_object
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.labels import label_tokenizer


def label_names(tokenizer: Tokenizer | None, labels: int) -> dict[int, str]:
    """Label -> name; of those that a corpus has not, as transformers calls them."""
    known = 0 if tokenizer is None else tokenizer.vocabulary
    return {
        label: tokenizer.name(label) if tokenizer is not None and label < known else f"LABEL_{label}"
        for label in range(labels)
    }


def read_labels(folder: Path, config_file: str, *, remedy: str, labels: int) -> Tokenizer:
    """The names of labels in a folder's config; of those that are there twice, each with its number."""
    config: Mapping[str, Any] = read_object(folder / config_file, remedy=remedy)
    said = config.get("id2label")
    table = said if isinstance(said, Mapping) else {}
    names = [str(table.get(str(label), f"LABEL_{label}")) for label in range(labels)]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return label_tokenizer([f"{name} ({label})" if name in twice else name for label, name in enumerate(names)])
