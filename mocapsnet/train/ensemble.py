"""Train the members of an ensemble one after the other, and measure it as a whole."""

import csv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mocapsnet.data import Dataset
from mocapsnet.nn.base import Network
from mocapsnet.nn.ensemble import Ensemble
from mocapsnet.nn.load import load
from mocapsnet.train import record
from mocapsnet.train.classify import accuracy
from mocapsnet.train.device import pick_device
from mocapsnet.train.fit import Run, fit
from mocapsnet.train.state import Row


def member(folder: Path, number: int) -> Path:
    """Where a member of an ensemble lies."""
    return folder / f"member-{number}"


def fit_ensemble(
    build: Callable[[int], Network],
    dataset: Dataset,
    seeds: Iterable[int],
    output: str | Path,
    **options: Any,
) -> Run:
    """Train a network per seed in output/member-0, output/member-1 and so on, and save their ensemble.

    Members that are done are not trained again; options are fit's. metrics.csv has one line: means over the
    members, but for the test accuracy, which is the ensemble's, and the seconds, which are all of theirs.
    """
    folder = Path(output)
    seeds = list(seeds)
    runs = [
        fit(build(seed), dataset, seed=seed, output=member(folder, number), **options)
        for number, seed in enumerate(seeds)
    ]
    device = pick_device(options.get("device", "auto"))
    ensemble = Ensemble([load(run.folder) for run in runs]).to(device)
    test_accuracy = accuracy(ensemble, dataset.test.to(device))
    curves = [list(csv.DictReader((run.folder / "metrics.csv").read_text().splitlines())) for run in runs]
    ends = [curve[-1] for curve in curves]

    def mean(name: str) -> float:
        return sum(float(end[name]) for end in ends) / len(ends)

    row = Row(
        epoch=int(ends[0]["epoch"]),
        lr=float(ends[0]["lr"]),
        train_loss=mean("train_loss"),
        train_accuracy=mean("train_accuracy"),
        validation_accuracy=None,
        test_accuracy=test_accuracy,
        seconds=sum(float(row["seconds"]) for curve in curves for row in curve),
        images_per_second=mean("images_per_second"),
    )
    first = record.read_run(runs[0].folder)
    config = first["config"] | {"network": ensemble.config, "seeds": seeds}
    ensemble.save(folder)
    record.write_metrics(folder, [row])
    record.write_run(folder, ensemble, [row], config, device, first.get("step"))
    return Run(folder, test_accuracy)
