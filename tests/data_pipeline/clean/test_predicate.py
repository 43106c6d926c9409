import sys

import pytest

from data_pipeline.clean.predicate import KeepIf
from data_pipeline.functions import load_function
from megaptm.errors import UserError
from tests.data_pipeline.clean.running import run

MODULE = """
def is_long(document):
    return len(document.text) > 3

def why(document):
    return "it shouts" if document.text.isupper() else None

def fails(document):
    return 1 / 0

def says_three(document):
    return 3

number = 3
"""


@pytest.fixture(autouse=True)
def _rules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "user_rules.py").write_text(MODULE)
    yield
    sys.modules.pop("user_rules", None)
    load_function.cache_clear()


def test_function_filters_documents():
    retained, dropped = run(KeepIf(call="user_rules:is_long"), "long enough", "no")
    assert [document.text for document in retained] == ["long enough"]
    assert dropped.counts == {"keep-if: user_rules:is_long": 1}


def test_function_returns_drop_reason():
    retained, dropped = run(KeepIf(call="user_rules:why"), "calm", "LOUD")
    assert [document.text for document in retained] == ["calm"]
    assert dropped.examples == {"keep-if: it shouts": [("1.txt", "LOUD")]}


def test_module_file_is_an_input(tmp_path):
    assert KeepIf(call="user_rules:why").input_files() == (str(tmp_path / "user_rules.py"),)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "user_rules:fails",
            "keep-if failed on document 0.txt (ZeroDivisionError: division by zero): correct it, or skip",
        ),
        (
            "user_rules:says_three",
            "(ValueError: user_rules:says_three returned 3, but must return True, False, None or a reason)",
        ),
        ("user_rules:number", "`user_rules:number` is not a function: correct the name."),
        ("user_rules:nothing", "module `user_rules` has no function `nothing`: correct the name."),
        ("no_such_module:f", "module `no_such_module` cannot be imported"),
    ],
)
def test_function_errors_are_reported(call, message):
    with pytest.raises(UserError) as error:
        run(KeepIf(call=call), "text")
    assert message in str(error.value)


@pytest.mark.parametrize("call", ["rules", "a:b:c", ":f", "rules:"])
def test_malformed_function_name_is_rejected(call):
    with pytest.raises(UserError, match=r"must be written `package\.module:function`"):
        KeepIf(call=call)
