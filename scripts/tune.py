"""Train variants of `best` and compare them on training images that are held out; test images are not read.

python scripts/tune.py --dataset cifar10 --data data --jobs 8
python scripts/tune.py --epochs 150 --variants '[{"mix": 0.5}, {"mix": 0.5, "weight_decay": 0.2}]'
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import auto_cli

from mocapsnet import data as datasets
from mocapsnet.errors import Interrupted
from mocapsnet.paper.grid import Task, distinct
from mocapsnet.paper.recipe import Recipe, changed
from mocapsnet.paper.recipes import best
from mocapsnet.paper.records import Place
from mocapsnet.paper.sweep import sweep
from mocapsnet.train.signals import raised

# What each differs in from `best`.
VARIANTS: list[dict[str, Any]] = [
    {},
    {"weight_decay": 0.0},
    {"weight_decay": 0.2},
    {"cutout": 0},
    {"cutout": 16},
    {"pad": 4},
    {"flip": False},
    {"jitter": True},
    {"mix": 0.0},
    {"mix": 0.5},
    {"turn": 10.0, "zoom": 0.1},
    {"ema": 0.0},
    {"lr": 1e-3},
    {"lr": 4e-3},
    {"batch": 64},
    {"smoothing": 0.1},
    {"reconstruction_weight": 5e-4},
]


def main(
    dataset: str = "cifar10",
    data: str = "data",
    epochs: int = 60,
    variants: list[dict[str, Any]] | None = None,
    blocks: int = 1,
    seeds: int = 1,
    jobs: int = 1,
    device: str = "auto",
    output: str = "results/tuning",
    runs: str = "runs/tuning",
    note: str = "",
    smoke: bool = False,
) -> None:
    folder = Path(runs) / "data"
    name = hold_out(dataset, data, folder)
    wanted = VARIANTS if variants is None else variants
    # `best` has no mirror for digits to leave out, no hole for MNIST's, and mixes none but CIFAR-10's.
    recipes = distinct([variant(dataset, name, blocks, epochs, changes) for changes in wanted])
    tasks = [Task(recipe, seed) for seed in range(seeds) for recipe in recipes]
    place = Place(Path(output), Path(runs), str(folder), device, smoke, note)
    try:
        with raised():
            print(sweep(tasks, place, jobs).told())
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
    found = [
        (json.loads(path.read_text()), task) for task in tasks if (path := place.record(place.accuracy, task))
    ]
    # A smoke run trains and tests on embedded digits alone.
    told = "the embedded test digits" if smoke else "what was held out"
    for run, task in sorted(found, key=lambda pair: -pair[0]["test_accuracy"]):
        print(f"{run['test_accuracy']:.2%} of {told}  {task.name}")


def variant(dataset: str, name: str, blocks: int, epochs: int, changes: dict[str, Any]) -> Recipe:
    """`best` with changes, on the set that was made of a data set's training images."""
    recipe = changed(best(dataset, "mocapsnet", blocks), **{"epochs": epochs, **changes})
    training = {**recipe.training, "test": "epoch"}
    return replace(recipe, name=recipe.name.replace(dataset, name, 1), dataset=name, training=training)


def hold_out(dataset: str, data: str, folder: Path) -> str:
    """Write the training images alone as a data set that tests with a tenth of them; its name."""
    split = datasets.load(dataset, data).hold_out(0.1, seed=0)
    assert split.validation is not None
    images, labels = map(torch.cat, zip(split.train, split.validation, strict=True))
    folder.mkdir(parents=True, exist_ok=True)
    name, count = f"{dataset}-held-out", len(split.train.labels)
    np.savez(folder / f"{name}.npz", X=images.permute(0, 2, 3, 1).numpy(), Y=labels.numpy(), n_train=count)
    return name


if __name__ == "__main__":
    auto_cli(main)
