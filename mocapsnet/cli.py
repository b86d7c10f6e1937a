"""The command line: a verb is a function that calls and prints. torch waits until a verb needs it."""

import inspect as signatures
import io
import json
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_type_hints

from mocapsnet import __version__
from mocapsnet.errors import (
    BrokenFile,
    Busy,
    Incomplete,
    Interrupted,
    Irreproducible,
    NotFinite,
    WrongArgument,
)
from mocapsnet.measure.settings import BenchSettings, changed
from mocapsnet.paper.settings import ReproduceSettings
from mocapsnet.parser import ConfigFile, Parser, say
from mocapsnet.train.malloc import keep_freed_memory
from mocapsnet.train.settings import Settings
from mocapsnet.train.signals import raised

if TYPE_CHECKING:
    from mocapsnet.nn.base import Network

SHIPPED = "mnist-small"


@dataclass(frozen=True)
class EvaluateSettings:
    """What `mocapsnet evaluate` takes beside the run.

    Attributes:
        dataset: The data set to measure on; null is the run's.
        data: The folder that holds data sets; null is the run's.
        download: Download official files that are missing.
        device: Where to compute.
        json: Print one line of JSON and nothing else.
    """

    dataset: str | None = None
    data: str | None = None
    download: bool = False
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    json: bool = False


@dataclass(frozen=True)
class PredictSettings:
    """What `mocapsnet predict` takes beside the run and the images.

    Attributes:
        json: Print one line of JSON and nothing else.
        csv: A CSV file to write, with the class and all lengths of each picture.
        invert: Swap bright and dark, for ink on paper where the network learnt bright digits on black.
        device: Where to compute.
    """

    json: bool = False
    csv: str | None = None
    invert: bool = False
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"


@dataclass(frozen=True)
class ExploreSettings:
    """What `mocapsnet explore` takes beside the runs.

    Attributes:
        host: The address to listen on; any but 127.0.0.1 lets other computers in.
        port: The port; 0 picks a free one.
        data: The folder that holds data sets; null is the run's.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    data: str | None = None


@dataclass(frozen=True)
class ExportSettings:
    """What `mocapsnet export` takes beside the run.

    Attributes:
        format: An ONNX file, a torch.export program, or a folder for the hub with a model card.
        output: The file or folder to write; in the run's folder by default.
    """

    format: Literal["onnx", "torch", "hub"] = "onnx"
    output: str | None = None


def train(settings: Settings) -> None:
    """Train a capsule network and write a run folder."""
    from mocapsnet import data
    from mocapsnet.train.fit import fit

    settings = settings.resolved()
    dataset = data.load(settings.dataset, settings.data, settings.download)
    model = build(settings, dataset.image_shape, dataset.classes)
    run = fit(**{**chosen(settings, fit), "model": model, "dataset": dataset})
    print(f"test accuracy {run.test_accuracy:.2%}, run folder {run.folder}")


def evaluate(settings: EvaluateSettings, run: str) -> None:
    """Measure a trained network: accuracy, per class, and a picture of its confusion."""
    from mocapsnet import data
    from mocapsnet.measure.accuracy import check_names, draw_confusion, evaluate
    from mocapsnet.nn.load import load
    from mocapsnet.train.device import pick_device
    from mocapsnet.train.record import read_run

    model = load(run)
    try:
        config = read_run(run)["config"]
    except FileNotFoundError as error:
        if settings.dataset is None:
            raise FileNotFoundError(f"{error}, or give --dataset") from error
        config = {}
    dataset = data.load(
        settings.dataset or config["dataset"], settings.data or config.get("data"), settings.download
    )
    if config:
        check_names(dataset, config["class_names"])
    evaluation = evaluate(model.to(pick_device(settings.device)), dataset)
    per_class = dict(zip(dataset.class_names, evaluation.per_class(), strict=True))
    # A network known by its name has no folder that could be written to.
    drawn = Path(run if Path(run).is_dir() else ".") / "confusion.png"
    try:
        draw_confusion(evaluation, dataset.class_names, drawn)
        picture = f"confusion in {drawn}"
    except ImportError:
        picture = "no picture of the confusion without matplotlib: pip install matplotlib"
    if settings.json:
        told = {"dataset": dataset.name, "images": len(dataset.test.labels), "accuracy": evaluation.accuracy}
        print(json.dumps(told | {"per_class": per_class, "confusion": evaluation.confusion.tolist()}))
        return
    print(f"{dataset.name}, {len(dataset.test.labels):,} test images: accuracy {evaluation.accuracy:.2%}")
    for name, value in per_class.items():
        print(f"  {name:<16} {'no image' if value is None else f'{value:.2%}'}")
    print(picture)


def predict(settings: PredictSettings, run: str, images: list[str]) -> None:
    """Classify pictures, or folders of them, with a trained network."""
    from mocapsnet.measure.predict import CHUNK, as_csv, as_entries, predict
    from mocapsnet.nn.load import load
    from mocapsnet.train.device import pick_device
    from mocapsnet.train.record import class_names
    from mocapsnet.writing import write

    if settings.json and settings.csv:
        raise WrongArgument("give --json true or --csv FILE, not both")
    # Known before thousands of pictures are read.
    if settings.csv and not Path(settings.csv).absolute().parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {settings.csv}; make it first")
    model = load(run)
    names = class_names(run, model)
    found = predict(model, images, pick_device(settings.device), settings.invert)
    if settings.json:
        print(json.dumps(as_entries(found, names)))
        return
    told = f"{len(found.files):,} images, {found.images_per_second:,.0f} a second"
    if settings.csv:
        write(Path(settings.csv), as_csv(found, names))
        print(f"{told}, in {settings.csv}")
        return
    for entry in as_entries(found, names):
        longest = sorted(entry["lengths"].items(), key=lambda item: -item[1])[:5]
        lengths = "  ".join(f"{name} {value:.3f}" for name, value in longest)
        print(f"{entry['image']}: {entry['class']}   {lengths}")
    if len(found.files) > CHUNK:
        print(told)


def reproduce(settings: ReproduceSettings, target: str | None) -> None:
    """Train and measure what the paper's tables and figures need, and judge its claims in a report."""
    from mocapsnet.paper.report import write_report

    settings.check(target)
    if target == "report":
        print(f"report in {' and '.join(map(str, write_report(settings.results())))}")
        return
    if settings.verify is not None:
        from mocapsnet.paper.verify import verify

        told = verify(settings.verify, settings.data, settings.device, settings.epochs, settings.download)
        print("\n".join(told))
        return
    from mocapsnet.paper.reproduce import reproduce

    try:
        summary, failed = reproduce(settings, target)
    except Interrupted as stopped:
        saved = f"saved in {settings.run_folders()}; the same command goes on"
        raise Interrupted(stopped.exit_code - 128, saved) from stopped
    print(summary.told())
    print(f"report in {settings.results() / 'report.html'}")
    if failed or summary.failed:
        count = len(failed) + len(summary.failed)
        raise Incomplete(f"{count} failed: {', '.join(failed + [task.name for task in summary.failed])}")


def inspect(settings: Settings, run: str | None) -> None:
    """Show a network's stages, shapes, parameters, capsule lengths and bytes kept for backward."""
    import torch

    from mocapsnet import data
    from mocapsnet.data.augment import standardise, to_pixels
    from mocapsnet.data.classes import SHAPES, shape_of
    from mocapsnet.measure.inspect import inspect
    from mocapsnet.nn.load import load

    if run is not None and (given := changed(settings)):
        told = ", ".join(f"{name} {value!r}" for name, value in given.items())
        raise WrongArgument(f"a run has its own settings, got {told}; leave them or the run out")
    settings = settings.resolved()
    if run is not None:
        model = load(run)
    elif settings.dataset in SHAPES:
        model = build(settings, *shape_of(settings.dataset))
    else:
        dataset = data.load(settings.dataset, settings.data)
        model = build(settings, dataset.image_shape, dataset.classes)
    if model.image_shape == (1, 28, 28):
        images = standardise(to_pixels(data.load("mnist6k").test.images[:8]))
    else:
        images = torch.randn(8, *model.image_shape, generator=torch.Generator().manual_seed(0))
    stages, kept = inspect(model, images)
    print(f"{'stage':<18} {'made of':<17} {'shape':<14} {'parameters':>10}  mean capsule length")
    for stage in stages:
        size = "x".join(map(str, stage.shape))
        mean = "" if stage.length is None else f"{stage.length:.2e}"
        print(f"{stage.name:<18} {stage.kind:<17} {size:<14} {stage.parameters:>10,}  {mean}")
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    print(f"{kept:,} bytes kept for backward per image, parameters not counted")


def bench(settings: BenchSettings, what: str) -> None:
    """Measure time or memory, once results are checked; print a table, write a CSV and a picture."""
    from mocapsnet.measure.bench import bench

    table, figures, picture, drawn = bench(what, settings)
    print(table)
    print(f"figures in {figures}")
    if drawn:
        print(f"picture in {picture}" if picture else "no picture without matplotlib: pip install matplotlib")


def explore(settings: ExploreSettings, runs: list[str]) -> None:
    """Show what a trained network sees, or two or three side by side, on a local web page."""
    try:
        from mocapsnet.explore.serve import serve
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'mocapsnet[web]'") from error
    # Ctrl-C is how it is meant to end.
    with suppress(KeyboardInterrupt):
        serve(runs, settings.data, settings.host, settings.port)


def export(settings: ExportSettings, run: str) -> None:
    """Write a trained network as ONNX, as a torch.export program or as a folder for the hub, and check it."""
    from mocapsnet.export import export

    target, difference = export(run, settings.format, settings.output)
    print(f"{target}: differs from the network by at most {difference:.1e}")


def build(settings: Settings, image_shape: tuple[int, int, int], classes: int) -> "Network":
    """The network that settings describe, its weights drawn by their seed."""
    import torch

    from mocapsnet.data.augment import windowed
    from mocapsnet.nn.load import ELSEWHERE, NETWORKS, network_class
    from mocapsnet.train.state import check_seed

    network = network_class({name.lower(): name for name in (*NETWORKS, *ELSEWHERE)}[settings.model])
    check_seed(settings.seed)
    torch.manual_seed(settings.seed)
    try:
        return network.from_config(
            {
                "image_shape": windowed(image_shape, settings.window),
                "classes": classes,
                **chosen(settings, network),
            }
        )
    except WrongArgument as error:
        if settings.window is None:
            raise
        raise WrongArgument(f"window {settings.window}: {error}") from error
    except (RuntimeError, TypeError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongArgument(f"torch cannot make such a network, lower its sizes: {reason}") from error


def chosen(settings: Settings, function: Callable[..., Any]) -> dict[str, Any]:
    """Those settings that a function takes by their name."""
    names = signatures.signature(function).parameters.keys() & get_type_hints(Settings).keys()
    return {name: getattr(settings, name) for name in names}


class Verb(NamedTuple):
    """A command: its function, the settings it takes, and how many words each of its positionals takes."""

    function: Callable[..., None]
    settings: type[Any]
    positionals: dict[str, str | None]


VERBS = {
    "train": Verb(train, Settings, {}),
    "evaluate": Verb(evaluate, EvaluateSettings, {"run": None}),
    "predict": Verb(predict, PredictSettings, {"run": None, "images": "+"}),
    "inspect": Verb(inspect, Settings, {"run": "?"}),
    "bench": Verb(bench, BenchSettings, {"what": None}),
    "reproduce": Verb(reproduce, ReproduceSettings, {"target": "?"}),
    "explore": Verb(explore, ExploreSettings, {"runs": "*"}),
    "export": Verb(export, ExportSettings, {"run": None}),
}
POSITIONALS = {
    "target": "table-1 to table-5, figure-3, figure-4, deep, controls, skip, best or all; "
    "report runs nothing and writes the report.",
    "run": "The folder of a finished run, or the name of a pretrained network.",
    "runs": "Folders of finished runs or names of pretrained networks, up to three.",
    "images": "Any pictures that Pillow opens, and folders of them.",
    "what": "step: a training step; memory: what depth costs in bytes; routing: each routing alone; "
    "inference: classifying; epoch: whole epochs with evaluation.",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the command `mocapsnet`."""
    # A name that the terminal cannot show is no reason to stop.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    keep_freed_memory()
    try:
        with raised():
            run(arguments)
    except KeyboardInterrupt as error:
        code = error.exit_code if isinstance(error, Interrupted) else 128 + signal.SIGINT
        say("mocapsnet", error, code)


def run(arguments: Sequence[str] | None) -> None:
    """Parse, call the verb, and turn what is refused into one line."""
    parser = make_parser()
    try:
        namespace = parser.parse_args(arguments)
    # Whatever it is, the arguments are to blame.
    except Exception as error:
        parser.error(str(error) or type(error).__name__)
    verb, values = VERBS[namespace.command], namespace[namespace.command].as_dict()
    program = f"mocapsnet {namespace.command}"
    settings = verb.settings(**{name: values[name] for name in get_type_hints(verb.settings)})
    try:
        check_text(values)
        verb.function(settings, **{name: values[name] for name in verb.positionals})
    except WrongArgument as error:
        say(program, error, 2)
    except (BrokenFile, Busy, Incomplete, Irreproducible, NotFinite, OSError, ImportError) as error:
        say(program, error, 1)


def check_text(values: dict[str, Any]) -> None:
    """Refuse characters that only a config file can hold, and no system takes in a name."""
    for name, value in values.items():
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, str) and re.search("[\0\ud800-\udc7f]", word):
                raise WrongArgument(f"{name} must be plain text, got {word!r}")


def make_parser() -> Parser:
    """The parser of all verbs."""
    hints = {name: get_type_hints(verb.settings) for name, verb in VERBS.items()}
    parser = Parser(
        commands=hints,
        prog="mocapsnet",
        description="Capsule networks of any depth.",
        version=__version__,
        allow_abbrev=False,
    )
    commands = parser.add_subcommands(dest="command")
    for name, verb in VERBS.items():
        command = Parser(hints[name], description=verb.function.__doc__, allow_abbrev=False)
        for positional, words in verb.positionals.items():
            default: dict[str, Any] = {"default": [SHIPPED]} if words == "*" else {}
            command.add_argument(positional, type=str, nargs=words, help=POSITIONALS[positional], **default)
        command.add_argument("--config", action=ConfigFile, help="A YAML file with any of these settings.")
        command.add_class_arguments(verb.settings)
        commands.add_subcommand(name, command, help=verb.function.__doc__)
        command.prog = f"mocapsnet {name}"
    return parser


if __name__ == "__main__":
    main()
