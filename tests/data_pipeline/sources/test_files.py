import os
import socket
import sysconfig

import fsspec
import pytest

from data_pipeline.document import DropCounts
from data_pipeline.sources import PYTHON_LIBRARY, InputFile, Source, Span, find_files, read_span
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.sources.reading import reading, written
from tests.data_pipeline.sources.test_archives import archive


def names(*sources: object, **options) -> list[str]:
    return [file.name for file in find_files([Source(str(source), **options) for source in sources])]


def test_folder_lists_text_files(text):
    result = names(text)
    assert result == sorted(result)
    assert {"library/ast.py", "library/latin.txt", "library/records.jsonl"} <= set(result)
    assert not [name for name in result if "secret" in name or "picture" in name]


def test_names_are_sorted_by_code_points(tmp_path, monkeypatch):
    for name in ("é.txt", "b.txt", "B.txt", "a/z.txt", "a.txt", "\U0001f600.txt"):
        written(tmp_path / "pile" / name, "x")
    expected = ["pile/B.txt", "pile/a.txt", "pile/a/z.txt", "pile/b.txt", "pile/é.txt", "pile/\U0001f600.txt"]
    assert names(tmp_path / "pile") == expected
    forwards = os.walk
    monkeypatch.setattr(
        os, "walk", lambda *arguments, **named: ((a, b, c[::-1]) for a, b, c in forwards(*arguments, **named))
    )
    assert names(tmp_path / "pile") == expected


def test_named_file_with_unknown_suffix(tmp_path):
    assert names(written(tmp_path / "README", "hello")) == ["README"]


def test_string_as_source(text):
    assert [file.name for file in find_files((str(text / "ast.py"),))] == ["ast.py"]


def test_glob_names(text):
    assert names(text.parent / "lib*" / "c*.py") == [
        f"{text.parent.name}/library/{name}.py" for name in ("calendar", "configparser", "copy_of_ast")
    ]
    assert names(text / "**" / "zip*") == ["library/zipfile.py"]


def test_relative_glob_names(text, monkeypatch):
    monkeypatch.chdir(text.parent)
    assert names("*/ast.py") == ["library/ast.py"]
    assert names("library/a*.py") == ["library/argparse.py", "library/ast.py"]


def test_file_name_with_brackets(tmp_path):
    written(tmp_path / "a1.txt", "x")
    assert names(written(tmp_path / "a[1].txt", "y")) == ["a[1].txt"]


def test_sources_keep_their_order(text):
    assert names(text / "zipfile.py", text / "ast.py") == ["zipfile.py", "ast.py"]


def test_python_library_excludes_packages():
    files = find_files([PYTHON_LIBRARY])
    result = {file.name for file in files}
    assert {"python-library/argparse.py", "python-library/json/decoder.py"} <= result
    assert not [name for name in result if "site-packages" in name or "__pycache__" in name]
    assert all(file.path.startswith(sysconfig.get_path("stdlib")) for file in files)


def test_format_selects_files(tmp_path):
    for name in ("a.jsonl.gz", "b.json", "c.txt", "d"):
        written(tmp_path / "pile" / name, "x")
    assert names(tmp_path / "pile") == ["pile/a.jsonl.gz", "pile/c.txt"]
    assert names(tmp_path / "pile", format="json-lines") == ["pile/a.jsonl.gz", "pile/b.json"]
    assert names(tmp_path / "pile" / "[cd]*", format="json-lines") == ["pile/c.txt", "pile/d"]


def test_ambiguous_suffixes_need_a_glob(tmp_path):
    for name in ("config.json", "pom.xml", "simplewiki-20240101-pages-articles1.xml-p1p41242.bz2"):
        written(tmp_path / "pile" / name, "x")
    assert names(tmp_path / "pile") == ["pile/simplewiki-20240101-pages-articles1.xml-p1p41242.bz2"]
    assert names(tmp_path / "pile" / "*.*") == sorted(f"pile/{file.name}" for file in (tmp_path / "pile").iterdir())


def test_version_changes_with_file(tmp_path):
    path = written(tmp_path / "a.txt", "x")
    [before] = find_files([str(path)])
    os.utime(path, ns=(1, 1))
    [after] = find_files([str(path)])
    assert (before.size, after.version) == (1, "1")
    assert before.version != after.version


def test_linked_folders_and_broken_links(tmp_path):
    written(tmp_path / "elsewhere" / "a.txt", "x")
    (tmp_path / "pile").mkdir()
    (tmp_path / "pile" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "pile")
    (tmp_path / "pile" / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path / "pile") == ["pile/gone.txt", "pile/linked/a.txt"]


def test_link_cycle_is_read_once(tmp_path):
    written(tmp_path / "pile" / "a" / "a.txt", "x")
    (tmp_path / "pile" / "a" / "self").symlink_to(tmp_path / "pile" / "a")
    (tmp_path / "pile" / "a" / "also").symlink_to(tmp_path / "pile" / "a")
    twice = {"folder already read": ["pile/a/also", "pile/a/self"]}
    for location in (tmp_path / "pile", tmp_path / "pile" / "**", tmp_path / "pile" / "**" / "*.txt"):
        assert names(location) == ["pile/a/a.txt"]
        assert passed_over(location) == twice


def test_double_star_follows_links(tmp_path, monkeypatch):
    written(tmp_path / "pile" / "a" / "b" / "c.txt", "x")
    written(tmp_path / "pile" / ".hidden" / "c.txt", "x")
    (tmp_path / "pile" / "linked").symlink_to(written(tmp_path / "out" / "c.txt", "x").parent)
    monkeypatch.chdir(tmp_path / "pile")
    assert names("**/*.txt") == names("**/**/c.txt") == ["a/b/c.txt", "linked/c.txt"]
    assert names(tmp_path / "*" / "**" / "b" / "*.txt") == [f"{tmp_path.name}/pile/a/b/c.txt"]


def test_file_name_with_two_colons(tmp_path):
    written(tmp_path / "pile" / "std::string.txt", "a string")
    assert reading(tmp_path / "pile").texts == ["a string"]
    assert reading(tmp_path / "pile" / "std::string.txt").texts == ["a string"]


def passed_over(path, **options) -> dict[str, list[str]]:
    """reason -> names of the files that were found and skipped."""
    dropped = DropCounts()
    find_files([Source(str(path), **options)], dropped)
    assert all(dropped.messages[reason] for reason in dropped.counts)
    return {reason: [name for name, _ in few] for reason, few in dropped.examples.items()}


@pytest.fixture
def special(tmp_path):
    """A pipe, and a socket."""
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "socket.txt"))
    return tmp_path


def test_pipe_is_skipped(special):
    written(special / "b.txt", "x")
    for path in (special, special / "*.txt"):
        assert names(path) == [f"{special.name}/b.txt"]
        assert passed_over(path) == {"not a file": [f"{special.name}/pipe.txt", f"{special.name}/socket.txt"]}


def test_named_pipe_is_rejected(special):
    for path in (special / "pipe.txt", special / "socket.txt", "/dev/zero"):
        with pytest.raises(UserError, match=r"is a pipe, a socket or a device: write its content to a file\."):
            names(path)


def test_file_replaced_by_pipe_is_dropped(special):
    dropped = DropCounts()
    assert list(read_span(Span(InputFile(str(special / "pipe.txt"), "pipe.txt", 1)), dropped)) == []
    assert dropped.counts == {"unreadable": 1}


def test_skipped_files_are_counted(tmp_path):
    for name in ("a.txt", "README", "b.txt.lz4", "c.JSON", "d.png", "sub/e.7z", ".hidden", "dump.gz"):
        written(tmp_path / "pile" / name, "x")
    unknown = {"unknown format": ["pile/README", "pile/c.JSON", "pile/d.png", "pile/dump.gz"]}
    compressed = {"unsupported compression": ["pile/b.txt.lz4", "pile/sub/e.7z"]}
    assert passed_over(tmp_path / "pile") == {**unknown, **compressed}
    assert passed_over(tmp_path / "pile" / "*", format="text") == {"unsupported compression": ["pile/b.txt.lz4"]}
    assert passed_over(tmp_path / "pile" / "a.txt") == {}


def test_unsupported_compression_is_dropped(tmp_path, refusal):
    path = written(tmp_path / "a.txt.lz4", b"\x04\x22\x4d\x18")
    assert reading(path).counts == {"unsupported compression": 1}
    assert "has an unsupported compression: decompress it" in refusal(path)


def test_corpus_inside_source_is_skipped(tmp_path):
    pile = tmp_path / "pile"
    written(pile / "a.txt", "x")
    tiny_corpus(pile / "corpora" / "books")
    for name in ("index.html", "tokenizer/merges.txt"):
        written(pile / "corpora" / "books" / name, "x")
    written(pile / "new.building" / "scratch" / "parts" / "0.jsonl", "{}")
    written(pile / "other.building" / "corpus" / "report.json", "{}")
    written(pile / "elsewhere" / "scratch" / "finished" / "0.jsonl", "{}")
    written(pile / "scratch" / "mine.txt", "x")  # a name that any file may have
    expected = ["pile/a.txt", "pile/scratch/mine.txt"]
    assert names(pile) == names(pile / "**" / "*") == expected
    assert passed_over(pile) == {
        "corpus": ["pile/corpora/books"],
        "unfinished build": ["pile/elsewhere/scratch", "pile/new.building", "pile/other.building"],
    }
    with pytest.raises(UserError, match=r"no text found in .*books, but 1 corpus \(books/"):
        names(pile / "corpora" / "books")


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname != "Linux", reason="Linux lets names be any bytes")
def test_non_utf8_name_is_escaped(tmp_path):
    (tmp_path / "pile").mkdir()
    with open(os.fsencode(tmp_path / "pile") + b"/caf\xe9.txt", "wb") as file:
        file.write(b"x")
    assert names(tmp_path / "pile") == ["pile/caf\\xe9.txt"]


def test_missing_source_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        names(tmp_path / "nowhere")


@pytest.mark.parametrize("source", [".", "*.txt", "**/*"])
def test_source_without_text_is_rejected(source, tmp_path, text):
    written(tmp_path / "picture.png", b"\x89PNG")
    with pytest.raises(UserError, match="no text found") as message:
        names(text, tmp_path / source)
    assert ("for images, use `megaptm corpus images`" in str(message.value)) == (source != "*.txt")


def test_no_source_is_rejected():
    with pytest.raises(UserError, match="no source is given"):
        find_files([])


def test_unlistable_folder_is_rejected(tmp_path, monkeypatch):
    written(tmp_path / "a.txt", "x")
    written(tmp_path / "locked" / "b.txt", "x")
    listed = os.scandir

    def scandir(path):
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"locked cannot be listed \(Permission denied\)"):
        names(tmp_path)


def test_duplicate_source_is_rejected(text):
    with pytest.raises(UserError, match=r"library is named twice"):
        names(text, text)


def test_overlapping_sources_are_rejected(text, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(text / "ast.py")
    for other in (text / "ast.py", link, f"{text}/../library/a*.py", f"file://{text}/ast.py"):
        with pytest.raises(UserError, match=r"sources .*library and .* both contain .*\.py"):
            names(text, other)


def test_equal_names_in_two_folders(tmp_path):
    written(tmp_path / "one" / "a.txt", "x")
    written(tmp_path / "two" / "a.txt", "x")
    assert names(tmp_path / "one", tmp_path / "two") == ["one/a.txt", "two/a.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "epub"}, r"format \(epub\) must be one of text, markdown"),
        ({"documents": "page"}, r"documents \(page\) must be one of file, line, blank-line"),
        ({"encoding": "utf-9"}, r"encoding \(utf-9\) is not a Python codec"),
        ({"encoding": "base64"}, r"encoding \(base64\) is not a Python codec"),
        ({"delimiter": "::"}, r"delimiter \(::\) must be one"),
        ({"delimiter": "é"}, r"delimiter \(é\) must be one"),
        ({"columns": ("en", "en")}, r"columns \(en, en\) must be different names"),
        ({"columns": ("en", "de")}, r"columns \(en, de\) do not include `text`"),
        ({"leave_out": ("pictures",)}, r"leave_out \(pictures\) must be one of headers, lists, tables"),
    ],
)
def test_invalid_source_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        Source("pile", **options)


def test_corpus_at_url_is_skipped():
    system = fsspec.filesystem("memory")
    for name in ("a.txt", "books/manifest.json", "books/train.shards.npy", "books/report.html"):
        system.pipe_file(f"/mended/{name}", b"x")
    assert names("memory://mended") == ["mended/a.txt"]
    assert set(passed_over("memory://mended")) == {"corpus"}


OVERRIDES = {"other*": {"text": "content"}, "notes": {"format": "text"}}


def test_overrides_of_folder_files(tmp_path):
    written(tmp_path / "pile" / "one.jsonl", '{"text": "one"}\n')
    written(tmp_path / "pile" / "below" / "other.jsonl", '{"content": "other"}\n')
    written(tmp_path / "pile" / "notes", "no suffix")
    result = reading(tmp_path / "pile", overrides=OVERRIDES)
    assert (result.texts, result.counts) == (["other", "no suffix", "one"], {})


def test_overrides_of_archive_members(tmp_path):
    files = {"one.jsonl": b'{"text": "one"}\n', "other.jsonl": b'{"content": "other"}\n', "notes": b"no suffix"}
    result = reading(archive(tmp_path / "pile.zip", files), overrides=OVERRIDES)
    assert (result.texts, result.counts) == (["one", "other", "no suffix"], {})


def test_unmatched_override_is_rejected(tmp_path):
    written(tmp_path / "a.jsonl", "{}")
    with pytest.raises(UserError, match=r"no file matches b\*.jsonl in its overrides: correct the name or glob"):
        names(tmp_path, overrides={"*.jsonl": {"text": "x"}, "b*.jsonl": {"text": "content"}})


def test_override_of_a_file_outside_the_sources_is_rejected(tmp_path):
    members = archive(tmp_path / "pile.zip", {"one.jsonl": b'{"text": "one"}\n'})
    outside = written(tmp_path / "other.jsonl", '{"content": "other"}\n')
    with pytest.raises(UserError, match=r"other.jsonl is in no source, .* name the file as a source too"):
        names(members, overrides={str(outside): {"text": "content"}})
