"""Label names of image models, which config.json contains instead of tokenizer files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megaptm.storage import read_json_object
from megaptm.tokenizers import Tokenizer
from megaptm.tokenizers.labels import make_label_tokenizer


def label_names(tokenizer: Tokenizer | None, labels: int) -> dict[int, str]:
    """Return the label names of an exported image model: label -> name; labels without a name in the corpus get the
    default of transformers."""
    known = 0 if tokenizer is None else tokenizer.vocabulary
    return {
        label: tokenizer.name(label) if tokenizer is not None and label < known else f"LABEL_{label}"
        for label in range(labels)
    }


def read_labels(folder: Path, config_file: str, *, remedy: str, labels: int) -> Tokenizer:
    """Return the label names in a Hugging Face config as a tokenizer. Duplicate names get their index appended."""
    config: Mapping[str, Any] = read_json_object(folder / config_file, remedy=remedy)
    id2label = config.get("id2label")
    table = id2label if isinstance(id2label, Mapping) else {}
    names = [str(table.get(str(label), f"LABEL_{label}")) for label in range(labels)]
    duplicates = {name for name, count in Counter(names).items() if count > 1}
    return make_label_tokenizer(
        [f"{name} ({label})" if name in duplicates else name for label, name in enumerate(names)]
    )
