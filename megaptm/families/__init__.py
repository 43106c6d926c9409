"""The catalogue: every family by name."""

from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT2, GPT3
from megaptm.families.t5 import T5
from megaptm.spec import Family

CATALOGUE: dict[str, Family] = {family.name: family for family in (GPT2, GPT3, BERT, T5)}
