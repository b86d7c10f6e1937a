"""What `mocapsnet bench` and scripts/breaking_depths.py left under results/: rows of their files."""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from mocapsnet.errors import BrokenFile, named

MIB = 2**20
# The networks as the paper has them, in the columns of a bench; and as a smoke run has them.
USUAL = {
    "batch": "128",
    "channels": "256",
    "capsule_dim": "8",
    "gamma": "0.9",
    "backend": "auto",
    "memory": "reverse",
    "arithmetic": "exact",
}
SMALL = {"batch": "4", "channels": "8"}
SMOKE = {**USUAL, **SMALL}
# The released networks have a way of their own with the rest.
SIZES = ("batch", "channels", "capsule_dim", "gamma")

# Their images and numbers of classes are alike: what is measured with one is measured with the other.
ALIKE = {"svhn": "cifar10"}


class Measured(NamedTuple):
    """A step or an inference of one network at one depth, as `mocapsnet bench` wrote it."""

    what: str
    model: str
    dataset: str
    blocks: int
    routing: str
    capsules: int
    seconds: float | None
    peak_mib: float | None
    device: str
    released: bool
    file: str
    kept_mib: float | None = None
    """Kept for the backward pass."""
    smoke: bool = False
    like: str = ""
    """The data set that was measured in place of this one, which is like it."""


class Broken(NamedTuple):
    """The number of layers at which reconstructed gradients are off by a thousandth."""

    arithmetic: str
    gamma: float
    layers: int | None
    file: str


Row = TypeVar("Row", Measured, Broken)


@contextmanager
def table(path: Path) -> Iterator[Iterable[dict[str, str]]]:
    """The rows of a file, which is named where they are not as expected."""
    try:
        with path.open(newline="") as file:
            yield csv.DictReader(file)
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise broken(path, named(error)) from error


def broken(path: Path, why: str) -> BrokenFile:
    """A file that is none of ours."""
    return BrokenFile(f"{path} is not what mocapsnet bench writes: {why}; delete it to measure it anew")


def sound(results: Path, rows: Iterable[Row]) -> Iterator[Row]:
    """Rows, refused where one has a number that nothing can have."""
    for row in rows:
        for name, value in row._asdict().items():
            if isinstance(value, int | float) and not 0 <= value < math.inf:
                raise broken(results / row.file, f"{name} {value!r}")
        yield row


def steps(results: Path) -> Iterable[Measured]:
    """The whole networks that `mocapsnet bench step` and `inference` measured; other files are passed by."""
    for path in sorted([*(results / "speed").glob("*.csv"), *(results / "memory").glob("*.csv")]):
        with table(path) as rows:
            for row in rows:
                name = (row.get("network") or row.get("model") or row.get("variant") or "").lower()
                model = name.removeprefix("released").strip("- ")
                seconds = row.get("seconds") or row.get("seconds_median")
                if model not in ("capsnet", "rescapsnet", "mocapsnet") or not row.get("dataset"):
                    continue
                released = name.startswith("released")
                seen = {column: row.get(column) or "" for column in SIZES} if released else row
                usual = has(seen, USUAL)
                if not usual and not has(seen, SMOKE):
                    continue
                yield Measured(
                    what=row.get("what") or path.stem.split("-")[0],
                    model=model,
                    dataset=row["dataset"],
                    blocks=int(row["blocks"]),
                    routing=row.get("routing") or "rba",
                    capsules=int(row.get("capsules") or 32),
                    seconds=float(seconds) if seconds else None,
                    peak_mib=float(row["peak_bytes"]) / MIB if row.get("peak_bytes") else None,
                    device=row.get("device") or "",
                    released=released,
                    file=path.relative_to(results).as_posix(),
                    smoke=not usual,
                )


def has(row: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Whether a row of a bench has these values, in those columns that it fills."""
    return all((row.get(name) or value) == value for name, value in values.items())


def kept(results: Path) -> Iterable[Measured]:
    """What `mocapsnet bench memory --of network` found that the backward pass keeps of a network."""
    models = {
        "exact-reverse": "mocapsnet",
        "exact-store": "mocapsnet-stored",
        "residual": "rescapsnet",
        "plain": "capsnet",
    }
    for path in sorted((results / "memory").glob("memory-network-*.csv")):
        with table(path) as rows:
            for row in rows:
                usual = has(row, USUAL)
                if row["variant"] in models and row["kept_bytes"] and (usual or has(row, SMOKE)):
                    yield Measured(
                        what="memory",
                        model=models[row["variant"]],
                        dataset=row["dataset"],
                        blocks=int(row["blocks"]),
                        routing=row["routing"],
                        capsules=int(row["capsules"]),
                        seconds=None,
                        peak_mib=None,
                        device=row["device"],
                        released=False,
                        file=path.relative_to(results).as_posix(),
                        kept_mib=float(row["kept_bytes"]) / MIB,
                        smoke=not usual,
                    )


def whole(rows: Iterable[Measured]) -> list[Measured]:
    """The rows that are not a smoke run's, where there are any: no figure has both."""
    rows = [*rows]
    return [row for row in rows if not row.smoke] or rows


def alike(rows: Iterable[Measured]) -> Iterable[Measured]:
    """These rows, and again as those of a data set whose networks were not measured but are like theirs."""
    rows = [*rows]
    there = {(row.what, row.dataset, row.released) for row in rows}
    yield from rows
    for dataset, other in ALIKE.items():
        for row in rows:
            if row.dataset == other and (row.what, dataset, row.released) not in there:
                yield row._replace(dataset=dataset, like=other)


def breaking(results: Path) -> Iterable[Broken]:
    """What scripts/breaking_depths.py wrote about capsule layers."""
    for path in sorted((results / "memory").glob("breaking-depths-*.csv")):
        with table(path) as rows:
            for row in rows:
                if row["layer"] == "capsules":
                    layers = int(row["depth at 1e-3"]) if row["depth at 1e-3"] else None
                    name = path.relative_to(results).as_posix()
                    yield Broken(row["arithmetic"], float(row["gamma"]), layers, name)
