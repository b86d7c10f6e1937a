"""What a run leaves behind: run.json, metrics.csv, config.json and model.safetensors."""

import csv
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import mocapsnet
from mocapsnet.nn.network import CapsuleNetwork


class Row(NamedTuple):
    """One epoch, a line of metrics.csv. Accuracies are fractions."""

    epoch: int
    lr: float
    train_loss: float
    train_accuracy: float
    test_accuracy: float
    seconds: float
    images_per_second: float


def write(
    folder: Path,
    model: CapsuleNetwork,
    rows: list[Row],
    config: dict[str, Any],
    seed: int,
    seconds: float,
    device: torch.device,
) -> None:
    """Write the four files of a finished run."""
    model.save(folder)
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(rows)
    run = {
        "test_accuracy": rows[-1].test_accuracy,
        "seed": seed,
        "seconds": round(seconds, 3),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "config": config,
        "commit": commit(),
        "versions": versions(),
        "hardware": hardware(device),
    }
    (folder / "run.json").write_text(json.dumps(run, indent=2) + "\n")


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


def commit() -> str | None:
    """The commit this package runs from, "+changes" behind it when files differ; None if there is none."""
    here = Path(__file__).parent

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
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no") else head
