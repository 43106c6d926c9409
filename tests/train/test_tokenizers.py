"""Training on text with each kind of tokenizer."""

import numpy as np
import pytest
from rich.console import Console

from data_pipeline import commands
from megaptm.data import open_mix
from megaptm.tokenizers import load_tokenizer
from tests.drills.program import arguments, finish, losses
from tests.forked import megaptm
from tests.train.runs import write_text

CASES = {
    "RoBERTa": ("masked-lm", "byte-bpe", "specials=roberta"),
    "DeBERTa": ("masked-lm-next-sentence", "byte-bpe", "specials=deberta"),
    "ALBERT": ("masked-lm-sentence-order", "unigram", "specials=albert", "lowercase=true"),
    "words of BERT": ("masked-lm-whole-word", "words", "specials=bert"),
    "GPT": ("causal-lm", "char-bpe"),
    "words": ("causal-lm", "words"),
    "spans of words": ("span-corruption", "words", "specials=t5", "sentinels=9"),
    "spans of RoBERTa": ("span-corruption", "byte-bpe", "specials=roberta", "sentinels=9"),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    text = write_text(folder / "text")

    def corpus(name):
        _, kind, *options = CASES[name]
        out = folder / name.replace(" ", "-")
        if not out.exists():
            settings = [f"tokenizer.{option}" for option in (f"kind={kind}", "vocabulary=300", *options)]
            words = [str(text), f"out={out}", "workers=0", "validation=0.2", *settings]
            commands.run_build_command(
                [*words, "annotate.words=true", "annotate.sentences=true"], console=Console(quiet=True)
            )
        return out

    return corpus


@pytest.mark.parametrize("name", CASES)
def test_objective_uses_special_tokens_of_any_tokenizer(name, corpus):
    objective, special = CASES[name][0], load_tokenizer(corpus(name) / "tokenizer").special
    mix = open_mix({str(corpus(name)): 1.0}, objective=objective, sequence=40, seed=3, special=special)
    rows = [mix.sample(number) for number in range(16)]
    if objective.startswith("masked"):
        assert {row["tokens"][0] for row in rows} == {special.cls}
        assert all(special.sep in row["tokens"] for row in rows)
        assert any(special.mask in row["tokens"] for row in rows)
    elif objective == "causal-lm":
        assert any(special.end in row["tokens"] for row in rows)
    else:
        assert any(np.isin(special.sentinels, row["tokens"]).any() for row in rows)


@pytest.mark.parametrize(("name", "family"), [("RoBERTa", "bert"), ("GPT", "gpt2"), ("spans of words", "t5")])
def test_model_trains_with_other_tokenizer(name, family, corpus, tmp_path):
    words = (f"objective={CASES[name][0]}", "train.steps=4", "optimizer.warmup_steps=2")
    megaptm("train", *arguments(family, tmp_path / "run", corpus(name), *words))
    assert len(losses(tmp_path / "run")) == 4


def test_corpus_without_mask_token_is_refused(corpus, tmp_path):
    done = finish("train", *arguments("bert", tmp_path / "run", corpus("GPT"), "objective=masked-lm"))
    assert done.returncode == 2
    output = " ".join(done.stderr.split())
    assert "objective masked-lm needs a tokenizer with a `pad` token: build the corpus with" in output
    assert "build the corpus with tokenizer.kind=wordpiece, as bert has it, or use another objective." in output
