"""The command line's parser: what is wrong is said in one line, with a suggestion."""

import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from jsonargparse import ActionConfigFile, ArgumentParser  # type: ignore[attr-defined]

Hints = Mapping[str, Any]


class ConfigFile(ActionConfigFile):
    """A YAML file of settings; one that is missing or broken ends the program with 1."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: str | None = None) -> None:
        """Look at the file before the parser does, which would not name it."""
        import yaml

        try:
            known = isinstance(yaml.safe_load(Path(values).read_text()), dict)
        except OSError as error:
            say(parser.prog, f"the config file {values!r} cannot be read: {error.strerror}", 1)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            say(parser.prog, f"the config file {values!r} is not YAML: {error}", 1)
        if not known:
            say(parser.prog, f"the config file {values!r} must hold lines such as `epochs: 3`", 1)
        super().__call__(parser, cfg, values, option_string)  # type: ignore[no-untyped-call]


class Parser(ArgumentParser):
    """A parser that says what is wrong in one line and exits with 2."""

    def __init__(
        self, hints: Hints | None = None, commands: Mapping[str, Hints] | None = None, **options: Any
    ) -> None:
        self.hints = hints or {}
        self.commands = commands or {}
        super().__init__(**options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse the arguments, with the nearest word where one is misspelt."""
        say(self.prog, self.explain(message), 2)

    def explain(self, message: str) -> str:
        """The parser's message in our words."""
        if nested := re.search(r"Parser key \"(\w+)\".*NestedArg\(key='(.*?)'", message, re.DOTALL):
            message = f"unrecognized arguments: --{nested[1]}.{nested[2]}"
        if wrong := re.search(r'Parser key "(\w+)".*G(?:ot|iven) value: (.*)', message, re.DOTALL):
            return mismatch(wrong[1], wrong[2], self.hints.get(wrong[1], str))
        if bare := re.search(r"argument --(\w+)(?:/\S+)?: expected one argument", message):
            return f"--{bare[1]} needs {wanted(self.hints.get(bare[1], str))[0]} behind it"
        if unknown := re.search(r"[Uu]nrecognized arguments?: ?(\S*)", message):
            flag = unknown[1].split("=")[0]
            return f"there is no {flag}{nearest(flag, [f'--{name}' for name in self.hints])}"
        if unknown := re.search(r"Subcommand '(\w+)' does not accept option '(.*?)'", message):
            return (
                f"{unknown[1]} has no setting {unknown[2]}{nearest(unknown[2], [*self.commands[unknown[1]]])}"
            )
        if missing := re.search(r"arguments are required: (\w+)\.(.*)", message):
            return f"{missing[1]} needs {missing[2].replace(f'{missing[1]}.', '')}; --help says more"
        if unknown := re.search(r"invalid choice: '(.*?)'", message):
            return f"there is no {unknown[1]}{nearest(unknown[1], [*self.commands])}"
        if '"command"' in message:
            return f"give a command: {', '.join(self.commands)}; --help says more"
        return message


def mismatch(name: str, value: str, hint: Any) -> str:
    """What a setting must be, and what it is."""
    told, words = wanted(hint)
    return f"--{name} must be {told}, got {value}{nearest(value, words) if words else ''}"


def wanted(hint: Any) -> tuple[str, list[str]]:
    """What a setting must be, and the words that it is one of, if it is."""
    kinds = [
        kind
        for kind in (get_args(hint) if type(None) in get_args(hint) else (hint,))
        if kind is not type(None)
    ]
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if words:
        return f"one of {', '.join(words)}", words
    named = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    named |= {list[int]: "whole numbers such as [1,2,4]", list[str]: "words such as [mocapsnet,capsnet]"}
    return " or ".join(named[kind] for kind in kinds), []


def nearest(word: str, words: Sequence[str]) -> str:
    """A suggestion for a misspelt word."""
    near = get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else "; --help lists what there is"


def say(program: str, message: object, code: int) -> NoReturn:
    """One line on standard error, then the end."""
    sys.stderr.write(f"{program}: {' '.join(str(message).split())}\n")
    raise SystemExit(code)
