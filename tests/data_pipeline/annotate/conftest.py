"""A text in many scripts, and a tokenizer of each kind that covers some of it."""

import argparse
import textwrap
from pathlib import Path

import pytest

from megaptm.tokenizers import KINDS, Tokenizer, train_tokenizer_on_texts

MIXED = (
    "The quick brown fox's den — isn't it (naïve)? Yes!\n\n"
    "\tdef f(x_1):  return x_1 ** 2.5  # 3,000 parsers\r\n"
    "北京大学在海淀区。学生们喜欢读书,也喜欢 Python 3.11 语言!\n"
    "ひらがなとカタカナと漢字です。 서울은 대한민국의 수도이다.\n"
    "Family 👩‍👩‍👧🏽 emoji 😀😀 and ❤️ e\u0301te\u0301 \u00a0 नमस्ते दुनिया, привет мир\u2028end ☃\n"
)


@pytest.fixture(scope="session")
def prose() -> list[str]:
    modules = [Path(module.__file__).read_text(encoding="utf-8") for module in (argparse, textwrap)]
    return [MIXED, *modules]


@pytest.fixture(scope="session")
def tokenizers(prose) -> dict[str, Tokenizer]:
    return {kind: train_tokenizer_on_texts(kind, prose, vocabulary=900, sentinels=0) for kind in KINDS}
