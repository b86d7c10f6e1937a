"""Repeat the first epochs of a committed run and compare their losses."""

import json
import re
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mocapsnet import data as datasets
from mocapsnet.errors import CannotRun, Irreproducible, NoRecord, WrongArgument, named
from mocapsnet.ops.arguments import at_least
from mocapsnet.paper.evidence import check_run
from mocapsnet.paper.grid import Task
from mocapsnet.paper.recipe import Recipe
from mocapsnet.paper.records import Place, failure, read_curve
from mocapsnet.paper.sweep import start
from mocapsnet.train.device import pick_device
from mocapsnet.train.options import fingerprint, part
from mocapsnet.train.record import commit, hardware, versions

TOLERANCE = 1e-3
# Percent of test images: rounding moves single ones.
ACCURACY = 3.0
SECONDS_BETWEEN_LOOKS = 0.1


def verify(file: str, data: str, device: str, epochs: int, download: bool = False) -> list[str]:
    """What was compared, line by line; raises where a loss is not what it was.

    What differs from then in hardware, versions and commit is printed before anything is trained.

    The run is started with all its epochs, as its schedule may hang on them, and then stopped. Of an ensemble
    the first member is.
    """
    at_least("epochs", epochs, 1)
    run = read(file)
    if epochs > len(run["curve"]):
        raise WrongArgument(f"epochs must be <= {len(run['curve'])}, the epochs of {file}, got {epochs}")
    task = Task(recipe_of(run), run["seed"])
    check_data(run, task, file, data, download)
    apart = differences(run, device)
    here = f"differs here: {'; '.join(apart)}" if apart else "the same hardware, versions and commit"
    print(here, flush=True)
    lines, wrong = [], []
    for was, now in zip(run["curve"], repeat(task, data, device, epochs), strict=False):
        distance = abs(now["train_loss"] - was["train_loss"]) / max(abs(was["train_loss"]), 1e-12)
        line, same = f"epoch {was['epoch']}: ", distance <= TOLERANCE
        if None not in (accuracies := (now["test_accuracy"], was["test_accuracy"])):
            found, told = (100 * accuracy for accuracy in accuracies)
            line += f"test accuracy {found:.2f} %, recorded {told:.2f}; "
            same &= abs(found - told) <= ACCURACY
        line += f"loss {now['train_loss']:.6f}, recorded {was['train_loss']:.6f}, {distance:.1e} apart"
        lines.append(line)
        if not same:
            wrong.append(line)
    if wrong:
        told = f"{file} does not repeat to {TOLERANCE:g}, or {ACCURACY:g} points of accuracy"
        raise Irreproducible(f"{told}: {'; '.join(wrong)}; {here}")
    whose = "the first member of " if "members" in run else ""
    return [*lines, *unlearnt(run, epochs), f"{whose}{file} repeats to {TOLERANCE:g}"]


def unlearnt(run: dict[str, Any], epochs: int) -> list[str]:
    """A word of caution where nothing had been learnt yet: other networks' losses may be the same."""
    accuracies = [row["train_accuracy"] for row in run["curve"]]
    chance = 2 / run["config"]["network"]["classes"]
    begins = next((n for n, found in enumerate(accuracies, 1) if found > chance), None)
    if begins is not None and begins <= epochs:
        return []
    more = f"; it has from epoch {begins} on: give --epochs {begins}" if begins else ""
    return [f"in these epochs the run had learnt next to nothing{more}"]


def read(file: str) -> dict[str, Any]:
    """A record with a recipe and a curve: of an ensemble that of its first member."""
    try:
        run = json.loads(Path(file).read_text())
        if "config" in run and "recipe" not in run:
            raise NoRecord(f"{file} is a `train` run; only records of `mocapsnet reproduce` can be verified")
        if "error" in run or not run["curve"]:
            raise KeyError("curve")
        if recipe_of(run).members > 1:
            check_run(run)
            run = first_member(run)
        _ = [row["epoch"] + row["train_loss"] + 0.0 for row in run["curve"]], run["seed"] + 0
        _ = run["hardware"]["device"], run["commit"], run["versions"].items()
        check_run(run)
        _ = [row["train_accuracy"] + (row["test_accuracy"] or 0.0) for row in run["curve"]]
        _ = 2 / run["config"]["network"]["classes"]
        recipe = recipe_of(run)
        _ = recipe.members + 0, {**recipe.network, **recipe.training}, recipe.dataset + ""
        # It names a folder.
        if not re.fullmatch(r"[\w.-]+", recipe.name):
            raise ValueError(f"recipe {recipe.name!r}")
    except OSError as error:
        raise WrongArgument(
            f"verify must be a run's json, {file!r} cannot be read: {error.strerror}"
        ) from error
    except NoRecord:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        raise NoRecord(
            f"{file} is not the record of a finished run of `mocapsnet reproduce`: {named(error)}"
        ) from error
    return run


def recipe_of(run: dict[str, Any]) -> Recipe:
    """What a record says was trained."""
    return Recipe(**run.get("trained", run["recipe"]))


def first_member(run: dict[str, Any]) -> dict[str, Any]:
    """An ensemble's record as if its first member were all of it."""
    recipe, config, curve = recipe_of(run), run["config"], run["members"][0]
    alone = {"trained": asdict(recipe.one()), "seed": recipe.seeds(run["seed"])[0]}
    alone |= {"config": config | {"network": config["network"]["members"][0]}}
    return run | alone | {"curve": curve, "test_accuracy": curve[-1]["test_accuracy"]}


def check_data(run: dict[str, Any], task: Task, file: str, data: str, download: bool) -> None:
    """Refuse images that are not those a run was trained on; old records do not tell theirs."""
    training = task.recipe.training
    try:
        found = datasets.load(task.recipe.dataset, data, download)
        if (was := run["config"].get("data_sha256")) is None:
            return
        now = fingerprint(part(found, training.get("limit"), training.get("validation", 0.0), task.seed))
    except (OSError, ValueError, TypeError) as error:
        raise CannotRun(f"{task.name} cannot be repeated here: {error}") from error
    if now != was:
        raise WrongArgument(
            f"{data} holds other images of {found.name} than {file} was trained on: "
            f"their data_sha256 is {now}, was {was}"
        )


def repeat(task: Task, data: str, device: str, epochs: int) -> list[dict[str, Any]]:
    """The first epochs of a task, trained in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder) / "results", Path(folder) / "runs", data, device)
        process = start(task, None, place)
        try:
            while len(curve := read_curve(place.runs / task.name)) < epochs and process.is_alive():
                time.sleep(SECONDS_BETWEEN_LOOKS)
            curve = read_curve(place.runs / task.name)
        finally:
            process.terminate()
            process.join()
        if len(curve) < epochs:
            reason = failure(task, place) or f"exit code {process.exitcode}"
            raise CannotRun(f"{task.name} cannot be repeated here: {reason}")
    return curve[:epochs]


def differences(run: dict[str, Any], device: str) -> list[str]:
    """What is not as it was when a run was made."""
    here = {"hardware": hardware(pick_device(device))["device"], "commit": commit(), **versions()}
    was = {"hardware": run["hardware"]["device"], "commit": run["commit"], **run["versions"]}
    return [f"{name} {here[name]}, was {was.get(name)}" for name in here if here[name] != was.get(name)]
