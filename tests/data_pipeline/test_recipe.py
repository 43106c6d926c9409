from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.clean.steps import DropShort, Normalize
from data_pipeline.recipe import Recipe, TokenizerRecipe, read_recipe
from megaptm.errors import UserError

REPOSITORY = Path(__file__).parents[2]


def written(tmp_path: Path, content: str) -> str:
    path = tmp_path / "corpus.yaml"
    path.write_text(content)
    return str(path)


def test_a_recipe_says_sources_steps_tokenizer_and_splits(tmp_path):
    recipe = read_recipe(
        written(
            tmp_path,
            "sources: [a, b/*.txt]\n"
            "steps: [normalize, drop-short: {characters: 40}]\n"
            "tokenizer: {kind: wordpiece, vocabulary: 1000, lowercase: false}\n"
            "validation: 0.1\n",
        )
    )
    assert recipe == Recipe(
        sources=("a", "b/*.txt"),
        steps=(Normalize(), DropShort(characters=40)),
        tokenizer=TokenizerRecipe(kind="wordpiece", vocabulary=1000, lowercase=False),
        validation=0.1,
    )


def test_a_tokenizer_may_be_a_folder_and_a_source_a_word(tmp_path):
    recipe = read_recipe(written(tmp_path, "sources: python-library\ntokenizer: some/folder\n"))
    assert recipe.sources == ("python-library",)
    assert recipe.tokenizer.folder == "some/folder"


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "configs" / "corpora").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_recipe_of_the_repository_reads(path):
    assert read_recipe(str(path)).sources


WRONG = [
    ("sources: [a]\nvalidaton: 0.1", "`validaton` is not a setting: did you mean `validation`"),
    ("sources: [a]\ntokenizer: {vocab: 9}", "tokenizer: `vocab` is not a setting: did you mean `vocabulary`"),
    ("sources: [a]\ntokenizer: {kind: bpe}", "byte-bpe, wordpiece, unigram"),
    ("sources: [a]\ntokenizer: {vocabulary: many}", r"tokenizer.vocabulary \(many\) must be"),
    ("sources: [a]\nsteps: [drop-long]", "step `drop-long` is not known: use normalize"),
    ("sources: [a]\nsteps: [drop-short: {words: 3}]", "step drop-short: `words` is not a setting"),
    ("sources: [a]\nvalidation: 1.0", r"validation \(1.0\) must be"),
    ("sources: [a]\nshard_bytes: 8MB", r"shard_bytes \(8MB\) must be"),
    ("sources: [a]\nlimit_bytes: 0", r"limit_bytes \(0\) must be"),
    ("sources: [a]\non_error: stop", "`skip` or `fail`"),
    ("sources: []", "at least one file"),
    ("sources: [3]", r"sources \(\[3\]\) must be"),
    ("sources: {a: 1}", "must be at least one file"),
    ("sources: [a]\nsteps: normalize", "a list is due"),
    ("sources: [a]\nsteps: [[normalize]]", "is not known"),
    ("validation: 0.1", "names no `sources`"),
    ("- a", "a table of settings is due"),
    ("{", "cannot be read as YAML"),
]


@pytest.mark.parametrize(("content", "said"), WRONG)
def test_a_mistake_gets_one_sentence_that_names_it(content, said, tmp_path):
    with pytest.raises(UserError, match=said) as error:
        read_recipe(written(tmp_path, content))
    assert "\n" not in str(error.value)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml"):
        read_recipe(str(tmp_path / "none.yaml"))


def test_the_manifest_does_not_say_where_a_given_tokenizer_lay():
    recipe = Recipe(sources=("a",), tokenizer=TokenizerRecipe(folder="here"))
    assert recipe.plain() == replace(recipe, tokenizer=TokenizerRecipe(folder="there")).plain()
