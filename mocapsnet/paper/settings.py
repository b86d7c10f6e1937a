"""A reproduction, completely described. This file needs no torch: the command line reads it quickly."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mocapsnet.errors import WrongArgument

# What has no use for some settings: why, and for which.
UNREAD = {
    "report": ("is of all results", ("only", "seeds", "epochs", "jobs", "runs", "note")),
    "--verify": ("repeats one run", ("only", "seeds", "smoke", "jobs", "output", "runs", "note")),
}
TRAINED = ("trains the epochs of its recipes", ("epochs",))


@dataclass(frozen=True)
class ReproduceSettings:
    """Everything that `mocapsnet reproduce` takes beside what is reproduced.

    Attributes:
        seeds: Runs of every recipe, with seeds 0, 1, ...; null is 3, and 1 for a smoke run.
        only: Which recipes, such as "stable cifar10 blocks=1,5 routing=rba,sda"; all words must fit.
        smoke: The same path in minutes, with small networks and one epoch of embedded digits.
        data: The folder that holds data sets.
        download: Fetch official files that are not there.
        device: Where to train; auto takes the best there is.
        jobs: Runs at the same time, each in a process of its own; several may share one GPU.
        output: The folder for results and the report; null is results, and runs/smoke for a smoke run.
        runs: The folder for run folders; null is runs/reproduce, and runs/smoke/runs for a smoke run.
        note: Words for the record of every run, such as where its data came from.
        verify: A run's json: repeat its first epochs and compare the losses.
        epochs: How many epochs --verify repeats.
    """

    seeds: int | None = None
    only: str = ""
    smoke: bool = False
    data: str = "data"
    download: bool = False
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    jobs: int = 1
    output: str | None = None
    runs: str | None = None
    note: str = ""
    verify: str | None = None
    epochs: int = 1

    def check(self, target: str | None) -> None:
        """Refuse what would not be read."""
        if self.verify is not None and target is not None:
            raise WrongArgument(
                f"give either what to reproduce or --verify FILE, got {target!r} and --verify"
            )
        what = target or ("reproduce" if self.verify is None else "--verify")
        why, names = UNREAD.get(what, TRAINED)
        for name in names:
            if (given := getattr(self, name)) != getattr(ReproduceSettings, name):
                raise WrongArgument(f"{what} {why} and takes no --{name}, got {given!r}")

    def results(self) -> Path:
        """Where results go."""
        return Path(self.output or ("runs/smoke" if self.smoke else "results"))

    def run_folders(self) -> Path:
        """Where runs with their checkpoints go."""
        return (
            Path(self.runs)
            if self.runs
            else self.results() / "runs"
            if self.smoke
            else Path("runs/reproduce")
        )

    def repeats(self) -> int:
        """How many seeds."""
        return self.seeds if self.seeds is not None else 1 if self.smoke else 3
