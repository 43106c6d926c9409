"""Synonymous phrases from a table become tokens, with which words of captions are replaced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megaptm.errors import UserError
from megaptm.families.unimo.corpus.meanings import build_meanings, read_meanings
from megaptm.families.unimo.meanings import load_meanings
from megaptm.families.unimo.rewriting import join_words
from megaptm.tokenizers import train_tokenizer_on_texts

TEXT = "a red cart and a crimson wagon beside a blue box, the cartoon near the redder boxes " * 30
TABLE = "# colors\nattributes\tred\tcrimson\nattributes\tblue\n\nobjects\tcart\twagon\nobjects\tbox\trød\n"


@pytest.mark.parametrize(("kind", "specials"), [("wordpiece", "bert"), ("byte-bpe", "roberta")])
def test_caption_is_rewritten_by_phrase(kind: str, specials: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer_on_texts(kind, [TEXT], vocabulary=300 if kind == "byte-bpe" else 60, specials=specials)
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "table.tsv").write_text(TABLE, encoding="utf-8")
    build_meanings(str(tmp_path / "table.tsv"), str(tmp_path / "tokenizer"), str(tmp_path / "meanings.json"))
    known, rng = load_meanings(str(tmp_path / "meanings.json")), np.random.default_rng(0)

    def rewritten(text: str, how: str) -> set[str]:
        made = getattr(known.rewriter, how)(known.words(tokenizer.encode(text)), rng, number=20)
        return {tokenizer.decode(join_words(caption)).replace(" ,", ",") for caption in made}

    assert rewritten("a red cart and a cartoon", "paraphrases") == {
        f"a {color} {thing} and a cartoon" for color in ("red", "crimson") for thing in ("cart", "wagon")
    } - {"a red cart and a cartoon"}
    invalid = rewritten("a red cart", "negatives")
    assert {"a blue cart", "a red box"} <= invalid
    assert not any("crimson" in caption or "wagon" in caption for caption in invalid)
    # Words that are only the start of a phrase match nothing.
    assert rewritten("the redder cartoon", "negatives") == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objects\n", "line 1 of .* is not `kind<TAB>phrase<TAB>phrase"),
        ("objects\tcart\nverbs\tgo\n", "line 2 of .* with a kind of objects, attributes, relations"),
        ("objects\tcart\t\n", "line 1 of"),
        ("# nothing\n", "has no phrases"),
    ],
)
def test_invalid_table_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "table.tsv").write_text(text)
    with pytest.raises(UserError, match=message):
        read_meanings(tmp_path / "table.tsv")
    with pytest.raises(UserError, match="cannot be read"):
        read_meanings(tmp_path / "absent.tsv")
