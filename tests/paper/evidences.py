"""Evidence made by hand."""

from typing import Any

from mocapsnet.paper.benches import Measured
from mocapsnet.paper.evidence import Evidence, Outcome
from mocapsnet.paper.trained import Trained


def outcome(
    trained: Trained, recipe: str, seed: int, accuracy: float | None, error: str = "NotFinite: step 1"
) -> Outcome:
    """A run of a recipe; without accuracy it failed."""
    name = (
        f"{trained.dataset}-{trained.model}-{trained.routing}-{trained.optimizer}-b{trained.blocks}-{recipe}"
    )
    return Outcome(
        name=name,
        recipe=recipe,
        **trained._replace(
            lr=trained.lr or 0.001, capsules=trained.capsules or 32, batch=trained.batch or 128
        )._asdict(),
        parameters=1000,
        seed=seed,
        accuracy=accuracy,
        seconds=1.0,
        device="NVIDIA H200",
        error="" if accuracy is not None else error,
        smoke=False,
        note="",
        file=f"accuracy/{name}-s{seed}-nvidia-h200.json",
    )


def runs(trained: Trained, *accuracies: float | None, recipe: str = "stable") -> list[Outcome]:
    """A run per accuracy."""
    return [outcome(trained, recipe, seed, accuracy) for seed, accuracy in enumerate(accuracies)]


def steps(
    model: str, slope: float, metric: str = "peak_mib", what: str = "step", **options: Any
) -> list[Measured]:
    """Eight depths on a line that starts at 1000."""
    known = {
        "dataset": "cifar10",
        "routing": "rba",
        "capsules": 32,
        "released": False,
        "device": "NVIDIA H200",
    }
    empty = {"seconds": None, "peak_mib": None}
    return [
        Measured(
            what=what,
            model=model,
            blocks=blocks,
            file=f"speed/{what}.csv",
            **known | empty | {metric: 1000 + slope * blocks} | options,
        )
        for blocks in range(1, 9)
    ]


def evidence(*groups: list[Any]) -> Evidence:
    """All of them."""
    rows = [row for group in groups for row in group]
    return Evidence(
        runs=[row for row in rows if isinstance(row, Outcome)],
        measured=[row for row in rows if isinstance(row, Measured)],
        broken=[row for row in rows if not isinstance(row, Outcome | Measured)],
    )
