"""Scripts written without spaces between words, whose words have other borders."""

import re

# Scripts written without spaces, where each character counts as a word: kana, Yi, Chinese.
ALONE_RANGES = (
    *((0x3041, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xF900, 0xFAFF)),
    *((0xFF66, 0xFF9D), (0x20000, 0x3FFFF)),
)
# Alphabets written without spaces: Thai, Lao; Burmese; Khmer; Tai Le, New Tai Lue; Buginese, Tai Tham; Balinese; Batak;
# Javanese, Cham, Tai Viet (https://www.unicode.org/reports/tr14/, classes SA, AK and AS).
CLUSTER_RANGES = (
    *((0x0E01, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A00, 0x1AAF), (0x1B00, 0x1B7F)),
    *((0x1BC0, 0x1BFF), (0xA980, 0xAADF)),
)
LETTER_MARKS = (0x0E33, 0x0EB3, 0xFF9E, 0xFF9F)
"""Letters that belong to the character before them: sara am of Thai and Lao, voiced marks of half-width kana."""
SYLLABLE_ENDS = (0x0F0B, 0x0F0C)
"""Marks between the syllables of Tibetan, which has no spaces. There a syllable is a word."""
UNSPACED = re.compile(
    "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in (*ALONE_RANGES, *CLUSTER_RANGES, SYLLABLE_ENDS)) + "]"
)
"""Pattern of a character of a script written without spaces."""
