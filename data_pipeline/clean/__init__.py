"""Cleaning steps: change or drop documents before anything is counted or stored."""

from data_pipeline.clean.basic import CutLong, DropEmpty, DropFewLetters, DropLong, DropShort, Normalize
from data_pipeline.clean.c4 import C4Quality
from data_pipeline.clean.connectives import PairByConnective
from data_pipeline.clean.decontaminate import Decontaminate
from data_pipeline.clean.gopher_quality import GopherQuality
from data_pipeline.clean.gopher_repetition import GopherRepetition
from data_pipeline.clean.language import KeepLanguage, TagLanguage
from data_pipeline.clean.lines import DropLines
from data_pipeline.clean.personal import TagPersonal
from data_pipeline.clean.predicate import KeepIf
from data_pipeline.clean.quality import ScoreQuality
from data_pipeline.clean.scrub import Scrub
from data_pipeline.clean.step import CleaningStep, run_steps, with_text
from data_pipeline.clean.tag_lists import TagLists
from data_pipeline.clean.unicode import NormalizeUnicode, RepairEncoding

STEPS: dict[str, type] = {
    "repair-encoding": RepairEncoding,
    "normalize-unicode": NormalizeUnicode,
    "normalize": Normalize,
    "drop-lines": DropLines,
    "drop-empty": DropEmpty,
    "drop-short": DropShort,
    "drop-long": DropLong,
    "drop-few-letters": DropFewLetters,
    "tag-language": TagLanguage,
    "keep-language": KeepLanguage,
    "gopher-quality": GopherQuality,
    "gopher-repetition": GopherRepetition,
    "c4-quality": C4Quality,
    "score-quality": ScoreQuality,
    "keep-if": KeepIf,
    "decontaminate": Decontaminate,
    "scrub": Scrub,
    "tag-lists": TagLists,
    "tag-personal": TagPersonal,
    "cut-long": CutLong,
    "pair-by-connective": PairByConnective,
}
"""Cleaning steps by their names in a recipe."""

CLEAN: tuple[CleaningStep, ...] = (Normalize(), DropEmpty(), DropShort())
"""Default cleaning steps, for a recipe that names none."""

__all__ = ["CLEAN", "STEPS", "CleaningStep", "run_steps", "with_text"]
