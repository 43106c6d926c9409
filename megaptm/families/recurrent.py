"""Families with recurrent layers; they are trained with data parallelism only."""

from megaptm.families.cove import COVE
from megaptm.families.elmo import ELMO
from megaptm.spec import Family

RECURRENT: dict[str, Family] = {family.name: family for family in (ELMO, COVE)}
