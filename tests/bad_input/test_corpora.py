"""A failed build leaves no folder; a corpus that does not fit its config is rejected before a run starts."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from data_pipeline.recipe import read_recipe
from megaptm.__main__ import main
from megaptm.config import load_config
from megaptm.data import open_mix, read_manifest, write_manifest
from megaptm.run.build_command import build_command
from megaptm.run.folder import absolute_paths
from megaptm.tokenizers import load_tokenizer
from tests.bad_input.commands import CONFIGS, content, user_error
from tests.fuzz.rehash import rehash_manifest
from tests.realtext import VOCABULARIES

VOCABULARY = VOCABULARIES["byte-bpe"]
SMALL = (f"model.vocabulary={VOCABULARY}", "data.sequence=32", "train.batch=8", "layout.microbatch=8")


@pytest.fixture
def corpus(real_corpus, tmp_path):
    """Copy of a corpus that a test may damage."""
    return shutil.copytree(real_corpus("byte-bpe"), tmp_path / "corpus")


@pytest.fixture
def train(tmp_path):
    """Function: error message of `megaptm train` on corpora. It must not change them, nor create the run folder."""

    def error_message(*corpora, family="gpt2", more=()):
        before = [content(corpus) for corpus in corpora]
        mix = ", ".join(f"{corpus}: 1" for corpus in corpora)
        words = [f"run={tmp_path / 'run'}", f"data.mix={{{mix}}}", *SMALL, *more]
        message = user_error("train", CONFIGS / family / "tiny.yaml", *words)
        assert not (tmp_path / "run").exists()
        assert [content(corpus) for corpus in corpora] == before
        return message

    return error_message


def keep_splits(corpus, *names):
    """Rewrite the manifest as if the other splits had no text."""
    manifest = read_manifest(corpus)
    splits = {name: split.shards if name in names else () for name, split in manifest.splits.items()}
    write_manifest(
        corpus,
        dtype=manifest.dtype,
        splits=splits,
        tokenizer=manifest.tokenizer,
        made_from=manifest.made_from,
        fields=manifest.fields,
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("annotation_counts", [], "made_from.annotation_counts: input should be a valid dictionary"),
        ("tables", {"labels": "ham"}, "made_from.tables.labels: input should be a valid list"),
        ("recipe", 3, "made_from.recipe: input should be a valid dictionary"),
    ],
)
def test_wrong_types_in_made_from(key, value, expected, train, corpus):
    path = corpus / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["made_from"][key] = value
    rehash_manifest(path, manifest)
    assert expected in train(corpus)


def test_missing_corpus(train, tmp_path):
    absent = tmp_path / "absent"
    assert train(absent) == (
        f"{absent}/manifest.json does not exist, so {absent} is not a finished corpus: build it with `megaptm corpus "
        f"build TEXT out={absent} tokenizer.kind=byte-bpe tokenizer.vocabulary=512`."
    )


def test_text_to_text_needs_parts(train, corpus):
    message = train(corpus, family="t5", more=("objective=text-to-text",))
    assert "was built without parts, which the objective needs: build it with sources with `parts` or" in message


def test_all_missing_annotations_are_named(train, real_corpus):
    message = train(real_corpus("wordpiece"), family="ernie-2")
    assert "was built without words and capitals, which the objective needs: build it with annotate." in message
    assert "with annotate.words=true annotate.capitals=true, or use another objective." in message


@pytest.mark.parametrize(
    ("family", "kind", "message"),
    [
        ("gpt1", "wordpiece", "with a `end` token: build the corpus with tokenizer.kind=char-bpe, as gpt1 has it"),
        ("palm", "wordpiece", "with a `end` token: build the corpus with tokenizer.kind=bpe, as palm has it"),
        ("deberta-v2", "byte-bpe", "corpus with tokenizer.kind=unigram tokenizer.specials=deberta, as deberta-v2 has"),
    ],
)
def test_wrong_tokenizer_kind_names_the_kind_of_the_family(train, real_corpus, family, kind, message):
    assert message in train(real_corpus(kind), family=family)


def test_text_folder_is_built_into_another_folder(train, tmp_path):
    (tmp_path / "tales").mkdir()
    (tmp_path / "tales/first.txt").write_text("Once.")
    assert f"`megaptm corpus build {tmp_path}/tales out=corpora/tales tokenizer" in train(tmp_path / "tales")


def test_build_command_has_the_published_vocabulary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # away from existing runs
    config = load_config(CONFIGS / "bert/base.yaml", ["data.mix={wiki: 1}", "model.vocabulary=null"])
    assert "tokenizer.kind=wordpiece tokenizer.vocabulary=30522 " in build_command("wiki", config)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("albert", "tokenizer.kind=unigram tokenizer.specials=albert annotate.sentences=true annotate.words=true"),
        ("t5", "tokenizer.kind=unigram"),
        ("ernie-2", "tokenizer.kind=wordpiece annotate.words=true annotate.capitals=true annotate.sentences=true"),
    ],
)
def test_build_command_of_a_family(family, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # away from existing runs
    path = "s3://texts/of our own"
    config = load_config(CONFIGS / family / "tiny.yaml", [f"data.mix={{{path}: 1}}"])
    assert build_command(path, config) == f"megaptm corpus build TEXT 'out={path}' {options}"


@pytest.mark.parametrize(
    ("config", "corpus", "command"),
    [
        ("uniter/tiny", "regions", "images FOLDER_OF_PAIRS out=OUT texts=true regions=true 'detector=[24, 17]'"),
        (
            "unimo/base",
            "captions",
            "images FOLDER_OF_PAIRS out=OUT texts=true regions=true tokenizer=CORPORA/web/tokenizer",
        ),
        (
            "unimo/base",
            "web",
            "build TEXT out=OUT tokenizer.kind=byte-bpe tokenizer.vocabulary=50265 tokenizer.specials=roberta "
            "annotate.words=true",
        ),
    ],
)
def test_build_command_for_regions_and_their_texts(config, corpus, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "corpora" / corpus)
    result = build_command(path, absolute_paths(load_config(CONFIGS / f"{config}.yaml")))
    command = command.replace("OUT", path).replace("CORPORA", str(tmp_path / "corpora"))
    assert result == f"megaptm corpus {command}"


@pytest.mark.parametrize(
    ("family", "more", "corpus", "words"),
    [
        ("transformer", [], "pairs", ["sources=[{path: PAIRS.jsonl, parts: [FIRST, SECOND]}]", "tokenizer.kind=bpe"]),
        ("ernie", [], "corpora/tiny-ernie", ["annotate.words=true", "annotate.tags=TAGS.tsv"]),
        # Only one task reads this corpus; it needs the tokenizer of the other corpus.
        (
            "ernie",
            [],
            "corpora/tiny-talks",
            ["sources=[{path: TALKS.jsonl, messages: messages}]", "tokenizer=CORPORA/tiny-ernie/tokenizer"],
        ),
        ("t5", ["objective=text-to-text"], "pairs", ["sources=[{path: PAIRS.jsonl, parts: [FIRST, SECOND]}]"]),
        (
            "ernie-2",
            ["objective={titles: {task: relevance}}"],
            "log",
            ["sources=[{path: PAIRS.jsonl, parts: [FIRST, SECOND], keep: [label]}]", "annotate.labels=[LABEL, LABEL]"],
        ),
    ],
)
def test_build_command_of_a_task(family, more, corpus, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mix = [] if corpus.startswith("corpora/") else [f"data.mix={{{corpus}: 1}}"]
    config = load_config(CONFIGS / family / "tiny.yaml", [*mix, *more])
    [path] = [path for path in config.data.mix if path.endswith(corpus)]
    corpora = str(Path(path).parent)
    command = shlex.split(build_command(path, config))
    expected = {word.replace("CORPORA", corpora) for word in words}
    assert expected <= {*command}, command
    switches = {word for word in command if word.startswith("annotate.")}
    assert "annotate.turns=true" in switches if "talks" in corpus else "annotate.turns=true" not in switches
    assert ("annotate.words=true" in switches) == ("annotate.words=true" in words), command
    read_recipe(command[3:4])


def test_text_to_text_allows_a_plain_text_corpus():
    mix = "data.mix={c4: 1, pairs: 1}"
    config = load_config(CONFIGS / "t5/tiny.yaml", [mix, "objective=text-to-text"])
    first, second = config.data.mix
    assert shlex.split(build_command(second, config))[3:] == ["TEXT", f"out={second}", f"tokenizer={first}/tokenizer"]


@pytest.mark.parametrize(
    ("split", "missing", "share"), [("validation", "train", "smaller"), ("train", "validation", "larger")]
)
def test_empty_split(train, corpus, split, missing, share):
    keep_splits(corpus, split)
    assert train(corpus) == (
        f"{corpus} has no documents in its split `{missing}` (it has {split}): "
        f"build the corpus with a {share} validation=SHARE, or from more text."
    )


def test_validation_split_smaller_than_a_batch(train, corpus):
    message = train(corpus, more=["train.batch=1048576"])
    assert message.startswith("the validation split has ")
    assert message.endswith(
        "build the corpus with a larger validation split (validation=0.1 overwrite=true), or lower train.batch."
    )


def test_truncated_shard(train, corpus):
    shard = corpus / "train-000000.tar"
    size = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(size - 1000)
    assert train(corpus) == (
        f"{shard} has {size - 1000:,} bytes where the manifest says {size:,} (truncated?): copy the shard again or "
        "rebuild the corpus."
    )


def test_corpora_of_two_tokenizers(train, corpus, real_corpus):
    other = real_corpus("unigram")
    assert train(corpus, other) == (
        f"data.mix: {corpus} and {other} were made with different tokenizers: build one of them again with the "
        "tokenizer of the other."
    )


def test_replaced_tokenizer(train, corpus, real_corpus):
    shutil.rmtree(corpus / "tokenizer")
    shutil.copytree(real_corpus("unigram") / "tokenizer", corpus / "tokenizer")
    assert train(corpus) == (
        f"{corpus}/tokenizer is not the tokenizer that its corpus was built with: restore that one, or build the "
        "corpus again."
    )


def test_tokenizer_larger_than_the_model(train, corpus):
    assert train(corpus, more=["model.vocabulary=300"]) == (
        f"model.vocabulary (300) is less than the {VOCABULARY} ids of the tokenizer of {corpus}: set "
        f"model.vocabulary={VOCABULARY}, or build the corpus with a smaller tokenizer."
    )


def test_tokenizer_without_a_required_token(train, corpus):
    assert "objective masked-lm-next-sentence needs a tokenizer with a `pad` token" in train(corpus, family="bert")


def test_edited_manifest(train, corpus):
    manifest = json.loads((corpus / "manifest.json").read_text())
    manifest["splits"]["train"]["tokens"] += 1
    (corpus / "manifest.json").write_text(json.dumps(manifest))
    assert train(corpus) == (
        f"{corpus}/manifest.json was changed after it was written, or written by an earlier megaptm "
        "(its id does not match): build the corpus again."
    )


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    return folder


def build(text, *more):
    return ["corpus", "build", text, f"out={text.with_name('built')}", "tokenizer.vocabulary=300", "workers=0", *more]


def nothing_built(text):
    return [path.name for path in text.parent.iterdir()] == [text.name]


def test_build_of_an_empty_folder(text):
    assert user_error(*build(text)).startswith(f"no text found in {text}: name a file")
    assert nothing_built(text)


def test_build_of_empty_files(text):
    (text / "empty.txt").write_text(" \n\n")
    assert "no document is left after reading and cleaning (1 empty)" in user_error(*build(text))
    assert nothing_built(text)


def test_build_of_invalid_utf8(text):
    (text / "good.txt").write_text("A sentence that anyone can read. " * 50)
    (text / "latin.txt").write_bytes("Der Müller mahlt.".encode("latin-1"))
    assert user_error(*build(text, "on_error=fail")) == (
        f"{text}/latin.txt is not UTF-8: byte 0xfc at offset 5: convert it to UTF-8, or set "
        "`encoding: auto` for its source, or skip such text with `on_error: skip`."
    )
    assert nothing_built(text)
    done = CliRunner().invoke(main, [str(word) for word in build(text)])
    assert done.exit_code == 0
    assert "dropped 1 not UTF-8" in done.stdout


def test_long_document_becomes_many_samples(text):
    long = " ".join(f"{number} bottles of beer on the wall," for number in range(20_000, 0, -1))
    (text / "long.txt").write_text(long)
    done = CliRunner().invoke(main, [str(word) for word in build(text)])
    assert done.exit_code == 0, done.output
    built = text.with_name("built")
    tokenizer = load_tokenizer(built / "tokenizer")
    mix = open_mix({str(built): 1}, objective="causal-lm", sequence=64, seed=0, special=tokenizer.special)
    shard = read_manifest(built).splits["train"].shards[0]
    rows = [mix.sample(index)["tokens"] for index in range(mix.fresh_samples)]
    assert shard.samples == 1
    assert len(rows) == shard.tokens // 64 > 1000
    assert len({row.tobytes() for row in rows}) > 0.99 * len(rows)
    assert all(tokenizer.decode(row) in long for row in rows)


def test_build_command_uses_the_tokenizer_of_existing_weights(tmp_path):
    """The weights are those of an imported run, or of train.init_from."""
    words = ["data.mix={text: 1}", f"train.init_from={tmp_path / 'other'}", f"run={tmp_path / 'run'}"]
    config = load_config(CONFIGS / "led/tiny-summarization.yaml", words)
    assert "tokenizer.kind=byte-bpe" in build_command("text", config)
    for folder in ("other", "run"):
        (tmp_path / folder / "tokenizer").mkdir(parents=True)
        assert shlex.split(build_command("text", config))[-1] == f"tokenizer={tmp_path / folder / 'tokenizer'}"
