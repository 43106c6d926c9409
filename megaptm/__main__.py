"""The command line. Only click is imported here and at the top of `commands`, so that `megaptm --help` is fast."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any, NoReturn

from megaptm.python_path import drop_working_directory

drop_working_directory()  # before anything else is imported, which the working directory may have under the same name

import click

from megaptm import __version__
from megaptm.commands.allow_code import add_allow_code
from megaptm.commands.check import check_command
from megaptm.commands.checkpoint import checkpoint_group
from megaptm.commands.config import config_group
from megaptm.commands.corpus import corpus_group
from megaptm.commands.evaluate import evaluate_command
from megaptm.commands.export import export_group
from megaptm.commands.families import families_command
from megaptm.commands.family_group import FamilyGroup
from megaptm.commands.generate import generate_command
from megaptm.commands.imports import import_group
from megaptm.commands.inspect import inspect_command
from megaptm.commands.launch import launch_group
from megaptm.commands.plan import plan_command
from megaptm.commands.report import report_command, watch_command
from megaptm.commands.tokenizer import tokenizer_group
from megaptm.commands.train import train_command
from megaptm.commands.tune import tune_group
from megaptm.commands.unknown_words import explain_unknown_word
from megaptm.credentials import refuse_credentials_in_words
from megaptm.errors import (
    EXIT_INTERRUPTED,
    UserError,
    require_address_space,
    resource_errors_as_user_errors,
    storage_errors_as_user_errors,
)
from megaptm.plugins import EXTENSIONS, package_attributes, registered_attributes
from megaptm.processes import collect_garbage_rarely, end_now, escape_log_messages, replace_unencodable


class Commands(FamilyGroup):
    """Command group that prints user errors and disk errors as one red sentence. Other errors are bugs and keep their
    traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line of megaptm. Credentials are refused before any word can be shown or stored."""
        try:
            refuse_credentials_in_words(args)
        except UserError as error:
            self._fail(ctx, error)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            self._fail(ctx, UserError(explain_unknown_word(error)))

    def list_commands(self, ctx: click.Context) -> list[str]:
        try:
            return super().list_commands(ctx)
        except UserError as error:  # an invalid package of the user
            click.secho(f"error: {error}", fg="red", err=True)
            return sorted(self.commands)

    def contributed_commands(self) -> Iterator[click.Command]:
        """Yield the commands of extensions and of packages of users. Folders of families, which have none, are not
        searched, so that `megaptm --help` is fast."""
        for commands in chain(
            package_attributes(EXTENSIONS, "commands", "COMMANDS"), registered_attributes("commands", "COMMANDS")
        ):
            for command in commands.get("megaptm", ()):
                if command.name not in self.commands:
                    add_allow_code(command)
                yield command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            require_address_space()
            with resource_errors_as_user_errors(), storage_errors_as_user_errors("the output"):
                return super().invoke(ctx)
        except UserError as error:
            self._fail(ctx, error)
        except (click.NoSuchCommand, click.NoSuchOption) as error:
            self._fail(ctx, UserError(explain_unknown_word(error)))
        except KeyboardInterrupt:  # click would say "Aborted!" and exit with 1, a failure
            click.echo("Interrupted.", err=True)
            ctx.exit(EXIT_INTERRUPTED)

    @staticmethod
    def _fail(ctx: click.Context, error: UserError) -> NoReturn:
        click.secho(f"error: {error}", fg="red", err=True)
        ctx.exit(error.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="megaptm")
def main() -> None:
    """Pre-train language models, classic and large, with one engine, from two CPU cores to a thousand GPUs.

    From text to a model:

    \b
      megaptm corpus build 'books/**/*.txt' out=corpora/books tokenizer.vocabulary=4096
      megaptm train configs/gpt2/tiny.yaml data.mix='{corpora/books: 1}'
      megaptm report runs/gpt2-tiny
      megaptm evaluate runs/gpt2-tiny
      megaptm generate runs/gpt2-tiny --prompt 'It was a'
      megaptm export hf runs/gpt2-tiny exported/gpt2-tiny

    Before you queue a large run:

    \b
      megaptm plan configs/gpt3/175b.yaml --nodes 128 --search
      megaptm check configs/gpt3/175b.yaml --machine h100-80g --time 24:00:00
    """


def run() -> NoReturn:
    """Run the program `megaptm`."""
    collect_garbage_rarely()
    replace_unencodable()
    escape_log_messages()
    try:
        main(prog_name="megaptm")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if "torch" not in sys.modules:
        sys.exit(code)
    end_now(code)


COMMANDS = (families_command, config_group, corpus_group, tokenizer_group, plan_command, watch_command, import_group)
COMMANDS_OF_RUNS = (
    check_command,
    train_command,
    launch_group,
    checkpoint_group,
    inspect_command,
    report_command,
    evaluate_command,
    generate_command,
    export_group,
    tune_group,
)
"""Commands that read runs or configs, which may name Python code."""

for command in (*COMMANDS, *COMMANDS_OF_RUNS):
    main.add_command(command)
for command in COMMANDS_OF_RUNS:
    add_allow_code(command)

if __name__ == "__main__":
    run()
