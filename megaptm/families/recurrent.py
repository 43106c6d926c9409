"""Families whose layers hand a state on; they are trained on data ranks alone."""

from megaptm.families.cove import COVE
from megaptm.families.elmo import ELMO
from megaptm.spec import Family

RECURRENT: dict[str, Family] = {family.name: family for family in (ELMO, COVE)}
