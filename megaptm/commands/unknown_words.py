"""Error messages for unknown commands and options. Imports only click until a word is unknown."""

from __future__ import annotations

from collections.abc import Iterator

import click

from megaptm.suggest import advice_on_foreign_name, equivalent_name, suggest_name


def explain_unknown_word(error: click.NoSuchCommand | click.NoSuchOption) -> str:
    """Return an error message that names the unknown command or option and says what to write instead."""
    context = error.ctx
    assert context is not None
    if isinstance(error, click.NoSuchCommand):
        assert isinstance(context.command, click.Group)
        return f"no command {error.command_name}; {_command_remedy(error.command_name, context.command, context)}"
    return f"{context.command_path} has no option {error.option_name}; {_option_remedy(error.option_name, context)}"


def _command_remedy(name: str, group: click.Group, context: click.Context) -> str:
    if equivalent_name(name) not in group.commands:
        if instead := advice_on_foreign_name(name):
            return instead
        for words in _command_paths(context.find_root().command):
            if words[-1] in (name, equivalent_name(name)):
                return f"did you mean megaptm {' '.join(words)}?"
    if name.endswith((".yaml", ".yml")):
        return f"did you mean megaptm train {name}?"
    meant = suggest_name(name, group.commands)
    return f"did you mean {context.command_path} {meant}?" if meant else f"there are {', '.join(group.commands)}."


def _command_paths(group: click.Command, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command below a command group."""
    for name, command in group.commands.items() if isinstance(group, click.Group) else ():
        yield (*above, name)
        yield from _command_paths(command, (*above, name))


def _option_remedy(option: str, context: click.Context) -> str:
    command, name = context.command, option.lstrip("-").replace("-", "_")
    options = [form for parameter in command.get_params(context) for form in parameter.opts if form.startswith("--")]
    spellings = {form.lstrip("-").replace("-", "_"): form for form in options}
    if (renamed := spellings.get(equivalent_name(name) or "")) is not None:
        return f"did you mean {renamed}?"
    settings = sorted(_setting_keys(context), key=lambda key: key.count("."))  # general keys first
    same = [key for key in settings if name in (key, key.rpartition(".")[2])]
    same += [key for key in settings if equivalent_name(name) in (key, key.rpartition(".")[2])]
    if same:
        return f"settings are written without dashes: {same[0]}=VALUE."
    if instead := advice_on_foreign_name(name):
        return instead
    if name in {parameter.name for parameter in command.params if isinstance(parameter, click.Argument)}:
        return f"write the value alone: {' '.join([context.command_path, *command.collect_usage_pieces(context)])}."
    if meant := suggest_name(name, spellings):
        return f"did you mean {spellings[meant]}?"
    if meant := suggest_name(name, settings):
        return f"settings are written without dashes: did you mean {meant}=VALUE?"
    return f"it has {', '.join(options)}."


def _setting_keys(context: click.Context) -> list[str]:
    """Return the keys that a command takes as KEY=VALUE: the completions of its arguments."""
    arguments = [parameter for parameter in context.command.params if isinstance(parameter, click.Argument)]
    completions = [item.value for argument in arguments for item in argument.shell_complete(context, "")]
    return [completion.removesuffix("=") for completion in completions if completion.endswith("=")]
