"""Teacher of a config, and rules for the combination of student and teacher."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megaptm.config import config_to_yaml, load_config
from megaptm.distillation.rules import resolve_distillation
from megaptm.distillation.section import distill_section
from megaptm.errors import UserError
from megaptm.families.distilbert import TINYBERT

CONFIGS = Path(__file__).parents[2] / "configs"
TEACHER = {"family": "bert", "size": "custom", "layers": 4, "width": 64, "heads": 2, "ffn": 256, "context": 128}


def student(*words: str, teacher: dict[str, object] = TEACHER, family: str = "tinybert") -> list[str]:
    return [f"model.family={family}", f"distill.model={json.dumps(teacher)}", *words]


@pytest.mark.parametrize(("size", "group"), [("4x312", 3), ("6x768", 2)])
def test_tinybert_layer_mapping(size: str, group: int) -> None:
    """The paper's g(m) = 3m and 2m of 12 layers (arXiv:1909.10351, 4.2), which counts layers from 1; here from 0."""
    distillation = resolve_distillation(load_config(f"tinybert/{size}"))
    mapping = tuple(group * m - 1 for m in range(1, TINYBERT.sizes[size].layers + 1))
    assert distillation.layers == {"encoder": mapping}
    assert distillation.with_loss_weights({"mlm": 1.0}) == {
        "mlm": 0.0,
        **{f"distill-{hook}": 1.0 for hook in ("embeddings", "hidden", "scores")},
    }
    by_default = resolve_distillation(load_config(f"tinybert/{size}", ["distill.layers=[]"]))
    assert by_default == distillation


def test_distilbert_losses_and_initial_layers() -> None:
    """Values of the released code."""
    config = load_config("distilbert/base")
    distill = distill_section(config)
    assert distill is not None
    assert distill.model["layers"] == 12
    assert distill.model["vocabulary"] == 30_522
    distillation = resolve_distillation(config)
    assert distillation.with_loss_weights({"mlm": 1.0}) == {"mlm": 2.0, "distill-logits": 5.0, "distill-cosine": 1.0}
    assert distillation.temperature == 2.0
    assert distillation.logit_loss == "kl"
    assert distillation.positions == "all"
    assert distillation.initial == (0, 2, 4, 7, 9, 11)


def test_teacher_model_is_read_from_its_run(tmp_path: Path) -> None:
    config = load_config(CONFIGS / "bert/tiny.yaml", ["model.vocabulary=300"])
    (tmp_path / "config.yaml").write_text(config_to_yaml(config))
    words = [f"distill={{teacher: {tmp_path}, hidden: 1}}", "model.width=64", "model.vocabulary=300"]
    teacher = resolve_distillation(load_config("bert/tiny", words)).teacher
    assert teacher.size.layers == 2
    assert teacher.vocabulary == 300


INVALID = {
    "unknown hook": (["distill.hiden=1"], r"unknown key distill.hiden.*hidden"),
    "unknown positions": (["distill.positions=some"], r"distill.positions must be .*all.*target"),
    "no loss": (
        ["distill.embeddings=0", "distill.hidden=0", "distill.scores=0", "distill.logits=0", "distill.projection=none"],
        "distill has no loss",
    ),
    "full sharding": (
        ["layout.full_sharding=true", "layout.data=2"],
        r"layout.full_sharding frees weights .* use layout.distributed_optimizer",
    ),
    "context ranks": (["layout.context=2"], r"layout.context \(2\) must be 1 with a teacher"),
    "pipeline stages": (["layout.pipeline=2"], r"layout.pipeline \(2\) must be 1 with a teacher"),
    "widths": (
        ["distill.projection=none"],
        r"distill.embeddings: the encoder has width 32 in the student and 64 in the teacher: set",
    ),
    "cosine": (["distill.cosine=1"], r"distill.cosine: the encoder has width 32 in the student and 64"),
    "heads": (["model.heads=4"], r"distill.scores: the encoder has 4 heads in the student and 2"),
    "layers": (["distill.layers=[0, 1, 2]"], "distill.layers has 3 entries, not one for each of the 2 layers"),
    "layer beyond the teacher": (["distill.layers=[0, 4]"], "the layers of the teacher's encoder are 0 to 3"),
    "too many weights": (["distill.layer_weights=[1, 1, 1]"], "distill.layer_weights has 3 entries"),
    "depths are not multiples": (
        ["model.layers=3"],
        "distill.layers is missing: the teacher's 4 layers are no multiple of 3",
    ),
    "initial layers of another width": (
        ["distill.initial_layers=[0, 2]"],
        "width of tinybert is 32, and the teacher's is 64",
    ),
    "tensor": (["layout.tensor=4", "model.heads=4"], r"layout.tensor \(4\) must divide distill.model.heads \(2\)"),
    "hidden states with cached logits": (
        ["distill.cached_logits=nowhere"],
        "distill.embeddings needs a teacher that runs",
    ),
    "cached logits at a URL": (
        ["distill.cached_logits=s3://b/l"],
        "distill.cached_logits .s3://b/l. must be a local folder",
    ),
    "init_step without init_from": (
        ["train.init_step=1"],
        "train.init_step needs train.init_from",
    ),
    "two initial weights": (
        ["train.init_from=nowhere", "distill.initial_layers=[0, 2]", "model.width=64", "model.ffn=256"],
        "train.init_from and distill.initial_layers both set the student's initial weights",
    ),
    "teacher context too short": (["data.sequence=128", "model.context=128"], "distill.model has 64 learned positions"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_distillation_is_rejected(case: str) -> None:
    words, sentence = INVALID[case]
    teacher = {**TEACHER, "context": 64} if case == "teacher context too short" else TEACHER
    with pytest.raises(UserError, match=sentence):
        load_config(CONFIGS / "tinybert/tiny.yaml", student(*words, teacher=teacher))


INVALID_TEACHERS = {
    "decoder": ({**TEACHER, "family": "gpt2"}, "bert", r"distill.model \(gpt2\) has decoder, and bert has encoder"),
    "other attention": (
        {**TEACHER, "family": "deberta"},
        "bert",
        "needs dot-product attention .dot., and deberta has",
    ),
    "sampled tokens": (
        {**TEACHER, "family": "electra"},
        "bert",
        "reads sampled tokens, which distillation does not support",
    ),
    "word vectors": ({"family": "glove", "size": "50"}, "bert", "is a family of word vectors"),
    "unknown family": (
        {**TEACHER, "family": "bertt"},
        "bert",
        r"distill: model.family \(bertt\) is not in the catalogue",
    ),
    "unknown key": ({**TEACHER, "depth": 3}, "bert", "unknown key model.depth"),
    "other vocabulary": ({**TEACHER, "vocabulary": 77}, "bert", r"distill.model.vocabulary \(77\) must be"),
}


@pytest.mark.parametrize("case", INVALID_TEACHERS)
def test_invalid_teacher_is_rejected(case: str) -> None:
    teacher, family, sentence = INVALID_TEACHERS[case]
    with pytest.raises(UserError, match=sentence):
        load_config(CONFIGS / "tinybert/tiny.yaml", student("objective=masked-lm", teacher=teacher, family=family))


VIT = {"family": "vit", "size": "custom", "layers": 4, "width": 64, "heads": 4, "ffn": 256, "patch": 2, "context": 17}
UNITER = {**TEACHER, "family": "uniter", "context": 32, "detector": [24, 18]}
INVALID_IMAGE_TEACHERS = {
    "other patch": ("vit", {**VIT, "patch": 4}, r"distill.model.patch \(4\) must be model.patch \(2\)"),
    "more patches": ("vit", {**VIT, "context": 26}, r"distill.model.context \(26\) must be model.context \(17\)"),
    "no regions": ("uniter", TEACHER, r"distill.model \(bert\) and uniter read different inputs"),
    "other detector": ("uniter", UNITER, r"distill.model.detector \(\(24, 18\)\) must be"),
}


@pytest.mark.parametrize("case", INVALID_IMAGE_TEACHERS)
def test_teacher_must_read_the_same_images(case: str) -> None:
    family, teacher, sentence = INVALID_IMAGE_TEACHERS[case]
    words = [f"distill={{teacher: nowhere, cosine: 1, model: {json.dumps(teacher)}}}", "model.vocabulary=10"]
    with pytest.raises(UserError, match=sentence):
        load_config(CONFIGS / f"{family}/tiny.yaml", words)


def test_absent_teacher_must_be_described() -> None:
    with pytest.raises(UserError, match=r"distill.teacher \(nowhere\) is not the folder of a run, and distill.model"):
        load_config(CONFIGS / "bert/tiny.yaml", ["distill={teacher: nowhere, hidden: 1}"])
