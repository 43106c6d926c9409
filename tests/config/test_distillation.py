"""What a config says of a teacher, and what student and teacher may not be to each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megaptm.config import dump, load, resolve_distillation
from megaptm.errors import UserError
from megaptm.families import TINYBERT

CONFIGS = Path(__file__).parents[2] / "configs"
TEACHER = {"family": "bert", "size": "custom", "layers": 4, "width": 64, "heads": 2, "ffn": 256, "context": 128}


def student(*words: str, teacher: dict[str, object] = TEACHER, family: str = "tinybert") -> list[str]:
    return [f"model.family={family}", f"distill.model={json.dumps(teacher)}", *words]


def test_tinybert_hears_the_layers_of_the_papers_mapping() -> None:
    """g(m) = 3m and 2m of twelve (arXiv:1909.10351, 4.2), counted from 1; layers here are counted from 0."""
    for size, group in (("4x312", 3), ("6x768", 2)):
        found = resolve_distillation(load(CONFIGS / f"tinybert/{size}.yaml"))
        assert found is not None
        mapping = tuple(group * m - 1 for m in range(1, TINYBERT.sizes[size].layers + 1))
        assert found.layers == {"encoder": mapping}
        # And nobody need say so.
        usual = resolve_distillation(load(CONFIGS / f"tinybert/{size}.yaml", ["distill.layers=[]"]))
        assert usual == found
        assert found.weigh({"mlm": 1.0}) == {
            "mlm": 0.0,
            **{f"distill-{hook}": 1.0 for hook in ("embeddings", "hidden", "scores")},
        }


def test_distilbert_weighs_three_losses_and_begins_as_a_slice() -> None:
    """The released code's 5, 2 and 1, at temperature 2; layers 0, 2, 4, 7, 9 and 11."""
    found = resolve_distillation(load(CONFIGS / "distilbert/base.yaml"))
    assert found is not None
    assert found.weigh({"mlm": 1.0}) == {"mlm": 2.0, "distill-logits": 5.0, "distill-cosine": 1.0}
    written = load(CONFIGS / "distilbert/base.yaml").distill
    assert written is not None
    assert (written.model["layers"], written.model["vocabulary"]) == (12, 30_522)
    assert (found.temperature, found.logit_loss, found.positions) == (2.0, "kl", "all")
    assert found.initial == (0, 2, 4, 7, 9, 11)


def test_a_teacher_is_what_its_run_says(tmp_path: Path) -> None:
    config = load(CONFIGS / "bert/tiny.yaml", ["model.vocabulary=300"])
    (tmp_path / "config.yaml").write_text(dump(config))
    words = [f"distill={{teacher: {tmp_path}, hidden: 1}}", "model.width=64", "model.vocabulary=300"]
    found = resolve_distillation(load(CONFIGS / "bert/tiny.yaml", words))
    assert found is not None
    assert (found.teacher.size.layers, found.teacher.vocabulary) == (2, 300)


WRONG = {
    "no such hook": (["distill.hiden=1"], r"unknown key distill.hiden.*hidden"),
    "no such places": (["distill.positions=some"], r"distill.positions must be .*all.*target"),
    "nothing asked": (
        ["distill.embeddings=0", "distill.hidden=0", "distill.scores=0", "distill.logits=0", "distill.projection=none"],
        "distill has no loss",
    ),
    "stages": (["layout.pipeline=2"], r"layout.pipeline \(2\) must be 1 with a teacher"),
    "widths": (
        ["distill.projection=none"],
        r"distill.embeddings: the encoder has width 32 in the student and 64 in the teacher: set distill.projection=shared",
    ),
    "cosine": (["distill.cosine=1"], r"distill.cosine: the encoder has width 32 in the student and 64"),
    "heads": (["model.heads=4"], r"distill.scores: the encoder has 4 heads in the student and 2"),
    "layers": (["distill.layers=[0, 1, 2]"], "distill.layers has 3 entries for the 2 layers of the encoder"),
    "too deep": (["distill.layers=[0, 4]"], "the layers of the teacher's encoder are 0 to 3"),
    "too many weights": (["distill.layer_weights=[1, 1, 1]"], "distill.layer_weights has 3 entries for the 2 layers"),
    "no groups": (["model.layers=3"], "distill.layers is missing: the teacher's 4 layers are no multiple of 3"),
    "slice": (["distill.initial_layers=[0, 2]"], "width of tinybert is 32, and the teacher's is 64"),
    "tensor": (["layout.tensor=4", "model.heads=4"], r"layout.tensor \(4\) must divide distill.model.heads \(2\)"),
    "layers that are kept nowhere": (
        ["distill.cached_logits=nowhere"],
        "distill.embeddings needs a teacher that runs",
    ),
    "logits elsewhere": (
        ["distill.cached_logits=s3://b/l"],
        "distill.cached_logits .s3://b/l. must be a local folder",
    ),
    "a step of nothing": (
        ["train.init_step=1"],
        "train.init_step is a step of the run in train.init_from, which is missing",
    ),
    "two beginnings": (
        ["train.init_from=nowhere", "distill.initial_layers=[0, 2]", "model.width=64", "model.ffn=256"],
        "train.init_from and distill.initial_layers both set the student's initial weights",
    ),
    "rows": (["data.sequence=128", "model.context=128"], "distill.model has 64 learned positions"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_one_sentence(case: str) -> None:
    words, sentence = WRONG[case]
    teacher = {**TEACHER, "context": 64} if case == "rows" else TEACHER
    with pytest.raises(UserError, match=sentence):
        load(CONFIGS / "tinybert/tiny.yaml", student(*words, teacher=teacher))


ODD = {
    "a decoder": ({**TEACHER, "family": "gpt2"}, "bert", r"distill.model \(gpt2\) has decoder, and bert has encoder"),
    "another attention": (
        {**TEACHER, "family": "deberta"},
        "bert",
        "needs dot-product attention .dot., and deberta has",
    ),
    "what draws": (
        {**TEACHER, "family": "electra"},
        "bert",
        "reads sampled tokens, which distillation does not support",
    ),
    "words": ({"family": "glove", "size": "50"}, "bert", "is a word-vector family"),
    "no family": ({**TEACHER, "family": "bertt"}, "bert", r"distill: model.family \(bertt\) is not in the catalogue"),
    "an unknown key": ({**TEACHER, "depth": 3}, "bert", "unknown key model.depth"),
    "another vocabulary": ({**TEACHER, "vocabulary": 77}, "bert", r"distill.model.vocabulary \(77\) must be"),
}


@pytest.mark.parametrize("case", ODD)
def test_teachers_that_are_none(case: str) -> None:
    teacher, family, sentence = ODD[case]
    with pytest.raises(UserError, match=sentence):
        load(CONFIGS / "tinybert/tiny.yaml", student("objective=masked-lm", teacher=teacher, family=family))


VIT = {"family": "vit", "size": "custom", "layers": 4, "width": 64, "heads": 4, "ffn": 256, "patch": 2, "context": 17}
UNITER = {**TEACHER, "family": "uniter", "context": 32, "detector": [24, 18]}
OF_IMAGES = {
    "another patch": ("vit", {**VIT, "patch": 4}, r"distill.model.patch \(4\) must be model.patch \(2\)"),
    "more patches": ("vit", {**VIT, "context": 26}, r"distill.model.context \(26\) must be model.context \(17\)"),
    "no regions": ("uniter", TEACHER, r"distill.model \(bert\) and uniter read different inputs"),
    "another detector": ("uniter", UNITER, r"distill.model.detector \(\(24, 18\)\) must be"),
}


@pytest.mark.parametrize("case", OF_IMAGES)
def test_a_teacher_reads_the_images_of_its_student(case: str) -> None:
    family, teacher, sentence = OF_IMAGES[case]
    words = [f"distill={{teacher: nowhere, cosine: 1, model: {json.dumps(teacher)}}}", "model.vocabulary=10"]
    with pytest.raises(UserError, match=sentence):
        load(CONFIGS / f"{family}/tiny.yaml", words)


def test_a_teacher_that_is_not_there_must_be_described() -> None:
    with pytest.raises(UserError, match=r"distill.teacher \(nowhere\) is not the folder of a run, and distill.model"):
        load(CONFIGS / "bert/tiny.yaml", ["distill={teacher: nowhere, hidden: 1}"])
