"""COUNT: parameters by formula equal those of published and of built models."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from megaptm.config import load_config, resolve_model
from megaptm.families import CATALOGUE
from megaptm.families.bert import BERT
from megaptm.families.gpt import GPT3
from megaptm.families.t5 import T5
from megaptm.models.head_costs import HEADS, MaskedHeadCosts, head_costs
from megaptm.models.model import Model
from megaptm.plan.count import count_parameters, step_flops
from megaptm.spec import ModelSpec, Size, change, published_spec
from tests import ROOT
from tests.models.tiny import mean_losses, tiny_batch, tiny_model

CONFIGS = ROOT / "configs"
# Parameters of the reference implementations; shared ones count once.
EXACT = {
    ("transformer", "base"): 63_045_632,
    ("transformer", "big"): 214_171_648,
    ("gpt1", "base"): 116_534_784,
    ("gpt2", "small"): 124_439_808,
    ("gpt2", "medium"): 354_823_168,
    ("gpt2", "large"): 774_030_080,
    ("gpt2", "xl"): 1_557_611_200,
    ("gpt3", "small"): 125_226_240,
    ("gpt3", "medium"): 355_871_744,
    ("gpt3", "large"): 760_300_032,
    ("gpt3", "xl"): 1_315_723_264,
    ("gpt3", "2.7b"): 2_651_553_280,
    ("gpt3", "6.7b"): 6_658_404_352,
    ("gpt3", "13b"): 12_853_386_240,
    ("gpt3", "175b"): 174_604_259_328,
    ("palm", "8b"): 8_632_012_800,
    ("palm", "62b"): 62_495_662_080,
    ("palm", "540b"): 540_356_474_880,
    ("llama", "7b"): 6_738_415_616,
    ("llama", "13b"): 13_015_864_320,
    ("llama", "70b"): 68_976_648_192,
    ("llama3", "1b"): 1_235_814_400,
    ("llama3", "3b"): 3_212_749_824,
    ("llama3", "8b"): 8_030_261_248,
    ("llama3", "70b"): 70_553_706_496,
    ("llama3", "405b"): 405_853_388_800,
    ("qwen3", "0.6b"): 596_049_920,
    ("qwen3", "1.7b"): 1_720_574_976,
    ("qwen3", "4b"): 4_022_468_096,
    ("qwen3", "8b"): 8_190_735_360,
    ("qwen3", "14b"): 14_768_307_200,
    ("qwen3", "32b"): 32_762_123_264,
    ("olmo2", "1b"): 1_484_916_736,
    ("olmo2", "7b"): 7_298_617_344,
    ("olmo2", "13b"): 13_716_198_400,
    ("olmo2", "32b"): 32_234_279_936,
    ("mistral", "7b"): 7_241_732_096,
    ("gemma2", "2b"): 2_614_341_888,
    ("gemma2", "9b"): 9_241_705_984,
    ("gemma2", "27b"): 27_227_128_320,
    ("gemma3", "270m"): 268_098_176,
    ("gemma3", "1b"): 999_885_952,
    ("gemma3", "4b"): 3_880_099_328,
    ("gemma3", "12b"): 11_765_788_416,
    ("gemma3", "27b"): 27_009_002_240,
    ("bert", "base"): 109_482_240,
    ("bert", "large"): 335_141_888,
    ("roberta", "base"): 124_645_632,
    ("roberta", "large"): 355_359_744,
    ("albert", "base"): 11_683_584,
    ("albert", "large"): 17_683_968,
    ("albert", "xlarge"): 58_724_864,
    ("albert", "xxlarge"): 222_595_584,
    ("spanbert", "base"): 108_310_272,
    ("spanbert", "large"): 333_579_264,
    ("macbert", "base"): 102_267_648,
    ("macbert", "large"): 325_522_432,
    ("deberta", "base"): 138_601_728,
    ("deberta", "large"): 405_163_008,
    ("deberta", "xlarge"): 757_804_032,
    ("deberta-v2", "xlarge"): 884_593_152,
    ("deberta-v2", "xxlarge"): 1_564_549_632,
    ("deberta-v3", "xsmall"): 70_682_112,
    ("deberta-v3", "small"): 141_304_320,
    ("deberta-v3", "base"): 183_831_552,
    ("deberta-v3", "large"): 434_012_160,
    ("electra", "small"): 13_483_008,
    ("electra", "base"): 108_891_648,
    ("electra", "large"): 334_092_288,
    ("ernie", "base"): 99_866_112,
    ("ernie-2", "base"): 109_486_848,
    ("ernie-2", "large"): 335_148_032,
    ("unilm", "base"): 108_313_344,
    ("unilm", "large"): 333_583_360,
    ("distilbert", "base"): 66_362_880,
    ("tinybert", "4x312"): 14_350_248,
    ("tinybert", "6x768"): 66_955_008,
    ("bart", "base"): 139_420_416,
    ("bart", "large"): 406_291_456,
    ("longformer", "base"): 148_659_456,
    ("longformer", "large"): 434_600_960,
    ("led", "base"): 161_844_480,
    ("led", "large"): 459_801_600,
    ("bigbird", "base"): 127_468_800,
    ("bigbird", "large"): 359_123_968,
    ("reformer", "enwik8"): 149_182_722,
    ("reformer-novel", "crime-and-punishment"): 2_748_224,
    ("modernbert", "base"): 149_014_272,
    ("modernbert", "large"): 394_781_696,
    ("ettin", "17m"): 16_797_440,
    ("ettin", "32m"): 31_883_136,
    ("ettin", "68m"): 68_144_640,
    ("ettin", "150m"): 149_014_272,
    ("ettin", "400m"): 394_781_696,
    ("ettin", "1b"): 1_028_050_688,
    ("ettin-decoder", "17m"): 16_913_600,
    ("ettin-decoder", "32m"): 32_081_344,
    ("ettin-decoder", "68m"): 68_457_664,
    ("ettin-decoder", "150m"): 149_655_232,
    ("ettin-decoder", "400m"): 395_881_664,
    ("ettin-decoder", "1b"): 1_031_314_112,
    ("mmbert", "small"): 140_493_696,
    ("mmbert", "base"): 306_939_648,
    ("eurobert", "210m"): 211_766_016,
    ("eurobert", "610m"): 607_874_688,
    ("eurobert", "2.1b"): 2_107_590_912,
    ("neobert", "250m"): 221_665_536,
    ("nomic-bert", "base"): 136_731_648,
    ("t5gemma", "s-s"): 312_517_632,
    ("t5gemma", "b-b"): 591_490_560,
    ("t5gemma", "l-l"): 1_241_761_792,
    ("t5gemma", "xl-xl"): 3_766_980_608,
    ("t5gemma", "2b-2b"): 5_596_853_760,
    ("t5gemma", "9b-2b"): 12_292_375_296,
    ("t5gemma", "9b-9b"): 20_333_401_088,
    ("t5-v1.1", "small"): 76_961_152,
    ("t5-v1.1", "base"): 247_577_856,
    ("t5-v1.1", "large"): 783_150_080,
    ("t5-v1.1", "xl"): 2_849_757_184,
    ("t5-v1.1", "xxl"): 11_135_332_352,
    ("mt5", "small"): 300_176_768,
    ("mt5", "base"): 582_401_280,
    ("mt5", "large"): 1_229_581_312,
    ("mt5", "xl"): 3_742_619_648,
    ("mt5", "xxl"): 12_921_057_280,
    ("transformer-xl", "base"): 151_107_538,
    ("transformer-xl", "large"): 285_170_506,
    ("transformer-xl-bytes", "base"): 41_055_436,
    ("transformer-xl-bytes", "large"): 277_231_820,
    ("xlnet", "base"): 116_718_336,
    ("xlnet", "large"): 360_268_800,
    ("t5", "small"): 60_506_624,
    ("t5", "base"): 222_903_552,
    ("t5", "large"): 737_668_096,
    ("t5", "3b"): 2_851_598_336,
    ("t5", "11b"): 11_307_321_344,
}
POOLED = {"roberta", "spanbert", "longformer", "bigbird"}
"""Families whose published counts include BERT's pooler, which their pre-training does not use."""
WITH_HEADS = {("bert", "base"): 110_106_428, ("bert", "large"): 336_226_108, ("distilbert", "base"): 66_985_530}
# Sizes exactly as in GPT-3's table, where heads times head width is not the width; printed in millions.
AS_PRINTED = {("gpt3", "xl-literal"): 1.517e9, ("gpt3", "13b-literal"): 12.936e9}
# Banded attention has no parameters.
for exact in (EXACT, AS_PRINTED):
    exact.update({("gpt3-banded", size): number for (family, size), number in exact.items() if family == "gpt3"})
ALL = [(family.name, size) for family in CATALOGUE.values() for size in family.sizes]


def as_built(spec: ModelSpec) -> int:
    """Return the parameters of a model built on the meta device, without vocabulary padding."""
    with torch.device("meta"):
        model = Model(spec)
    padding = spec.padded_vocabulary - spec.vocabulary
    tables = [p for name, p in model.named_parameters() if name.startswith(("embed.", "head."))]
    padded = [p for p in tables if p.shape[0] == spec.padded_vocabulary]
    return sum(p.numel() for p in model.parameters()) - sum(padding * p[0].numel() for p in padded)


def as_published(spec: ModelSpec) -> int:
    """Return the number of parameters, with a pooler if the published count includes it."""
    return count_parameters(spec) + (spec.width * (spec.width + 1) if spec.name in POOLED else 0)


def test_every_size_has_a_published_count() -> None:
    assert set(ALL) == set(EXACT) | set(AS_PRINTED)


@pytest.mark.parametrize(("family", "size"), EXACT)
def test_published_count(family: str, size: str) -> None:
    assert as_published(published_spec(CATALOGUE[family], size)) == EXACT[family, size]


def test_bart_large_equals_transformers() -> None:
    """The default config of transformers is facebook/bart-large."""
    spec = resolve_model(load_config(CONFIGS / "bart/large.yaml"))
    with torch.device("meta"):
        reference = transformers.BartModel(transformers.BartConfig())
    assert as_built(spec) == sum(parameter.numel() for parameter in reference.parameters()) == 406_291_456


@pytest.mark.parametrize(("family", "size"), WITH_HEADS)
def test_count_with_heads(family: str, size: str) -> None:
    assert count_parameters(published_spec(CATALOGUE[family], size), with_heads=True) == WITH_HEADS[family, size]


@pytest.mark.parametrize(("family", "size"), AS_PRINTED)
def test_count_of_sizes_as_printed(family: str, size: str) -> None:
    assert count_parameters(published_spec(CATALOGUE[family], size)) == pytest.approx(
        AS_PRINTED[family, size], abs=0.5e6
    )


@pytest.mark.parametrize(("family", "size"), ALL)
def test_built_model_has_the_counted_parameters(family: str, size: str) -> None:
    spec = published_spec(CATALOGUE[family], size)
    assert as_built(spec) == count_parameters(spec, with_heads=True)


@pytest.mark.parametrize(
    "family",
    [
        change(
            GPT3,
            stacks={
                "decoder": change(
                    GPT3.last_block, ffn={"activation": "swiglu", "bias": False}, attention={"bias": False}
                )
            },
        ),
        change(GPT3, stacks={"decoder": change(GPT3.last_block, norm={"position": "post", "kind": "rms"})}),
        change(
            T5,
            output={"tied": False},
            stacks={name: change(block, ffn={"activation": "geglu"}) for name, block in T5.stacks.items()},
        ),
        change(BERT, heads=("mlm",)),
    ],
    ids=["swiglu", "post-rms", "untied-geglu", "no-sentences"],
)
def test_count_of_model_variants(family) -> None:
    spec = ModelSpec(
        family=family, size=Size(layers=2, width=32, heads=4, ffn=48), vocabulary=100, context=16, dropout=0.0
    )
    assert as_built(spec) == count_parameters(spec, with_heads=True)


def test_head_that_reads_target_positions_costs_less(monkeypatch) -> None:
    class Borders(MaskedHeadCosts):
        name = "borders"

    monkeypatch.setitem(HEADS, "borders", Borders)
    masked, borders = (published_spec(change(BERT, heads=(name,)), "base") for name in ("mlm", "borders"))
    lengths = {"encoder": 128}
    few = step_flops(masked, rows=1, lengths=lengths, num_predicted=20)
    assert step_flops(borders, rows=1, lengths=lengths, num_predicted=20) == few
    assert step_flops(borders, rows=1, lengths=lengths) == step_flops(masked, rows=1, lengths=lengths) > few
    assert head_costs(published_spec(GPT3, "175b"))["lm"].positions_read(2048, 20) == 2048


def test_gpt3_flops_are_six_per_parameter_and_token() -> None:
    """The paper prints 3.14e23 FLOPs (6 N D) for 300 billion tokens, without attention scores and with tables."""
    spec = published_spec(GPT3, "175b")
    per_token = step_flops(spec, rows=1, lengths={"decoder": 2048}) / 2048
    assert per_token * 300e9 == pytest.approx(3.14e23, rel=0.03)


@pytest.mark.parametrize(("family", "target"), [("gpt2", 0), ("bert", 0), ("albert", 0), ("t5", 7)])
def test_flops_equal_torch(family: str, target: int) -> None:
    model, batch = tiny_model(family), tiny_batch(family)
    masked = family in ("bert", "albert")
    if masked:
        del batch["masked_positions"]
        batch["labels"] = batch["tokens"]
    batch["labels"] = batch["labels"].clamp(min=0)
    # torch's counter does not know the fused kernel of the CPU.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        mean_losses(model(batch).losses).backward()
    spec, positions = model.spec, 3 * (target or 12)
    lengths = dict(zip(spec.family.stacks, (12, target), strict=False))
    padding = 6 * positions * (spec.padded_vocabulary - spec.vocabulary) * spec.token_width
    expected = step_flops(spec, rows=3, lengths=lengths) + padding
    assert counter.get_total_flops() == expected
