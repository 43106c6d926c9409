"""Families by group, besides `families.CATALOGUE`."""

from megaptm.families import CATALOGUE, FAMILIES
from megaptm.spec import Family

LAYERED = {name: table for name, table in FAMILIES.items() if isinstance(table, Family)}
RECURRENT = {name: table for name, table in LAYERED.items() if table.layer is not None}
VISION = {name: table for name, table in LAYERED.items() if name not in RECURRENT and name not in CATALOGUE}
