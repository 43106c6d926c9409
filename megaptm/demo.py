"""`make demo`: build a corpus from text of this machine, train a model on it and generate text, by megaptm's commands.

    make demo                          the library of the installed Python
    make demo TEXT='books/**/*.txt'    any file, folder or glob

All files are written to demo/, and finished parts are not repeated. The end of the output is also the picture
demo/demo.svg; `make demo && cp demo/demo.svg docs/` renews the one in the README.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from rich.text import Text

from data_pipeline.sources.files import JSON_LINES, PYTHON_LIBRARY
from megaptm.config import load_config
from megaptm.config.rate_jump import overrides_to_extend
from megaptm.console import Console
from megaptm.data.manifest import MANIFEST, read_manifest
from megaptm.errors import EXIT_CONTINUE, EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError
from megaptm.python_path import module_command
from megaptm.report.summary import PICTURE
from megaptm.resilience.events import last_saved_step
from megaptm.shell import command_line
from megaptm.track import view_instructions

CONFIG = "configs/demo/gpt2.yaml"
# More than the model trains on, and little enough to be read in a few seconds.
LIMIT_BYTES = 8_000_000
EVALUATED_ROWS = 200
PROMPT = "def __init__(self"
WIDTH = 100


@dataclass
class Demo:
    """Demo run in a folder, with its console output."""

    text: str
    folder: Path
    config: str = CONFIG
    console: Console = field(default_factory=lambda: Console(width=min(WIDTH, shutil.get_terminal_size().columns)))

    def __post_init__(self) -> None:
        self.corpus, self.run = self.folder / "corpus", self.folder / "run"
        config = load_config(self.config)
        self.vocabulary, self.steps = config.model.vocabulary, config.train.steps

    def run_all(self) -> None:
        self.build()
        self.train()
        self.results()

    def build(self) -> None:
        """Build the corpus of the demo: shards, and a tokenizer trained on the text."""
        self.heading("1  Build a corpus", f"Read and clean {self.text}, train a tokenizer, write shards.")
        done = (self.corpus / MANIFEST).exists()
        made_from = read_manifest(self.corpus).made_from if done else {}
        if done and (sources := made_from.get("recipe", {}).get("sources")) != [self.text]:
            texts = ", ".join(map(str, sources or ["other text"]))
            raise UserError(f"{self.folder} was built from {texts}: remove it to start with other text.")
        size = [f"tokenizer.vocabulary={self.vocabulary}", f"limit_bytes={LIMIT_BYTES}", "validation=0.05"]
        self.run_unless_done(["corpus", "build", self.source(), f"out={self.corpus}", *size], done=done)

    def source(self) -> str:
        """Return the text of the demo's corpus, or a recipe that cuts a single file into documents: validation holds
        out whole documents."""
        if not Path(self.text).is_file() or Path(self.text).suffix in JSON_LINES:
            return self.text
        recipe = self.folder / "corpus.yaml"
        recipe.parent.mkdir(parents=True, exist_ok=True)
        steps = ["normalize", "drop-empty", {"cut-long": {"characters": 5000}}]
        recipe.write_text(yaml.safe_dump({"sources": [self.text], "steps": steps}, sort_keys=False))
        return str(recipe)

    def train(self) -> None:
        """Train half of the demo's steps on one layout, half on another."""
        half = self.steps // 2
        self.heading(
            "2  Train the first half on two data ranks", "Each process holds the model and reads half of each batch."
        )
        begin = ["train", self.config, f"run={self.run}", f"data.mix={{{self.corpus}: 1}}", "layout.data=2"]
        code = self.run_unless_done(
            [*begin, f"train.stop_at={half}"], done=self.num_saved_steps() >= half, codes=(0, EXIT_CONTINUE)
        )
        if code == EXIT_CONTINUE:
            self.console.print(f"Exit code {EXIT_CONTINUE}: saved and stopped half-way, as on a preempted machine.")
        self.heading(
            "3  Train the second half on two pipeline stages",
            "Each process holds half of the layers. The samples and the loss curve are those of an uninterrupted run.",
        )
        pipeline = ["layout.data=1", "layout.pipeline=2", "layout.microbatch=4"]
        self.run_unless_done(["train", str(self.run), *pipeline], done=self.num_saved_steps() >= self.steps)

    def results(self) -> None:
        """Print the results of the demo and save them as a picture."""
        self.console = Console(width=self.console.width, file=self.console.file, record=True)
        self.heading("4  Evaluate on held-out text", "The baselines unigram and uniform use no context.")
        self.run_and_record(["evaluate", str(self.run), "--rows", str(EVALUATED_ROWS)])
        self.heading("5  Report of the run")
        self.run_and_record(["report", str(self.run)])
        self.heading("6  Generate text", "The model continues the prompt.")
        self.run_and_record(["generate", str(self.run), "--prompt", PROMPT, "--tokens", "120"])
        self.heading("7  Results and next steps")
        self.print_next_steps()
        svg = self.console.export_svg(title="make demo")
        # Remove web fonts: most sites block a picture that loads them from another server.
        (self.folder / "demo.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))

    def print_next_steps(self) -> None:
        """Print paths and next commands, the last lines of the demo."""
        run = str(self.run)
        lines = [
            ("loss curve", str(self.run / PICTURE)),
            *(("MLflow" if not number else "", line) for number, line in enumerate(view_instructions(self.run))),
            ("next", command_line(["generate", run, "--prompt", "class Stack:", "--tokens", "200"])),
            ("", command_line(["train", run, *self.arguments_to_extend(), "layout.pipeline=1", "layout.tensor=2"])),
            ("", command_line(["export", "hf", run, str(self.folder / "exported")])),
        ]
        for label, line in lines:
            self.console.print(Text.assemble((f"{label:<12}", "bold"), line), soft_wrap=True)

    def arguments_to_extend(self) -> list[str]:
        """Return the arguments that extend the demo's run to twice its steps."""
        config = load_config(self.run / "config.yaml")
        return overrides_to_extend(config, 2 * config.train.steps)

    def num_saved_steps(self) -> int:
        """Return the number of the demo's steps already saved."""
        return last_saved_step(self.run)

    def heading(self, title: str, explanation: str = "") -> None:
        self.console.print()
        self.console.rule(Text(title, "bold"), align="left")
        if explanation:
            self.console.print(explanation, style="dim", highlight=False)

    def run_unless_done(self, command: Sequence[str], *, done: bool, codes: Sequence[int] = (0,)) -> int:
        """Run a command of megaptm and show it as typed, unless it is done; returns its exit code."""
        self.console.print(_prompt_line(command), soft_wrap=True)
        if done:
            self.console.print("already done", style="dim")
            return 0
        return _run_command(command, codes).returncode

    def run_and_record(self, command: Sequence[str]) -> None:
        """Run a command of megaptm and show it as typed, with its output in the recorded console."""
        self.console.print(_prompt_line(command), soft_wrap=True)
        output = _run_command(
            command, (0,), stdout=subprocess.PIPE, FORCE_COLOR="1", COLUMNS=str(self.console.width)
        ).stdout
        self.console.print(Text.from_ansi(output.rstrip()), highlight=False, soft_wrap=True)


def _prompt_line(command: Sequence[str]) -> Text:
    return Text(f"$ {command_line(command)}", "bold green")


def _run_command(
    command: Sequence[str], codes: Sequence[int], stdout: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of megaptm; if it fails, it has printed the reason, and the demo exits with its exit code.

    Ctrl-C reaches the command too, which may save first: it is awaited, where `subprocess.run` would kill it.
    """
    full_command = module_command("megaptm", *command)
    interrupts: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        process = subprocess.run(full_command, check=False, stdout=stdout, text=True, env={**os.environ, **environment})
    finally:
        signal.signal(signal.SIGINT, previous)
    if interrupts:
        raise KeyboardInterrupt
    if process.returncode not in codes:
        sys.exit(process.returncode)
    return process


def main(arguments: Sequence[str]) -> None:
    if len(arguments) > 1:
        raise UserError("set TEXT to one file, folder or quoted glob: make demo TEXT='books/**/*.txt'.")
    Demo(text=arguments[0] if arguments else PYTHON_LIBRARY, folder=Path("demo")).run_all()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        print("Interrupted: the same command continues the demo.", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
