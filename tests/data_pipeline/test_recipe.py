import re
from dataclasses import replace
from pathlib import Path

import pytest

from data_pipeline.clean.basic import DropShort, Normalize
from data_pipeline.recipe import Recipe, TokenizerRecipe, read_recipe
from data_pipeline.sources import Source
from megaptm.errors import UserError

REPOSITORY = Path(__file__).parents[2]


def written(tmp_path: Path, content: str) -> str:
    path = tmp_path / "corpus.yaml"
    path.write_text(content)
    return str(path)


def test_read_recipe(tmp_path):
    recipe = read_recipe(
        [
            written(
                tmp_path,
                "sources: [a, b/*.txt]\n"
                "steps: [normalize, drop-short: {characters: 40}]\n"
                "tokenizer: {kind: wordpiece, vocabulary: 1000, lowercase: false}\n"
                "validation: 0.1\n",
            )
        ]
    )
    assert recipe == Recipe(
        sources=(Source("a"), Source("b/*.txt")),
        steps=(Normalize(), DropShort(characters=40)),
        tokenizer=TokenizerRecipe(kind="wordpiece", vocabulary=1000, lowercase=False),
        validation=0.1,
    )


def test_tokenizer_folder_and_single_source(tmp_path):
    recipe = read_recipe([written(tmp_path, "sources: python-library\ntokenizer: some/folder\n")])
    assert recipe.sources == (Source("python-library"),)
    assert recipe.tokenizer.folder == "some/folder"


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "configs" / "corpora").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_recipes_are_valid(path):
    assert read_recipe([str(path)]).sources


WRONG = [
    ("sources: [a]\nvalidaton: 0.1", "unknown setting validaton; did you mean validation"),
    ("sources: [a]\ntokenizer: {vocab: 9}", "tokenizer: unknown setting vocab; did you mean vocabulary"),
    ("sources: [a]\ntokenizer: {kind: bpx}", r"tokenizer: kind \(bpx\) is not known; did you mean bpe\?"),
    ("sources: [a]\ntokenizer: {vocabulary: many}", "tokenizer: vocabulary must be an integer, not 'many'"),
    ("sources: [a]\ntokenizer: 3", "tokenizer must be a table of settings, not 3"),
    ("sources: [a]\nsteps: [normalise]", "unknown step normalise; did you mean normalize"),
    ("sources: [a]\nsteps: [drop-short: {wods: 3}]", "step drop-short: unknown setting wods"),
    ("sources: [a]\nvalidation: .inf", "validation cannot be inf"),
    ("sources: [a]\nseed: 010", "seed must be an integer, not 010 .octal in one version of YAML"),
    ("sources: [a]\nvalidation: 1.0", "validation must be a share from 0 to below 1, not 1.0"),
    ("sources: [a]\nshard_bytes: 8MB", "shard_bytes must be an integer, not '8MB'"),
    ("sources: [a]\nshard_bytes: true", "shard_bytes must be an integer, not True"),
    ("sources: [a]\nlimit_bytes: 0", "limit_bytes must be 1 or more, not 0"),
    ("sources: [a]\non_error: stop", "on_error must be 'skip' or 'fail', not 'stop'"),
    ("sources: []", "at least one file"),
    ("sources: [3]", "source 1 must be a table"),
    ("sources: [{path: a, txt: b}]", "source 1: unknown setting txt; did you mean text"),
    ("sources: [{a: 1}]", "source 1"),
    (
        "sources: [a]\nsteps: normalize",
        r"must be a list, not 'normalize'; on the command line write it like 'steps=\[drop-empty, ",
    ),
    ("sources: [a]\ntext: true", r"text is a setting of sources: write 'sources=\[{path: FILES, text: ...}\]'"),
    ("sources: [a]\nsteps: [drop-short: {words: -3}]", r"step drop-short: words \(-3\) must be 0 or more"),
    ("sources: [a]\nsteps: [[normalize]]", "unknown step"),
    ("validation: 0.1", "sources is missing"),
    ("- a", "a config is a mapping"),
    ("{", "not valid YAML"),
]


@pytest.mark.parametrize(("content", "message"), WRONG)
def test_invalid_recipe_is_rejected(content, message, tmp_path):
    with pytest.raises(UserError, match=message) as error:
        read_recipe([written(tmp_path, content)])
    assert "\n" not in str(error.value)


def test_missing_recipe_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"none\.yaml"):
        read_recipe([str(tmp_path / "none.yaml")])


def test_manifest_omits_tokenizer_folder():
    recipe = Recipe(sources=(Source("a"),), tokenizer=TokenizerRecipe(folder="here"))
    assert recipe.for_manifest() == replace(recipe, tokenizer=TokenizerRecipe(folder="there")).for_manifest()


def test_command_line_settings_override_recipe(tmp_path):
    path = written(tmp_path, "sources: [a]\ntokenizer: {kind: wordpiece, vocabulary: 9}\nseed: 3\n")
    recipe = read_recipe([path], ["tokenizer.vocabulary=7", "validation=0.5"])
    assert recipe.tokenizer == TokenizerRecipe(kind="wordpiece", vocabulary=7)
    assert (recipe.seed, recipe.validation) == (3, 0.5)


def test_override_on_command_line():
    recipe = read_recipe(["books", "s3://pile/x"], ["b*.jsonl:text=content", "b*.jsonl:keep=[url]", "seed=3"])
    changed = {"b*.jsonl": {"text": "content", "keep": ["url"]}}
    assert [source.overrides for source in recipe.sources] == [changed, changed]
    assert recipe.for_manifest()["sources"][0] == {"path": "books", "overrides": changed}
    assert recipe.seed == 3


def test_overrides_without_sources_are_rejected():
    with pytest.raises(
        UserError, match=r"^a.jsonl:text=content only changes .* name the sources before it, such as a.js"
    ):
        read_recipe(["a.jsonl:text=content"], ["seed=3"])


def test_override_is_added_to_recipe(tmp_path):
    path = written(tmp_path, "sources: [{path: a, text: body, overrides: {c.csv: {text: x}}}, b]")
    recipe = read_recipe([path, "c.csv:delimiter=;", "d:format=text"])
    expected = {"c.csv": {"text": "x", "delimiter": ";"}, "d": {"format": "text"}}
    assert recipe.sources[0].overrides == expected
    assert recipe.sources[0].text == "body"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("a.csv:format=text-lines", "source 1: a.csv: source a.csv: format (text-lines) must be one of text, markdown"),
        ("a.csv:parts=[a, b]", "parts applies to a complete source: make a.csv a separate source"),
    ],
)
def test_invalid_override_is_rejected(word, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_recipe(["a", word])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["a", "text: content"], "text: content is no source: write 'GLOB:text=content' for the files that match"),
        (["a", "text:"], "text: is no source: write 'GLOB:text=VALUE'"),
        (["a", "b.jsonl:text:content"], "b.jsonl:text:content is no source: write 'b.jsonl:text=content'"),
        (["a", "b.jsonl:txt=content"], "b.jsonl:txt=content: txt is no setting of sources; did you mean text?"),
        (["a", "sources=[b]"], "sources=... would replace a: give all sources in one of the two ways."),
    ],
)
def test_mistyped_settings_of_files_are_rejected(words, sentence):
    source = [word for word in words if not word.startswith("sources=")]
    with pytest.raises(UserError, match=re.escape(sentence)):
        read_recipe(source, words[len(source) :])
