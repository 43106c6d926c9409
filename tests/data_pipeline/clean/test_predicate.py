import sys

import pytest

from data_pipeline.clean.predicate import KeepIf
from data_pipeline.functions import function_named
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
    (tmp_path / "rules_of_mine.py").write_text(MODULE)
    yield
    sys.modules.pop("rules_of_mine", None)
    function_named.cache_clear()


def test_a_function_keeps_and_drops():
    kept, dropped = run(KeepIf(call="rules_of_mine:is_long"), "long enough", "no")
    assert [document.text for document in kept] == ["long enough"]
    assert dropped.counts == {"keep-if: rules_of_mine:is_long": 1}


def test_a_function_may_say_why():
    kept, dropped = run(KeepIf(call="rules_of_mine:why"), "calm", "LOUD")
    assert [document.text for document in kept] == ["calm"]
    assert dropped.examples == {"keep-if: it shouts": [("1.txt", "LOUD")]}


def test_its_file_is_an_input(tmp_path):
    assert KeepIf(call="rules_of_mine:why").inputs() == (str(tmp_path / "rules_of_mine.py"),)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "rules_of_mine:fails",
            "keep-if failed on document 0.txt (ZeroDivisionError: division by zero): mend it, or leave",
        ),
        (
            "rules_of_mine:says_three",
            "(ValueError: rules_of_mine:says_three answered 3: it must say True, False, None or a reason)",
        ),
        ("rules_of_mine:number", "`rules_of_mine:number` is not a function: correct the name."),
        ("rules_of_mine:nothing", "module `rules_of_mine` has no function `nothing`: correct the name."),
        ("no_such_module:f", "module `no_such_module` cannot be imported"),
    ],
)
def test_what_goes_wrong_is_told_in_a_sentence(call, told):
    with pytest.raises(UserError) as error:
        run(KeepIf(call=call), "text")
    assert told in str(error.value)


@pytest.mark.parametrize("call", ["rules", "a:b:c", ":f", "rules:"])
def test_a_call_names_a_module_and_a_function(call):
    with pytest.raises(UserError, match=r"must be written `package\.module:function`"):
        KeepIf(call=call)
