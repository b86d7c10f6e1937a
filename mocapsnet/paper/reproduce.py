"""`mocapsnet reproduce`: train or measure what a table or figure needs, then write the report."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import a_folder, at_least, one_of
from mocapsnet.paper.benches import SMALL, Measured
from mocapsnet.paper.evidence import read
from mocapsnet.paper.figures import NETWORKS
from mocapsnet.paper.grid import chosen, distinct, ordered
from mocapsnet.paper.plan import TABLES
from mocapsnet.paper.printed import DEPTHS
from mocapsnet.paper.records import Place
from mocapsnet.paper.report import write_report
from mocapsnet.paper.settings import ReproduceSettings
from mocapsnet.paper.sweep import Summary, sweep
from mocapsnet.train.device import pick_device
from mocapsnet.train.record import hardware

SHAPES = ("mnist", "cifar10", "svhn")
# What is measured, not trained, and on which shapes.
BENCHED = {"table-4": SHAPES, "figure-3": SHAPES, "figure-4": ("cifar10",), "all": SHAPES}
WHAT = tuple(dict.fromkeys((*TABLES, *BENCHED, "report")))


class Measurement(NamedTuple):
    """What is measured of which networks, on which shapes and at which depths."""

    what: str
    networks: Sequence[str]
    flags: Sequence[str] = ()
    datasets: Sequence[str] = SHAPES
    depths: Sequence[int] = DEPTHS
    capsules: int = 32

    def folder(self, results: Path) -> Path:
        """Where its files go."""
        return results / ("memory" if self.what == "memory" else "speed")

    def done(self, rows: Sequence[Measured], wanted: Sequence[int]) -> bool:
        """Whether rows have all networks at these depths; one with no more than a peak waits for its time."""
        there = {
            ("released-" * row.released + row.model, row.blocks)
            for row in rows
            if row.seconds is not None or row.kept_mib is not None
        }
        return {*product(self.networks, wanted)} <= there

    def words(self, rows: Sequence[Measured], wanted: Sequence[int]) -> list[str]:
        """Flags for these depths and for those of rows, which are in the file that is written anew."""
        ours, released = (
            sorted({*wanted, *(row.blocks for row in rows if row.released == theirs)})
            for theirs in (False, True)
        )
        return [f"--depths={ours}", *(flag.format(depths=released) for flag in self.flags)]


BENCHES = (
    Measurement(
        "step", (*NETWORKS, "released-rescapsnet", "released-mocapsnet"), ["--released_depths={depths}"]
    ),
    Measurement("inference", NETWORKS),
    Measurement("memory", (*NETWORKS, "mocapsnet-stored"), ["--of=network"]),
    # The paper tells what ResCapsNet takes with twice the capsules.
    Measurement(
        "step",
        ["rescapsnet"],
        ["--networks=[rescapsnet]", "--naive_depths=[]", "--capsules=64"],
        ["cifar10"],
        [2],
        64,
    ),
)


def reproduce(settings: ReproduceSettings, what: str | None) -> tuple[Summary, list[str]]:
    """How the sweep went, and which benches failed; then the report is written."""
    if what is None:
        raise WrongArgument(f"give what to reproduce: {', '.join(WHAT)}; or --verify FILE")
    one_of("what", what, WHAT)
    at_least("seeds", settings.repeats(), 1)
    at_least("jobs", settings.jobs, 1)
    a_folder("output", settings.results())
    a_folder("runs", settings.run_folders())
    place = Place(
        settings.results(),
        settings.run_folders(),
        settings.data,
        settings.device,
        settings.smoke,
        settings.note,
    )
    check_kind(place)
    recipes = chosen(TABLES, what, settings.only)
    recipes = distinct(recipes, smoke=True) if settings.smoke else recipes
    measured = benched(what, settings.only)
    if what == "all" and settings.only:
        print("benches are left out, as --only was given; `reproduce table-4` measures them", flush=True)
    # Runs first: what they lack is told at once.
    summary = sweep(ordered(recipes, settings.repeats()), place, settings.jobs, settings.download)
    failed = measure(place, *measured)
    place.results.mkdir(parents=True, exist_ok=True)
    write_report(place.results)
    return summary, failed


def check_kind(place: Place) -> None:
    """Refuse results that a smoke run and whole runs would share: a cell holds one or the other."""
    if other := next((run for run in read(place.results).runs if run.smoke != place.smoke), None):
        kinds = ("whole runs", "a smoke run")
        raise WrongArgument(
            f"{place.results} holds {kinds[other.smoke]}, such as {other.file}; "
            f"give {kinds[place.smoke]} another folder with --output"
        )


def benched(what: str, only: str) -> tuple[list[str], list[int]]:
    """The data sets and depths that are measured for a table or a figure; only may name some of them."""
    if what not in BENCHED or (what == "all" and only):
        return [], []
    found = {"dataset": [*BENCHED[what]], "blocks": [*map(str, DEPTHS)]}
    for word in only.lower().split():
        name, _, told = word.rpartition("=")
        there, wanted = found.get(name or "dataset", []), told.split(",")
        if not {*wanted} <= {*there}:
            names = f"data sets of {what}, {', '.join(BENCHED[what])}, and blocks=1 to 8"
            raise WrongArgument(f"only must name {names}, got {only!r}")
        found[name or "dataset"] = [one for one in there if one in wanted]
    return found["dataset"], [int(blocks) for blocks in found["blocks"]]


def measure(place: Place, datasets: Sequence[str] = SHAPES, depths: Sequence[int] = DEPTHS) -> list[str]:
    """Bench every network at these depths on these shapes, unless this device did; gives what failed."""
    small = [*(f"--{name}={value}" for name, value in SMALL.items()), "--repeats=2"] if place.smoke else []
    machine = hardware(device := pick_device(place.device))
    here = machine["cpu" if device.type == "cpu" else "device"]
    # What another data set lends is not measured.
    measured = [row for row in read(place.results).measured if not row.like]
    found = [row for row in measured if (row.device, row.smoke) == (here, place.smoke)]
    failed = []
    for dataset, one in product(datasets[:1] if place.smoke else datasets, BENCHES):
        asked = {min(blocks, 2) if place.smoke else blocks for blocks in depths}
        wanted = [blocks for blocks in one.depths if blocks in asked]
        rows = [
            row for row in found if (row.what, row.dataset, row.capsules) == (one.what, dataset, one.capsules)
        ]
        if dataset not in one.datasets or one.done(rows, wanted):
            continue
        folder = one.folder(place.results)
        words = [f"--dataset={dataset}", *one.words(rows, wanted), f"--device={place.device}", *small]
        folder.mkdir(parents=True, exist_ok=True)
        if bench(one.what, [*words, f"--output={folder}"], folder / f"{one.what}-{dataset}.log"):
            failed.append(f"bench {one.what} of {dataset}")
    return failed


def bench(what: str, words: list[str], log: Path) -> int:
    """`mocapsnet bench` in a process of its own, as a clean measurement needs; its log stays if it fails."""
    command = [sys.executable, "-m", "mocapsnet.cli", "bench", what, *words]
    print(" ".join(["mocapsnet", *command[3:]]))
    with log.open("w") as file:
        code = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    print("  failed: " + (log.read_text().splitlines() or [str(code)])[-1] if code else "  done")
    if not code:
        log.unlink()
    return code
