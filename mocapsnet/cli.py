"""The command line: a verb is a function that calls and prints. torch waits until a verb needs it."""

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, get_args, get_type_hints

from jsonargparse import ArgumentParser

from mocapsnet import __version__
from mocapsnet.train.settings import Settings


def train(settings: Settings) -> None:
    """Train a capsule network and write a run folder."""
    import torch

    from mocapsnet import data
    from mocapsnet.nn.network import NETWORKS
    from mocapsnet.train.fit import fit

    settings = settings.resolved()

    def chosen(function: Callable[..., Any]) -> dict[str, Any]:
        """Those settings that a function takes by their name."""
        return {
            name: getattr(settings, name)
            for name in inspect.signature(function).parameters
            if hasattr(settings, name)
        }

    dataset = data.load(settings.dataset)
    network = {name.lower(): network for name, network in NETWORKS.items()}[settings.model]
    torch.manual_seed(settings.seed)
    model = network(dataset.image_shape, dataset.classes, **chosen(network))
    run = fit(**{**chosen(fit), "model": model, "dataset": dataset})
    print(f"test accuracy {run.test_accuracy:.2%}, run folder {run.folder}")


VERBS: dict[str, Callable[[Any], None]] = {"train": train}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `mocapsnet`."""
    parser = Parser(
        prog="mocapsnet",
        description="Capsule networks of any depth.",
        version=__version__,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands(dest="command")
    for name, verb in VERBS.items():
        command = Parser(description=verb.__doc__, allow_abbrev=False)
        command.add_argument("--config", action="config", help="A YAML file with any of these settings.")
        command.add_class_arguments(settings_of(verb))
        commands.add_subcommand(name, command, help=verb.__doc__)
        command.prog = f"mocapsnet {name}"
        command.hints = get_type_hints(settings_of(verb))
    namespace = parser.parse_args(arguments)
    verb, values = VERBS[namespace.command], namespace[namespace.command].as_dict()
    settings = settings_of(verb)(**{name: values[name] for name in get_type_hints(settings_of(verb))})
    from mocapsnet.ops.arguments import WrongArgument

    try:
        verb(settings)
    except WrongArgument as error:
        refuse(f"mocapsnet {namespace.command}", str(error))


def settings_of(verb: Callable[[Any], None]) -> type[Any]:
    """The dataclass of settings that a verb takes."""
    return get_type_hints(verb)["settings"]


class Parser(ArgumentParser):
    """A parser that says what is wrong in one line and exits with 2."""

    hints: dict[str, Any]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Refuse the arguments, with the nearest word where one is misspelt."""
        refuse(self.prog, self.explain(message))

    def explain(self, message: str) -> str:
        """The parser's message in our words."""
        if wrong := re.search(r'Parser key "(\w+)".*G(?:ot|iven) value: (.*)', message, re.DOTALL):
            return mismatch(wrong[1], wrong[2], self.hints[wrong[1]])
        if unknown := re.search(r"[Uu]nrecognized arguments?: (\S+)", message):
            flag = unknown[1].split("=")[0]
            return f"there is no {flag}{nearest(flag, [f'--{name}' for name in self.hints])}"
        if unknown := re.search(r"invalid choice: '(.*?)'", message):
            return f"there is no {unknown[1]}{nearest(unknown[1], [*VERBS])}"
        if "was not provided" in message:
            return f"give a command: {', '.join(VERBS)}; --help says more"
        return message


def mismatch(name: str, value: str, hint: Any) -> str:
    """What a setting must be, and what it is."""
    kinds = [
        kind
        for kind in (get_args(hint) if type(None) in get_args(hint) else (hint,))
        if kind is not type(None)
    ]
    words = [word for kind in kinds for word in get_args(kind)]
    if words:
        return f"--{name} must be one of {', '.join(words)}, got {value}{nearest(value, words)}"
    wanted = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
    return f"--{name} must be {' or '.join(wanted[kind] for kind in kinds)}, got {value}"


def nearest(word: str, words: Sequence[str]) -> str:
    """A suggestion for a misspelt word."""
    near = get_close_matches(word, words, n=1)
    return f"; did you mean {near[0]}?" if near else "; --help lists what there is"


def refuse(program: str, message: str) -> NoReturn:
    """One line on standard error, exit code 2."""
    sys.stderr.write(f"{program}: {' '.join(message.split())}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
