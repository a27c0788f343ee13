"""Parsing of command lines."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from rljax.learning.configuration import whole_number
from rljax.learning.settings import Settings
from rljax.system import outputs
from rljax.system.user_files import FileClass, is_class_name

kinds = tyro.constructors.ConstructorRegistry()


@kinds.primitive_rule
def _integer(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[int] | None:
    """Integers of the command line, also of an agent's Config, may be like 1e6."""
    if info.type is not int:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@kinds.primitive_rule
def _file_class(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[str] | None:
    """Choices, or a class in a user's file, such as mine.py:Encoder."""
    parts = get_args(info.type)
    if FileClass not in parts:
        return None
    choices = get_args(parts[0])

    def read(words: list[str]) -> str:
        if words[0] in choices:
            return words[0]
        if is_class_name(words[0]):
            return FileClass(words[0])
        raise ValueError(f"'{words[0]}' is no choice, and no class in a file, as mine.py:Encoder")

    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(choices)}}}|FILE:CLASS",
        instance_from_str=read,
        is_instance=lambda value: value in choices or isinstance(value, FileClass),
        str_from_instance=lambda value: [value],
    )


def parse(options: Any, arguments: list[str], command: str) -> Any:
    """Parse the options of a command. tyro raises `SystemExit` after help or an error.

    Raises `ValueError` for both names of the output option: tyro would take the last; `OSError` for
    an output that cannot be made.
    """
    parsed = tyro.cli(
        options,
        args=arguments,
        prog=f"rljax {command}",
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=kinds,
    )
    if all(value_of(arguments, flag) is not None for flag in ("--out", "--output")):
        raise ValueError("--out and --output are two names of one option: give one of them.")
    _require_outputs(parsed)
    return parsed


def _require_outputs(parsed: Any) -> None:
    options = vars(getattr(parsed, "options", parsed))  # beside an agent's Config
    for name, is_folder in (("out", True), ("output", False), ("file", False)):
        path = options.get(name)
        if isinstance(path, Path):
            outputs.require_makeable(path, is_folder)


def parse_with_agent(options: Any, arguments: list[str], command: str) -> tuple[Any, Any]:
    """The options of a command that begins with an agent, and the agent's Config."""
    if not arguments or arguments[0].startswith("-"):
        parse(options, arguments, command)  # prints --help, or the error
        raise ValueError(f"the agent comes first: rljax {command} sac --env Hopper-v5")
    from rljax.learning import registry

    agent = registry.load_agent(arguments[0])
    environment, data = value_of(arguments, "--env"), value_of(arguments, "--data")
    variant = value_of(arguments, "--preset")
    if data is None:
        config = registry.preset(arguments[0], agent, environment, variant=variant)
    else:
        from rljax.runs import experiments

        config = experiments.preset(arguments[0], agent, environment, data, variant)
    fields = [
        ("options", Annotated[options, tyro.conf.arg(name="")]),
        ("config", agent.Config, dataclasses.field(default=config)),
    ]
    both = dataclasses.make_dataclass(f"{options.__name__}Agent", fields)
    both.__doc__ = (agent.__doc__ or "").split("\n\n")[0]
    renamed = [_with_name_here(argument, config) for argument in arguments]
    renamed = [argument for argument in renamed if not _is_so_already(argument, config)]
    _require_names_here(renamed, options, config)
    try:
        parsed = parse(both, renamed, f"{command} {arguments[0]}")
    except SystemExit as end:
        if not end.code:  # after --help
            print("references", *references(agent), sep="\n  ")
        raise
    return parsed.options, parsed.config


def references(agent: Any) -> list[str]:
    """The works behind the numbers in the comments of an agent's settings, from its docstring."""
    return re.findall(r"^\[\d+\] .+(?:\n +.+)*", agent.__doc__ or "", re.MULTILINE)


def run_settings(options: Any) -> dict[str, Any]:
    """The options that are fields of a run's `Settings`, except its seeds."""
    names = {field.name for field in dataclasses.fields(Settings)} - {"seeds"}
    settings = {name: value for name, value in vars(options).items() if name in names}
    if options.wrap or options.frame_stack != 1:
        if options.env is None:
            flag = "--wrap" if options.wrap else "--frame-stack"
            raise ValueError(f"{flag} is around the environment that --env names: give both.")
        from rljax import envs

        settings["env"] = envs.with_wrappers(options.env, options.wrap, options.frame_stack)
    return settings


def assignments(texts: Sequence[str], config: Any, flag: str) -> dict[str, Any]:
    """Settings of an agent's Config, each written as config.actor-lr=1e-4."""
    from rljax.learning import configuration

    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name.startswith("config.") or not equals or not value:
            raise ValueError(
                f"{flag} {text}: write a setting and its value, such as config.actor-lr=1e-4."
            )
        known = configuration.setting(config, name.removeprefix("config.").replace("-", "_"))
        settings[known] = configuration.parse(config, known, value, f"{flag} {name}")
    return settings


def config_flags(arguments: list[str], config: Any) -> set[str]:
    """Names of the agent's settings that flags in the arguments set."""
    flags = [_with_name_here(argument, config).partition("=")[0] for argument in arguments]
    names = {_setting(flag) for flag in flags if flag.startswith("--config.")}
    return names | {name.removeprefix("no_") for name in names}


def split_config(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The arguments without --config.X VALUE ..., and the texts of the values, by X."""
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    target = rest
    for argument in arguments:
        if argument.startswith("--config."):
            flag, equals, value = argument.partition("=")
            target = values.setdefault(_setting(flag), [])
            target += [value] if equals else []
        else:
            target = rest if argument.startswith("--") else target
            target.append(argument)
    return rest, values


def value_of(arguments: list[str], flag: str) -> str | None:
    """The value of a flag, before tyro has seen the arguments."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(flag + "="):
            return argument.split("=", 1)[1]
    return None


def require_new(path: Path) -> None:
    """Raise `ValueError` if there is such a file already, or if it cannot be a data set's, and
    `OSError` if it cannot be made.
    """
    if path.exists():
        raise ValueError(f"'{path}' exists. Choose another name, or delete it.")
    from rljax.datasets.formats import dataset_writing

    dataset_writing.with_suffix(path)
    outputs.require_makeable(path)


def _with_name_here(argument: str, config: Any) -> str:
    """A flag such as --config.tau, with the setting's name in this agent's Config."""
    from rljax.learning.configuration import setting

    flag, equals, value = argument.partition("=")
    known = setting(config, _setting(flag)) if flag.startswith("--config.") else _setting(flag)
    same = known == _setting(flag)
    return argument if same else f"--config.{known.replace('_', '-')}{equals}{value}"


def _require_names_here(arguments: Sequence[str], options: Any, config: Any) -> None:
    """Raise `ValueError` for an unknown flag that another library has, or that is a setting."""
    from rljax.learning import configuration

    settings = {field.name for field in dataclasses.fields(config)}
    known = {field.name for field in dataclasses.fields(options)}
    for argument in arguments:
        flag = argument.partition("=")[0]
        name = _setting(flag.removeprefix("--"))
        if flag.startswith("--config."):
            name = _setting(flag)
            hint = "" if name in settings else configuration.hint(config, name)
        elif flag.startswith("--") and name not in known:
            own = configuration.setting(config, name)
            is_own = own in settings
            flags = f" Here it is {configuration.flag(own)}."
            hint = flags if is_own else configuration.hint(config, name)
        else:
            continue
        if hint:
            raise ValueError(f"there is no option {flag}.{hint}")


def _is_so_already(argument: str, config: Any) -> bool:
    """Whether an argument switches on what is on, or off what is off: tyro has only the other."""
    if not argument.startswith("--config."):
        return False
    switches = {name for name, hint in get_type_hints(type(config)).items() if hint is bool}
    name = _setting(argument)
    positive = name.removeprefix("no_")
    return positive in switches and getattr(config, positive) is (name == positive)


def _setting(flag: str) -> str:
    return flag.removeprefix("--config.").replace("-", "_")
