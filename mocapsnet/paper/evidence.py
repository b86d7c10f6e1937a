"""What results/ holds: trained runs, measured steps, depths at which inversion breaks."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, get_args, get_type_hints

from mocapsnet.errors import BrokenFile, NotFinite, OutOfRange, named
from mocapsnet.paper.benches import Broken, Measured, alike, breaking, kept, sound, steps, whole


class Outcome(NamedTuple):
    """A trained run: what was trained, and its test accuracy after the last epoch in percent."""

    name: str
    recipe: str
    dataset: str
    model: str
    blocks: int
    routing: str
    optimizer: str
    lr: float | None
    capsules: int | None
    batch: int | None
    parameters: int
    seed: int
    accuracy: float | None
    """None where the run failed."""
    seconds: float
    device: str
    error: str
    smoke: bool
    note: str
    file: str
    data_sha256: str = ""
    """Of its images; nothing where they are not told or not all of the data set's."""


@dataclass(frozen=True)
class Evidence:
    """All of it."""

    runs: Sequence[Outcome] = ()
    measured: Sequence[Measured] = ()
    broken: Sequence[Broken] = ()

    @property
    def smoke(self) -> bool:
        """Whether any of it is a smoke run's."""
        return any(run.smoke for run in self.runs) or any(row.smoke for row in self.measured)

    def select(self, recipe: str, **wanted: object) -> list[Outcome]:
        """The runs of a recipe whose fields are as wanted, one per seed, by seed.

        Where no rate or size is wanted, the recipe itself is meant and no variant of it; else, of several
        variants, the one named shortest.
        """
        found = [run for run in self.runs if run.recipe == recipe and matches(run, wanted)]
        if all(wanted.get(name) is None for name in ("lr", "capsules", "batch")):
            found = [run for run in found if run.name.endswith(f"-{recipe}")]
        name = min((run.name for run in found), key=lambda name: (len(name), name), default="")
        return once([run for run in found if run.name == name])

    def steps(self, what: str, released: bool = False, **wanted: object) -> list[Measured]:
        """What was measured of a network, by depth, on the device that says most; the last file counts."""
        found = [
            row
            for row in self.measured
            if row.what == what and row.released == released and matches(row, wanted)
        ]
        depths = Counter(row.device for row in found)
        # A GPU's before a CPU's, which has no peak.
        peaks = {row.device for row in found if row.peak_mib is not None}
        best = max(sorted(depths), key=lambda device: (device in peaks, depths[device]), default="")
        unique = {row.blocks: row for row in found if row.device == best}
        return [unique[blocks] for blocks in sorted(unique)]


def once(runs: Sequence[Outcome]) -> list[Outcome]:
    """One run per seed: a finished one, then one of the device that has most of them."""
    devices = Counter(run.device for run in runs)
    order = sorted(runs, key=lambda run: (run.accuracy is None, -devices[run.device], run.file))
    # The first of a seed stays.
    unique = {run.seed: run for run in reversed(order)}
    return [unique[seed] for seed in sorted(unique)]


def matches(row: Any, wanted: dict[str, object]) -> bool:
    """Whether every field that is wanted is as wanted; None wants nothing."""
    return all(value is None or getattr(row, name) == value for name, value in wanted.items())


def read(results: Path) -> Evidence:
    """Everything under a results folder, in the order of its files' names."""
    accuracy = results / "accuracy"
    paths = [*sorted(accuracy.glob("*.json")), *sorted((accuracy / "failed").glob("*.json"))]
    runs = [outcome(path, results) for path in paths]
    check_data(runs)
    return Evidence(
        runs=runs,
        measured=[*alike(whole(sound(results, [*steps(results), *kept(results)])))],
        broken=[*sound(results, breaking(results))],
    )


def outcome(path: Path, results: Path) -> Outcome:
    """A run's record; one that is no record is named."""
    try:
        run = json.loads(path.read_text())
        config = run.get("config") or {}
        network = config.get("network", {})
        # Runs that were not made by a recipe have none; they stand in no table of the paper's.
        told = run.get("recipe") or {
            "name": path.stem,
            "recipe": "",
            "dataset": config["dataset"],
            "model": network["model"].lower(),
            **{name: network[name] for name in ("blocks", "routing")},
            "optimizer": config["optimizer"],
        }
        if "recipe" not in run:
            told["name"] = told["name"].rsplit("-seed", 1)[0]
        training = told.get("training", {})
        check_run(run)
        found = Outcome(
            **{name: told[name] for name in Outcome._fields[:7]},
            # What a recipe leaves open is the paper's.
            lr=training.get("lr", config.get("lr")),
            capsules=told.get("network", network).get("capsules", 32),
            batch=training.get("batch", config.get("batch")),
            parameters=run.get("parameters", 0),
            seed=run["seed"],
            accuracy=None if "error" in run else 100 * run["test_accuracy"],
            seconds=run.get("seconds", 0.0),
            device=where(run["hardware"]),
            error=run.get("error", ""),
            smoke=run.get("smoke", False),
            note=run.get("note", ""),
            file=path.relative_to(results).as_posix(),
            data_sha256=digest(config),
        )
        check_values(found)
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenFile(f"{path} is not a run's record: {named(error)}; delete it to run it anew") from error


def check_values(run: Outcome) -> None:
    """Refuse what is not of its field's type, and numbers that nothing can have."""
    for name, kind in get_type_hints(Outcome).items():
        value, kinds = getattr(run, name), get_args(kind) or (kind,)
        # A whole number is a number, but true is none.
        if type(value) not in kinds and not (type(value) is int and float in kinds):
            raise TypeError(f"{name} {value!r}")
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            raise ValueError(f"{name} {value!r}")
    if run.accuracy is not None and run.accuracy > 100:
        raise ValueError(f"accuracy {run.accuracy!r} %")


def digest(config: dict[str, Any]) -> str:
    """Of a run's images, where it took all there are: a part of them has another one."""
    return "" if config.get("limit") or config.get("validation") else config.get("data_sha256", "")


def check_data(runs: Iterable[Outcome]) -> None:
    """Refuse whole runs of one data set that were trained on different images."""
    first: dict[str, Outcome] = {}
    for run in runs:
        if run.data_sha256 and not run.smoke:
            other = first.setdefault(run.dataset, run)
            if run.data_sha256 != other.data_sha256:
                raise BrokenFile(
                    f"{other.file} and {run.file} were trained on different images of {run.dataset}; "
                    "move one of them to another folder"
                )


def check_run(run: dict[str, Any]) -> None:
    """Refuse a finished run that was trained otherwise than its recipe says, or ended elsewhere."""
    if "error" not in run:
        check_recipe(run)
        check_end(run)


def check_recipe(run: dict[str, Any]) -> None:
    """Refuse a run whose settings, or those of one of its members, are not those of its recipe."""
    told = run.get("trained", run.get("recipe"))
    if told is None:
        return
    # Members have seeds of their own, and the first one's is told.
    seed = told.get("members", 1) * run["seed"]
    # What a recipe does not name was all images.
    wanted = {"limit": None, "validation": 0.0, "seed": seed, "model": told["kind"]}
    wanted |= {name: told[name] for name in ("dataset", "blocks", "routing")}
    wanted |= {**told.get("network", {}), **told.get("training", {})}
    network = run["config"].get("network", {})
    for one in network.get("members", [network]):
        config = {**run["config"], **one}
        if wrong := [name for name, value in wanted.items() if config.get(name, value) != value]:
            name = wrong[0]
            raise ValueError(f"its recipe says {name} {wanted[name]!r}, it was trained with {config[name]!r}")


def check_end(run: dict[str, Any]) -> None:
    """Refuse a finished run of a recipe that has no curve, or one that ends elsewhere than the run says."""
    if not (curve := run.get("curve")):
        if "recipe" in run and run["recipe"].get("members", 1) == 1:
            raise ValueError("it has no curve")
        return
    told = run["config"]["epochs"], run["test_accuracy"]
    found = curve[-1]["epoch"], curve[-1]["test_accuracy"]
    if told != found:
        raise ValueError(f"it tells epoch and accuracy {told}, its curve ends with {found}")


def where(hardware: dict[str, Any]) -> str:
    """The device of a run, for a table."""
    threads = hardware["threads"]
    return f"{threads} CPU thread{'s' * (threads > 1)}" if hardware["device"] == "cpu" else hardware["device"]


def diverged(error: str) -> bool:
    """Whether a run ended because its numbers were none, and would again."""
    return error.split(":")[0] in (NotFinite.__name__, OutOfRange.__name__)


def failed(runs: Sequence[Outcome]) -> str:
    """What a cell without accuracies says."""
    return f"failed: {runs[0].error.split(':')[0]}" if runs else "not run"


def accuracies(runs: Sequence[Outcome]) -> list[float]:
    """Of those that finished, by seed."""
    return [run.accuracy for run in sorted(runs, key=lambda run: run.seed) if run.accuracy is not None]


def summary(values: Sequence[float]) -> str:
    """Mean ± standard deviation."""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def grouped(runs: Iterable[Outcome], key: Callable[[Outcome], Any]) -> dict[Any, list[Outcome]]:
    """Runs by a key, in the order of their first one."""
    groups: dict[Any, list[Outcome]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups
