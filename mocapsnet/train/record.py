"""What a run leaves behind beside its weights: config.yaml, metrics.csv, TensorBoard's log and run.json."""

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import torch
import yaml
from torch import nn

import mocapsnet
from mocapsnet.errors import BrokenFile
from mocapsnet.nn.base import Network
from mocapsnet.nn.load import load, network_class
from mocapsnet.nn.pretrained import resolve
from mocapsnet.train.options import LATER
from mocapsnet.train.settings import Model, Settings
from mocapsnet.train.state import Row
from mocapsnet.writing import write


def write_config(folder: Path, config: dict[str, Any]) -> None:
    """Write config.yaml, which `mocapsnet train --config` takes to repeat the run, if flags can say it."""
    name = config["network"]["model"]
    own = signature(network_class(name)).parameters
    unsaid = config["network"].keys() - Settings.__annotations__.keys() - {"image_shape", "classes"}
    if name.lower() not in get_args(Model) or any(config["network"][n] != own[n].default for n in unsaid):
        return
    network = {name: value for name, value in config["network"].items() if name in Settings.__annotations__}
    settings = {name: value for name, value in config.items() if name in Settings.__annotations__}
    if config["data"] is None:
        del settings["data"]
    flat = {**settings, **network, "model": config["network"]["model"].lower()}
    write(folder / "config.yaml", yaml.safe_dump(flat, sort_keys=False).encode())


def write_metrics(folder: Path, rows: Sequence[Row]) -> None:
    """Write metrics.csv, a line per epoch."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(Row._fields)
    writer.writerows(rows)
    write(folder / "metrics.csv", text.getvalue().encode())


def write_run(
    folder: Path,
    model: nn.Module,
    rows: Sequence[Row],
    config: dict[str, Any],
    device: torch.device,
    step: dict[str, bool] | None,
) -> None:
    """Write run.json, which marks a run as finished; step is how its last steps really ran."""
    run = {
        "test_accuracy": rows[-1].test_accuracy,
        "validation_accuracy": rows[-1].validation_accuracy,
        "seed": config["seed"],
        "seconds": round(sum(row.seconds for row in rows), 3),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "config": config,
        "step": step,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(device),
    }
    write(folder / "run.json", (json.dumps(run, indent=2) + "\n").encode())


def read_run(folder: str | Path) -> dict[str, Any]:
    """Read run.json of a run, or of a pretrained network by name; a missing or broken one is named."""
    path = resolve(folder) / "run.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no run.json: give the folder of a finished run")
    try:
        run = json.loads(path.read_text())
        config, _ = run["config"], run["test_accuracy"] + 0.0
        if not isinstance(config["dataset"], str) or not isinstance(config["class_names"], list):
            raise TypeError("dataset must be a word and class_names a list")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokenFile(f"{path} is not a run's record: {error!r}") from error
    return run


def class_names(folder: str | Path, model: Network) -> list[str]:
    """The names of the classes that a run's network tells apart; one that save() alone wrote has numbers."""
    classes = model.config["classes"]
    if not (resolve(folder) / "run.json").exists():
        return [str(k) for k in range(classes)]
    names: list[str] = read_run(folder)["config"]["class_names"]
    if len(names) != classes:
        raise BrokenFile(f"{folder} names {len(names)} classes, its network has {classes}")
    return names


def finished(folder: Path, config: dict[str, Any]) -> float | None:
    """The test accuracy of the run in a folder, if it is this one and has ended with all its files whole."""
    try:
        run = read_run(folder)
        load(folder)
    except (BrokenFile, FileNotFoundError):
        return None
    same = LATER | run["config"] | {"data": None} == config | {"data": None}
    return run["test_accuracy"] if same else None


class Board:
    """TensorBoard's log of a run, where tensorboard is installed."""

    def __init__(self, folder: Path, rows: Sequence[Row]) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        # All rows again: what the writer had not yet flushed is lost when a run is killed.
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=1)
        for row in rows:
            self.write(row)

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer:
            self.writer.close()

    def write(self, row: Row) -> None:
        """Log every number of an epoch."""
        if self.writer:
            for name, value in row._asdict().items():
                if name != "epoch" and value is not None:
                    self.writer.add_scalar(name, value, row.epoch)


def versions() -> dict[str, str]:
    """Of Python and of what decides a run's numbers."""
    packages = ("torch", "numpy", "pytorch-lightning")
    return {
        "mocapsnet": mocapsnet.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The machine and the device a run used."""
    cpuinfo = Path("/proc/cpuinfo")
    models = (
        [
            line.split(":")[1].strip()
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("model name")
        ]
        if cpuinfo.exists()
        else []
    )
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.system(),
    }


@cache
def commit() -> str | None:
    """The commit this package runs from, "+changes" behind it when its files differ; None without one.

    Asked for first when something begins: files may change while it runs.
    """
    here, package = Path(__file__).parent, str(Path(mocapsnet.__file__).parent)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", here, *arguments], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    # A package installed inside somebody else's repository has no commit of its own.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    head = git("rev-parse", "HEAD")
    return (
        f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no", package) else head
    )
