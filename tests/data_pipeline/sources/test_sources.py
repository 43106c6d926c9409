import sysconfig

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.sources.files import PYTHON_LIBRARY, InputFile, find_files, partition
from megaptm.errors import UserError


def names(*sources: object) -> list[str]:
    return [file.name for file in find_files([str(source) for source in sources])]


def test_a_folder_gives_its_text_files_by_name_without_the_hidden_ones(text):
    found = names(text)
    assert found == sorted(found)
    assert {"library/ast.py", "library/latin.txt", "library/records.jsonl"} <= set(found)
    assert not [name for name in found if "secret" in name or "picture" in name]


def test_a_named_file_is_read_whatever_its_suffix(tmp_path):
    (tmp_path / "README").write_text("hello")
    assert names(tmp_path / "README") == ["README"]


def test_a_glob_reaches_below(text):
    assert [name.rsplit("/", 1)[1] for name in names(text.parent / "**" / "c*.py")] == [
        "calendar.py",
        "configparser.py",
        "copy_of_ast.py",
    ]


def test_sources_keep_the_order_they_were_given_in(text):
    assert names(text / "zipfile.py", text / "ast.py") == ["zipfile.py", "ast.py"]


def test_the_python_library_is_itself_without_installed_packages():
    files = find_files([PYTHON_LIBRARY])
    found = {file.name for file in files}
    assert {"python-library/argparse.py", "python-library/json/decoder.py"} <= found
    assert not [name for name in found if "site-packages" in name or "__pycache__" in name]
    assert all(file.path.startswith(sysconfig.get_path("stdlib")) for file in files)


def test_a_source_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere"):
        find_files([str(tmp_path / "nowhere")])


def test_a_folder_without_text_is_refused(tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(UserError, match="no text found"):
        find_files([str(tmp_path)])


@given(sizes=st.lists(st.integers(0, 100), min_size=1, max_size=30), size=st.integers(1, 50))
def test_parts_hold_every_file_once_in_order_and_only_a_file_larger_than_a_part_exceeds_it(sizes, size):
    files = [InputFile(str(number), str(number), bytes_) for number, bytes_ in enumerate(sizes)]
    parts = partition(files, size)
    assert [file for part in parts for file in part] == files
    assert all(len(part) == 1 or sum(file.size for file in part) <= size for part in parts)
