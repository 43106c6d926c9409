import os
import socket
import sysconfig

import fsspec
import pytest

from data_pipeline.document import Dropped
from data_pipeline.sources import PYTHON_LIBRARY, InputFile, Source, Span, find_files, read
from megaptm.errors import UserError
from tests.data.corpora import tiny_corpus
from tests.data_pipeline.sources.reading import reading, written
from tests.data_pipeline.sources.test_archives import archive


def names(*sources: object, **options) -> list[str]:
    return [file.name for file in find_files([Source(str(source), **options) for source in sources])]


def test_a_folder_gives_its_text_files_by_name_without_the_hidden_ones(text):
    found = names(text)
    assert found == sorted(found)
    assert {"library/ast.py", "library/latin.txt", "library/records.jsonl"} <= set(found)
    assert not [name for name in found if "secret" in name or "picture" in name]


def test_names_are_sorted_by_code_points_whatever_the_order_on_disk(tmp_path, monkeypatch):
    for name in ("é.txt", "b.txt", "B.txt", "a/z.txt", "a.txt", "\U0001f600.txt"):
        written(tmp_path / "pile" / name, "x")
    expected = ["pile/B.txt", "pile/a.txt", "pile/a/z.txt", "pile/b.txt", "pile/é.txt", "pile/\U0001f600.txt"]
    assert names(tmp_path / "pile") == expected
    forwards = os.walk
    monkeypatch.setattr(os, "walk", lambda *given, **named: ((a, b, c[::-1]) for a, b, c in forwards(*given, **named)))
    assert names(tmp_path / "pile") == expected


def test_a_named_file_is_read_whatever_its_suffix(tmp_path):
    assert names(written(tmp_path / "README", "hello")) == ["README"]


def test_plain_strings_are_sources(text):
    assert [file.name for file in find_files((str(text / "ast.py"),))] == ["ast.py"]


def test_a_glob_reaches_below_and_names_begin_with_its_last_plain_folder(text):
    assert names(text.parent / "lib*" / "c*.py") == [
        f"{text.parent.name}/library/{name}.py" for name in ("calendar", "configparser", "copy_of_ast")
    ]
    assert names(text / "**" / "zip*") == ["library/zipfile.py"]


def test_a_glob_from_here_names_files_from_here(text, monkeypatch):
    monkeypatch.chdir(text.parent)
    assert names("*/ast.py") == ["library/ast.py"]
    assert names("library/a*.py") == ["library/argparse.py", "library/ast.py"]


def test_a_file_whose_name_looks_like_a_glob_is_itself(tmp_path):
    written(tmp_path / "a1.txt", "x")
    assert names(written(tmp_path / "a[1].txt", "y")) == ["a[1].txt"]


def test_sources_keep_the_order_they_were_given_in(text):
    assert names(text / "zipfile.py", text / "ast.py") == ["zipfile.py", "ast.py"]


def test_the_python_library_is_itself_without_installed_packages():
    files = find_files([PYTHON_LIBRARY])
    found = {file.name for file in files}
    assert {"python-library/argparse.py", "python-library/json/decoder.py"} <= found
    assert not [name for name in found if "site-packages" in name or "__pycache__" in name]
    assert all(file.path.startswith(sysconfig.get_path("stdlib")) for file in files)


def test_a_format_takes_its_own_suffixes_of_a_folder_and_all_that_a_glob_matches(tmp_path):
    for name in ("a.jsonl.gz", "b.json", "c.txt", "d"):
        written(tmp_path / "pile" / name, "x")
    assert names(tmp_path / "pile") == ["pile/a.jsonl.gz", "pile/c.txt"]
    assert names(tmp_path / "pile", format="json-lines") == ["pile/a.jsonl.gz", "pile/b.json"]
    assert names(tmp_path / "pile" / "[cd]*", format="json-lines") == ["pile/c.txt", "pile/d"]


def test_suffixes_that_mean_many_things_are_taken_of_globs_but_not_of_folders(tmp_path):
    for name in ("config.json", "pom.xml", "simplewiki-20240101-pages-articles1.xml-p1p41242.bz2"):
        written(tmp_path / "pile" / name, "x")
    assert names(tmp_path / "pile") == ["pile/simplewiki-20240101-pages-articles1.xml-p1p41242.bz2"]
    assert names(tmp_path / "pile" / "*.*") == sorted(f"pile/{file.name}" for file in (tmp_path / "pile").iterdir())


def test_a_change_of_a_file_shows_in_its_version(tmp_path):
    path = written(tmp_path / "a.txt", "x")
    [before] = find_files([str(path)])
    os.utime(path, ns=(1, 1))
    [after] = find_files([str(path)])
    assert (before.size, after.version) == (1, "1")
    assert before.version != after.version


def test_linked_folders_are_followed_once_and_a_link_that_leads_nowhere_is_a_file(tmp_path):
    written(tmp_path / "elsewhere" / "a.txt", "x")
    (tmp_path / "pile").mkdir()
    (tmp_path / "pile" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "pile")
    (tmp_path / "pile" / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path / "pile") == ["pile/gone.txt", "pile/linked/a.txt"]


def test_a_link_to_its_own_folder_is_counted_and_read_once(tmp_path):
    written(tmp_path / "pile" / "a" / "a.txt", "x")
    (tmp_path / "pile" / "a" / "self").symlink_to(tmp_path / "pile" / "a")
    (tmp_path / "pile" / "a" / "also").symlink_to(tmp_path / "pile" / "a")
    twice = {"folder read already": ["pile/a/also", "pile/a/self"]}
    for place in (tmp_path / "pile", tmp_path / "pile" / "**", tmp_path / "pile" / "**" / "*.txt"):
        assert names(place) == ["pile/a/a.txt"]
        assert passed_over(place) == twice


def test_a_double_star_reaches_through_linked_folders_from_here_and_from_the_root(tmp_path, monkeypatch):
    written(tmp_path / "pile" / "a" / "b" / "c.txt", "x")
    written(tmp_path / "pile" / ".hidden" / "c.txt", "x")
    (tmp_path / "pile" / "linked").symlink_to(written(tmp_path / "out" / "c.txt", "x").parent)
    monkeypatch.chdir(tmp_path / "pile")
    assert names("**/*.txt") == names("**/**/c.txt") == ["a/b/c.txt", "linked/c.txt"]
    assert names(tmp_path / "*" / "**" / "b" / "*.txt") == [f"{tmp_path.name}/pile/a/b/c.txt"]


def test_two_colons_in_a_name_are_no_url(tmp_path):
    written(tmp_path / "pile" / "std::string.txt", "a string")
    assert reading(tmp_path / "pile").texts == ["a string"]
    assert reading(tmp_path / "pile" / "std::string.txt").texts == ["a string"]


def passed_over(path, **options) -> dict[str, list[str]]:
    """reason -> names, of what was found and not taken."""
    dropped = Dropped()
    find_files([Source(str(path), **options)], dropped)
    assert all(dropped.said[reason] for reason in dropped.counts)
    return {reason: [name for name, _ in few] for reason, few in dropped.examples.items()}


@pytest.fixture
def special(tmp_path):
    """A pipe, and a socket."""
    os.mkfifo(tmp_path / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(tmp_path / "socket.txt"))
    return tmp_path


def test_a_pipe_is_not_waited_for(special):
    written(special / "b.txt", "x")
    for path in (special, special / "*.txt"):
        assert names(path) == [f"{special.name}/b.txt"]
        assert passed_over(path) == {"not a file": [f"{special.name}/pipe.txt", f"{special.name}/socket.txt"]}


def test_a_pipe_a_socket_or_a_device_that_is_named_is_refused(special):
    for path in (special / "pipe.txt", special / "socket.txt", "/dev/zero"):
        with pytest.raises(UserError, match=r"is a pipe, a socket or a device: write it to a file, and name that\."):
            names(path)


def test_a_file_that_became_a_pipe_is_counted_and_not_waited_for(special):
    dropped = Dropped()
    assert list(read(Span(InputFile(str(special / "pipe.txt"), "pipe.txt", 1)), dropped)) == []
    assert dropped.counts == {"unreadable": 1}


def test_what_a_folder_or_a_glob_holds_besides_is_counted_with_the_reason(tmp_path):
    for name in ("a.txt", "README", "b.txt.lz4", "c.JSON", "d.png", "sub/e.7z", ".hidden", "dump.gz"):
        written(tmp_path / "pile" / name, "x")
    unknown = {"no known format": ["pile/README", "pile/c.JSON", "pile/d.png", "pile/dump.gz"]}
    compressed = {"unknown compression": ["pile/b.txt.lz4", "pile/sub/e.7z"]}
    assert passed_over(tmp_path / "pile") == {**unknown, **compressed}
    assert passed_over(tmp_path / "pile" / "*", format="text") == {"unknown compression": ["pile/b.txt.lz4"]}
    assert passed_over(tmp_path / "pile" / "a.txt") == {}


def test_a_named_file_that_is_compressed_in_another_way_is_counted(tmp_path, refusal):
    path = written(tmp_path / "a.txt.lz4", b"\x04\x22\x4d\x18")
    assert reading(path).counts == {"unknown compression": 1}
    assert "is compressed in a way that is not read here: decompress it" in refusal(path)


def test_a_corpus_among_its_own_sources_is_no_text(tmp_path):
    pile = tmp_path / "pile"
    written(pile / "a.txt", "x")
    tiny_corpus(pile / "corpora" / "books")
    for name in ("index.html", "tokenizer/merges.txt"):
        written(pile / "corpora" / "books" / name, "x")
    written(pile / "new.building" / "scratch" / "parts" / "0.jsonl", "{}")
    written(pile / "other.building" / "corpus" / "report.json", "{}")
    written(pile / "elsewhere" / "scratch" / "finished" / "0.jsonl", "{}")
    written(pile / "scratch" / "mine.txt", "x")  # a name that anybody may use
    expected = ["pile/a.txt", "pile/scratch/mine.txt"]
    assert names(pile) == names(pile / "**" / "*") == expected
    assert passed_over(pile) == {
        "corpus": ["pile/corpora/books"],
        "unfinished build": ["pile/elsewhere/scratch", "pile/new.building", "pile/other.building"],
    }
    with pytest.raises(UserError, match=r"no text found in .*books, but 1 corpus \(books/"):
        names(pile / "corpora" / "books")


@pytest.mark.skipif(os.name != "posix" or os.uname().sysname != "Linux", reason="Linux lets names be any bytes")
def test_a_name_that_is_not_utf8_gets_one_that_is(tmp_path):
    (tmp_path / "pile").mkdir()
    with open(os.fsencode(tmp_path / "pile") + b"/caf\xe9.txt", "wb") as file:
        file.write(b"x")
    assert names(tmp_path / "pile") == ["pile/caf\\xe9.txt"]


def test_a_source_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        names(tmp_path / "nowhere")


@pytest.mark.parametrize("source", [".", "*.txt", "**/*"])
def test_a_source_without_text_is_refused_even_beside_others(source, tmp_path, text):
    written(tmp_path / "picture.png", b"\x89PNG")
    with pytest.raises(UserError, match="no text found") as told:
        names(text, tmp_path / source)
    assert ("of images `megaptm corpus images` makes a corpus" in str(told.value)) == (source != "*.txt")


def test_no_source_at_all_is_refused():
    with pytest.raises(UserError, match="no source is named"):
        find_files([])


def test_a_folder_that_may_not_be_listed_is_an_error_and_no_silent_loss(tmp_path, monkeypatch):
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


def test_a_source_named_twice_is_refused(text):
    with pytest.raises(UserError, match=r"library is named twice"):
        names(text, text)


def test_two_sources_with_the_same_file_are_both_named(text, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(text / "ast.py")
    for other in (text / "ast.py", link, f"{text}/../library/a*.py", f"file://{text}/ast.py"):
        with pytest.raises(UserError, match=r"sources .*library and .* both have .*\.py"):
            names(text, other)


def test_the_same_file_in_two_folders_is_found_twice(tmp_path):
    written(tmp_path / "one" / "a.txt", "x")
    written(tmp_path / "two" / "a.txt", "x")
    assert names(tmp_path / "one", tmp_path / "two") == ["one/a.txt", "two/a.txt"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "epub"}, r"format \(epub\) must be one of text, markdown"),
        ({"documents": "page"}, r"documents \(page\) must be one of file, line, blank-line"),
        ({"encoding": "utf-9"}, r"encoding \(utf-9\) is not known"),
        ({"encoding": "base64"}, r"encoding \(base64\) is not known"),
        ({"delimiter": "::"}, r"delimiter \(::\) must be one"),
        ({"delimiter": "é"}, r"delimiter \(é\) must be one"),
        ({"columns": ("en", "en")}, r"columns \(en, en\) must be different names"),
        ({"columns": ("en", "de")}, r"columns \(en, de\) do not name `text`"),
        ({"leave_out": ("pictures",)}, r"leave_out \(pictures\) must be one of headers, lists, tables"),
    ],
)
def test_a_wrong_option_is_one_sentence(options, said):
    with pytest.raises(UserError, match=said):
        Source("pile", **options)


def test_a_corpus_at_a_url_is_no_text_either():
    system = fsspec.filesystem("memory")
    for name in ("a.txt", "books/manifest.json", "books/train.shards.npy", "books/report.html"):
        system.pipe_file(f"/mended/{name}", b"x")
    assert names("memory://mended") == ["mended/a.txt"]
    assert set(passed_over("memory://mended")) == {"corpus"}


OVERRIDES = {"other*": {"text": "content"}, "notes": {"format": "text"}}


def test_some_files_of_a_folder_have_other_settings(tmp_path):
    written(tmp_path / "pile" / "one.jsonl", '{"text": "one"}\n')
    written(tmp_path / "pile" / "below" / "other.jsonl", '{"content": "other"}\n')
    written(tmp_path / "pile" / "notes", "no suffix")
    found = reading(tmp_path / "pile", overrides=OVERRIDES)
    assert (found.texts, found.counts) == (["other", "no suffix", "one"], {})


def test_some_members_of_an_archive_have_other_settings(tmp_path):
    files = {"one.jsonl": b'{"text": "one"}\n', "other.jsonl": b'{"content": "other"}\n', "notes": b"no suffix"}
    found = reading(archive(tmp_path / "pile.zip", files), overrides=OVERRIDES)
    assert (found.texts, found.counts) == (["one", "other", "no suffix"], {})


def test_a_pattern_that_no_file_matches_is_refused(tmp_path):
    written(tmp_path / "a.jsonl", "{}")
    with pytest.raises(UserError, match=r"no file matches b\*.jsonl of its overrides: correct the name or glob"):
        names(tmp_path, overrides={"*.jsonl": {"text": "x"}, "b*.jsonl": {"text": "content"}})
