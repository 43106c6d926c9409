"""Special tokens of Gemma's tokenizer, and sentinels after the vocabulary."""

from megaptm.tokenizers.special_sets import SpecialSet

SPECIALS = {
    "t5gemma": SpecialSet(
        first=("<pad>", "<eos>", "<bos>", "<unk>"),
        roles={"pad": "<pad>", "end": "<eos>", "begin": "<bos>", "unknown": "<unk>"},
        single="$A <eos>",
        pair="$A <eos> $B <eos>",
        sentinels=100,
    )
}
