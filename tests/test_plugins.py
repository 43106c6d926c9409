"""Plugins: families, objectives and heads of the user, from a folder on PYTHONPATH."""

import json
import math
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from megaptm.config import UncheckedConfig, load_config, load_run_config
from megaptm.errors import UserError
from megaptm.inference.loaded_model import load_model
from megaptm.models.head_costs import HEADS
from megaptm.plugins import ALLOW_CODE, allow_code, load_plugin
from megaptm.track import read_metrics
from tests import ROOT

WREN = """
from dataclasses import replace

import numpy as np

from megaptm.batch import BatchField
from megaptm.layers.costs import LinearShape
from megaptm.models.head_costs import HEADS, HeadCosts
from megaptm.families.bert import BERT
from megaptm.objectives.masked import MaskedLM
from megaptm.spec import Size, change


class Rewritten(MaskedLM):
    # Masked tokens, and a label of the sequence: whether most of its ids are below 100.

    name = "rewritten"
    losses = {"low": 0.5, "mlm": 1.0}

    def batch_spec(self, sequence, document_mask):
        spec = super().batch_spec(sequence, document_mask)
        return replace(spec, fields={**spec.fields, "low": BatchField(())})

    def make_sample(self, piece, context):
        sample = super().make_sample(piece, context)
        return {**sample, "low": np.array((sample["tokens"] < 100).mean() > 0.5, dtype="int64")}


class LowCosts(HeadCosts):
    name = label_field = "low"
    projects = False
    module = "head_of_mine:Low"

    @property
    def linears(self):
        return {"classify": LinearShape(self.size.width, 2, True)}


HEADS["low"] = LowCosts


class Abstract(Rewritten):
    def __init__(self, rate):
        pass


REWRITTEN = Rewritten()
WREN = change(
    BERT,
    name="wren",
    paper="none",
    stacks={"encoder": change(BERT.last_block, norm={"position": "pre"}, sharing={"sublayers": ("attention", "ffn")})},
    heads=("mlm", "low"),
    objectives=("wren_of_mine:REWRITTEN",),
    sizes={"small": Size(layers=2, width=32, heads=2, ffn=64, embedding=16)},
)
NOTHING = 7
"""
HEAD = """
import torch.nn.functional as F
from torch import nn

from megaptm.layers.split import Linear


class Low(nn.Module):
    def __init__(self, spec, costs):
        super().__init__()
        self.classify = Linear.from_shape(costs.linears["classify"])

    def loss(self, x_SBD, batch, tied):
        labels = batch["low"]
        return F.cross_entropy(self.logits(x_SBD, tied).float(), labels, reduction="sum"), (labels >= 0).sum().float()

    def logits(self, x_SBD, tied):
        return self.classify(x_SBD.mean(0))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder with the user's modules, on PYTHONPATH. The working directory is its parent."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "wren_of_mine.py").write_text(WREN)
    (code / "head_of_mine.py").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ALLOW_CODE, "")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{code}")
    monkeypatch.syspath_prepend(str(code))
    return code


def megaptm(*words):
    command = [sys.executable, "-m", "megaptm", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_custom_family_objective_and_head_train(folder, real_corpus):
    corpus = real_corpus("wordpiece")
    for name in ("secrets.py", "click.py", "wren_of_mine.py"):  # in the working directory: imported by no process
        (folder.parent / name).write_text("raise SystemExit('imported from the working directory')")
    words = ["model.family=wren_of_mine:WREN", "model.size=small", "train.steps=3", "track.enabled=false", "run=it"]
    nothing = [f"model.{name}=null" for name in ("layers", "width", "heads", "ffn")]
    done = megaptm(
        *("train", ROOT / "configs/bert/tiny.yaml", *words, *nothing),
        *(
            f"data.mix={{{corpus}: 1}}",
            "data.sequence=48",
            "train.batch=8",
            "layout.microbatch=8",
            "train.validate_batches=1",
        ),
    )
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line)["kind"] for line in (folder.parent / "it/events.jsonl").read_text().splitlines()]
    assert kinds[-1] == "exit"
    losses = {name for record in read_metrics(folder.parent / "it") for name in record}
    assert {"loss/mlm", "loss/low"} <= losses
    refused = megaptm("evaluate", "it")
    assert refused.stderr.count("\n") == 1
    assert "names code in module `wren_of_mine`, and a run's folder may be untrusted" in refused.stderr
    assert "add `--allow-code wren_of_mine`" in refused.stderr
    allow_code("wren_of_mine")
    low = load_model(folder.parent / "it").evaluate(rows=4).losses["low"]
    assert low.num_labels == 4
    assert low.uniform == math.log(2)
    done = megaptm("families", "wren_of_mine:WREN", "--json")
    assert json.loads(done.stdout)["wren"]["sizes"]["small"]["embedding"] == 16


@pytest.fixture
def received(tmp_path, monkeypatch):
    """Config of a received run, whose code creates a file `mark` when imported."""
    name = f"sent_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        f"open({str(tmp_path / 'mark')!r}, 'w')\n" + WREN.replace('HEADS["low"] = LowCosts', "")
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv(ALLOW_CODE, raising=False)
    (tmp_path / "config.yaml").write_text(
        json.dumps({"extends": str(ROOT / "configs/bert/tiny.yaml"), "objective": {"a": {"task": f"{name}:Rewritten"}}})
    )
    return SimpleNamespace(config=tmp_path / "config.yaml", module=name, mark=tmp_path / "mark")


def test_code_of_a_received_run_is_not_imported(received):
    with pytest.raises(UserError, match=rf"names code in module `{received.module}`.*--allow-code {received.module}"):
        load_run_config(received.config)
    assert not received.mark.exists()


def test_code_of_a_received_run_is_imported_if_allowed(received, monkeypatch):
    monkeypatch.setenv(ALLOW_CODE, f"other,{received.module}")
    load_run_config(received.config)
    assert received.mark.exists()


def test_draft_imports_no_code_of_the_run(received):
    assert UncheckedConfig.read_run(received.config).draft().config is not None
    assert not received.mark.exists()


def test_module_named_by_the_user_is_imported(received):
    with pytest.raises(UserError):
        load_run_config(received.config)
    load_config(ROOT / "configs/bert/tiny.yaml", [f"objective={{a: {{task: '{received.module}:Rewritten'}}}}"])
    assert received.mark.exists()


def test_working_directory_is_not_searched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here_alone.py").write_text("NAME = 1")
    with pytest.raises(UserError, match=r"but is not searched by default: `export PYTHONPATH=\$PWD`\."):
        load_plugin("here_alone:NAME", "objective", "objective")


def test_empty_pythonpath_entry_is_not_the_working_directory(tmp_path):
    (tmp_path / "click.py").write_text("raise SystemExit('imported from the working directory')")
    done = subprocess.run(
        [sys.executable, "-m", "megaptm", "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def add_package(folder, name, code, *, group="megaptm.families"):
    """Add an installed package with an entry point."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(code)
    metadata = folder / f"{name}_dist-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\nmine = {name}\n")


TABLE = "from megaptm.families.bert import BERT\nfrom megaptm.spec import change\nFAMILIES = ({},)\n"


def test_family_of_an_installed_package_is_in_the_catalogue(folder):
    add_package(folder, "jay", TABLE.format("change(BERT, name='jay')"))
    add_package(folder, "other", "raise SystemExit('of another group')", group="console_scripts")
    assert "jay" in json.loads(megaptm("families", "--json").stdout)


def test_package_that_is_imported_first_is_complete(folder):
    """Its import loads the catalogue, which must not remember a half imported package."""
    add_package(folder, "jay", TABLE.format("change(BERT, name='jay')"))
    code = "import jay; from megaptm.families import CATALOGUE, FAMILIES; print([*CATALOGUE][-1], 'jay' in FAMILIES)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "jay True\n", done.stderr


def test_package_of_the_working_directory_is_not_imported(folder):
    add_package(folder.parent, "jay", "raise SystemExit('imported from the working directory')")
    assert megaptm("families", "bert").returncode == 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise SystemExit('no')", "entry point of jay-dist, group megaptm.families: module `jay` cannot be imported"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        (TABLE.format("change(BERT, name='bert')"), "'bert' is registered twice: rename one."),
        (TABLE.format("change(BERT, name='jay', context=-1)"), "the family `jay` is invalid (context is -1)"),
        ("FAMILIES = ('jay',)", "has 'jay', which is not a `megaptm.spec.Family`"),
    ],
)
def test_invalid_package_is_rejected(folder, code, expected):
    add_package(folder, "jay", code)
    done = megaptm("families")
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_package_adds_a_command_of_megaptm(folder):
    add_package(folder, "jay", "")
    (folder / "jay/commands.py").write_text(
        "import click\n@click.command()\ndef sing():\n    click.echo('jay')\nCOMMANDS = {'megaptm': (sing,)}\n"
    )
    assert megaptm("sing").stdout == "jay\n"
    assert "sing" in megaptm("--help").stdout


def test_help_survives_an_invalid_package(folder):
    add_package(folder, "jay", "raise SystemExit('no')")
    done = megaptm("--help")
    assert (done.returncode, "train" in done.stdout, done.stderr.count("\n")) == (0, True, 1)


@pytest.mark.parametrize(
    ("module", "code", "expected"),
    [
        (
            "config",
            "class Keys(Section):\n    width: int | None = None\nMODEL_KEYS = Keys\n",
            "model.width is a key of both megaptm.config.sections.model.GeneralModelConfig and jay.config.Keys",
        ),
        (
            "section",
            "class Mine(ExtensionSection):\n    key = 'train'\n    meaning = 'Mine.'\nSECTION = Mine\n",
            "train is a section of configs, and of jay.section.Mine: rename that one.",
        ),
    ],
)
def test_key_of_a_package_must_be_new(folder, module, code, expected):
    add_package(folder, "jay", "")
    (folder / f"jay/{module}.py").write_text(f"from megaptm.section import ExtensionSection, Section\n\n\n{code}")
    done = megaptm("config", "show", str(ROOT / "configs/bert/tiny.yaml"))
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_entry_point_must_name_a_package(folder):
    add_package(folder, "jay", "")
    (folder / "jay_dist-1.0.dist-info" / "entry_points.txt").write_text("[megaptm.families]\nmine = wren_of_mine\n")
    assert "wren_of_mine must be a package, a folder with __init__.py" in megaptm("families").stderr


def test_numba_config_of_the_working_directory_is_ignored(tmp_path):
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: cache\ncache_locator_classes: foreign.Locator\n")
    code = (
        "import megaptm.families.word_vectors.compiled.kernels, numba; "
        "print([numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES])"
    )
    environ = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert ended.stdout == "['', '']\n", ended.stderr


def test_objective_named_by_its_class(folder):
    config = load_config(ROOT / "configs/bert/tiny.yaml", ["objective=wren_of_mine:Rewritten"])
    assert config.built_objective.name == "rewritten"


def test_second_head_of_a_name_is_rejected(folder):
    import wren_of_mine

    with pytest.raises(UserError, match="'low' is registered twice: rename one"):
        HEADS["low"] = type("Another", (wren_of_mine.LowCosts,), {})


def test_families_command():
    gpt3 = json.loads(megaptm("families", "--json").stdout)["gpt3"]
    assert gpt3["sizes"]["175b"]["parameters"] == 174_604_259_328
    layouts = gpt3["layouts"]["gpt3/175b"]
    assert layouts["1024"]["data"] * layouts["1024"]["tensor"] * layouts["1024"]["pipeline"] == 1024
    assert gpt3["hugging_face"] == ["GPT2LMHeadModel"]
    assert "gpt3" in megaptm("families").stdout
    assert "Hugging Face model: none" in megaptm("families", "unilm").stdout
    assert f"tensor={layouts['1024']['tensor']}" in megaptm("families", "gpt3").stdout
    unknown = megaptm("families", "gpt5")
    assert unknown.returncode == 2
    assert unknown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.family=wren_of_mine:CUCKOO", "model.family: module `wren_of_mine` has no family `CUCKOO`"),
        ("model.family=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.spec.Family`"),
        ("model.family=nowhere:WREN", "module `nowhere` cannot be imported"),
        ("objective=wren_of_mine:NOTHING", "`wren_of_mine:NOTHING` is not a `megaptm.objectives.Objective`"),
        (
            "objective=wren_of_mine:Abstract",
            r"`wren_of_mine:Abstract` cannot be created \(TypeError: .*'rate'.*\): fix it",
        ),
        ("objective=..:NOTHING", r"objective \(\.\.:NOTHING\) is unknown"),
        ("model.family=.wren_of_mine:WREN", r"model\.family \(\.wren_of_mine:WREN\) is not in the catalogue"),
        (
            "objective=raises:IT",
            r"objective: module `raises` cannot be imported \(ValueError: no, .*raises.py:1\): fix it",
        ),
        ("model.family=leaves:IT", r"module `leaves` cannot be imported \(SystemExit: 0, .*leaves.py:2\): fix it"),
        ("objective={a: {task: 'lacks:IT'}}", r"`lacks` cannot be imported \(AttributeError: .*lacks.py:2\): fix it"),
        (
            "objective={masked-lm: {hide: 'needs:IT'}}",
            r"`needs` cannot be imported \(ModuleNotFoundError: .*\): fix it",
        ),
        ("model.family=odd:IT", r"`odd` cannot be imported \(Odd: no, .*odd.py:2\): fix it"),
        ("objective=parses:IT", r"`parses` cannot be imported \(JSONDecodeError: .*parses.py:2\): fix it"),
        ("objective=asked:IT", r"`asked` cannot be imported \(ValueError: IT, .*asked.py:2\): fix it"),
    ],
)
def test_invalid_plugin_is_rejected(folder, override, expected):
    (folder / "raises.py").write_text("raise ValueError('no')\n")
    (folder / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    (folder / "parses.py").write_text("import json\njson.loads('{')\n")
    (folder / "lacks.py").write_text("import os\nos.nothing\n")
    (folder / "needs.py").write_text("import nowhere_at_all\n")
    (folder / "odd.py").write_text("class Odd(BaseException): ...\nraise Odd('no')\n")
    (folder / "asked.py").write_text("def __getattr__(name):\n    raise ValueError(name)\n")
    with pytest.raises(UserError, match=expected):
        load_config(ROOT / "configs/bert/tiny.yaml", [override])


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("replace(GPT2, stacks={})", "stacks is empty"),
        ("replace(GPT2, stacks={'decoder': 3})", r"stacks\.decoder: "),
        ("replace(GPT2, sizes={'small': 3})", r"sizes\.small: "),
        ("replace(GPT2, sizes={'small': Size(layers=0, width=8, heads=1, ffn=8)})", r"sizes\.small\.layers is 0"),
        ("replace(GPT2, objectives=())", "objectives is empty"),
        ("replace(GPT2, tokenizer=replace(GPT2.tokenizer, vocabulary='many'))", r"tokenizer\.vocabulary is 'many'"),
        ("replace(GPT2, context=-1)", "context is -1"),
        ("replace(GPT2, reads={'lm': 'encoder'})", "reads has lm: encoder, which is neither a stack nor STACK.LAYER"),
        ("replace(GPT2, reads={'lm': 'decoder.last'})", r"reads has lm: decoder\.last"),
        ("replace(GPT2, sampled={'decoder': GeneratorInput(head='lm')})", "sampled has decoder: lm"),
        ("replace(WORD2VEC, sizes={})", "sizes is empty"),
        ("replace(WORD2VEC, sizes={'small': 3})", r"sizes\.small: "),
        ("replace(WORD2VEC, objectives=())", "objectives is empty"),
    ],
)
def test_invalid_family_is_rejected(folder, table, expected):
    module = f"broken_{abs(hash(table))}"
    (folder / f"{module}.py").write_text(
        "from dataclasses import replace\nfrom megaptm.families.gpt import GPT2\n"
        "from megaptm.families.word_vectors import WORD2VEC\n"
        "from megaptm.families.electra.spec import GeneratorInput\n"
        f"from megaptm.spec import Size\nIT = {table}\n"
    )
    config = "word2vec" if "WORD2VEC" in table else "gpt2"
    with pytest.raises(UserError, match=rf"model\.family: the family `{module}:IT` is invalid \({expected}"):
        load_config(ROOT / f"configs/{config}/tiny.yaml", [f"model.family={module}:IT"])


def test_output_of_an_import_goes_to_stderr(folder):
    (folder / "loud.py").write_text("print('loaded')\nfrom wren_of_mine import WREN\n")
    done = megaptm("families", "loud:WREN", "--json")
    assert (json.loads(done.stdout).keys(), done.stderr) == ({"wren": 0}.keys(), "loaded\n")


WAITING_MODULE = (
    "import wren_events; wren_events.started['{name}'].set(); wren_events.released['{name}'].wait(60); NAME = 1\n"
)


def test_imports_in_threads_do_not_redirect_output(tmp_path, monkeypatch):
    """Threads that sample initial values import the rules of a family."""
    monkeypatch.syspath_prepend(str(tmp_path))
    events = "{name: threading.Event() for name in ('wren_a', 'wren_b')}"
    (tmp_path / "wren_events.py").write_text(f"import threading\nstarted = {events}\nreleased = {events}\n")
    import wren_events

    stdout, threads = sys.stdout, []
    for name in wren_events.started:
        (tmp_path / f"{name}.py").write_text(WAITING_MODULE.format(name=name))
        threads.append(threading.Thread(target=load_plugin, args=(f"{name}:NAME", "test", "object")))
        threads[-1].start()
        assert wren_events.started[name].wait(60)
    for name, thread in zip(wren_events.released, threads, strict=True):
        wren_events.released[name].set()
        thread.join(60)
    assert sys.stdout is stdout
