"""Families that read images."""

from megaptm.families.clip import CLIP
from megaptm.families.unimo import UNIMO
from megaptm.families.uniter import UNITER
from megaptm.families.vit import VIT
from megaptm.spec import Family

VISION: dict[str, Family] = {family.name: family for family in (VIT, CLIP, UNITER, UNIMO)}
