"""One trained model, completely described, and how to train it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from mocapsnet.data import Dataset
from mocapsnet.data.augment import windowed
from mocapsnet.nn.base import Network
from mocapsnet.nn.load import network_class
from mocapsnet.ops.arguments import one_of
from mocapsnet.train.ensemble import fit_ensemble, member
from mocapsnet.train.fit import Run, fit
from mocapsnet.train.state import check_seed

# Arguments of fit that say what a run is, not where.
TRAINING = signature(fit).parameters.keys() - {"model", "dataset", "seed", "device", "output", "resume"}


@dataclass(frozen=True)
class Recipe:
    """One trained model, completely described.

    >>> stable("cifar10", "mocapsnet", blocks=5).fit(mc.data.load("cifar10"), seed=0, output="runs/b5")
    """

    name: str
    """Unique, and fit for a file."""
    recipe: str
    dataset: str
    model: str
    blocks: int
    routing: str
    optimizer: str
    kind: str
    """The network's class."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """What the class is called with, beside image_shape and classes."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """What fit is called with, beside seed, device and output."""
    members: int = 1
    """Models whose lengths are summed."""

    def build(self, image_shape: tuple[int, int, int], classes: int, seed: int) -> Network:
        """One network for images of this shape, its weights drawn by seed."""
        check_seed(seed)
        torch.manual_seed(seed)
        seen = windowed(image_shape, self.training.get("window"))
        told = {"image_shape": seen, "classes": classes, **self.network}
        return network_class(self.kind).from_config(told)

    def fit(self, dataset: Dataset, seed: int = 0, **where: Any) -> Run:
        """Train in a run folder, going on where a run was stopped; where is device, output and the like."""
        if self.members == 1:
            model = self.build(dataset.image_shape, dataset.classes, seed)
            return fit(model, dataset, seed=seed, **{**self.training, **where})
        output = Path(where.pop("output", None) or Path("runs") / f"{self.name}-s{seed}")

        def build(number: int) -> Network:
            return self.build(dataset.image_shape, dataset.classes, number)

        return fit_ensemble(build, dataset, self.seeds(seed), output, **{**self.training, **where})

    def seeds(self, seed: int) -> Sequence[int]:
        """Those of the members; no two ensembles share one."""
        return range(self.members * seed, self.members * (seed + 1))

    def fit_member(self, dataset: Dataset, seed: int, number: int, output: Path, **where: Any) -> Run:
        """Train one member of an ensemble, which fit will find in its folder."""
        return self.one().fit(dataset, self.seeds(seed)[number], output=member(output, number), **where)

    def one(self) -> "Recipe":
        """That of a member of an ensemble."""
        name, model = (told.replace("-ensemble", "") for told in (self.name, self.model))
        return replace(self, name=name, model=model, members=1)

    def smoke(self) -> "Recipe":
        """The same path in seconds: a small network, one epoch of few embedded digits."""
        small = {"channels": 16, "capsules": 4, "class_dim": 4, "types": 2}
        short = {"warm_up": 0.5} if "warm_up" in self.training else {}
        own = signature(network_class(self.kind)).parameters
        changes = {name: value for name, value in small.items() if name in own}
        return replace(
            self,
            name=f"{self.name}-smoke",
            dataset="mnist6k",
            network={**self.network, **changes, "blocks": min(self.blocks, 2)}
            if "blocks" in own
            else {**self.network, **changes},
            training={**self.training, **short, "epochs": 1, "batch": 50, "limit": 100},
            members=min(self.members, 2),
        )


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """The same with other arguments of the network or of fit, which its name tells."""
    network = {name: value for name, value in changes.items() if name not in TRAINING}
    training = {name: value for name, value in changes.items() if name in TRAINING}
    known = signature(network_class(recipe.kind)).parameters
    for name in network:
        one_of("what is changed", name, [*known, *sorted(TRAINING)])
    words = "".join(f"-{name.replace('_', '')}{str(value).lower()}" for name, value in changes.items())
    return replace(
        recipe,
        name=recipe.name + words,
        blocks=changes.get("blocks", recipe.blocks),
        network={**recipe.network, **network},
        training={**recipe.training, **training},
    )
