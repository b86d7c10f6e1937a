"""One trained model, completely described (a stand-in: only `stable`, on today's fit)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mocapsnet.data import Dataset
from mocapsnet.nn.network import NETWORKS, CapsuleNetwork
from mocapsnet.train.fit import Run, fit


@dataclass(frozen=True)
class Recipe:
    """One trained model, completely described."""

    name: str
    recipe: str
    dataset: str
    model: str
    blocks: int
    routing: str
    optimizer: str
    kind: str
    network: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    members: int = 1

    def build(self, image_shape: tuple[int, int, int], classes: int, seed: int) -> CapsuleNetwork:
        """The network, its weights drawn by the seed."""
        torch.manual_seed(seed)
        network = {name.lower(): network for name, network in NETWORKS.items()}[self.model]
        return network(image_shape, classes, **self.network)

    def fit(self, dataset: Dataset, seed: int, **where: Any) -> Run:
        """Train in a run folder."""
        model = self.build(dataset.image_shape, dataset.classes, seed)
        return fit(model, dataset, seed=seed, **self.training, **where)

    def smoke(self) -> "Recipe":
        """The same path in seconds."""
        small = {"channels": 16, "capsules": 4, "class_dim": 4, "blocks": min(self.blocks, 2)}
        return replace(
            self,
            name=f"{self.name}-smoke",
            dataset="mnist6k",
            network={**self.network, **small},
            training={**self.training, "epochs": 1, "batch": 50, "limit": 100},
        )


def recipe(
    recipe: str,
    dataset: str,
    model: str,
    blocks: int = 1,
    routing: str = "rba",
    optimizer: str = "adam",
    **changes: Any,
) -> Recipe:
    """A recipe by what it trains."""
    name = f"{dataset}-{model}-{routing}-{optimizer}-b{blocks}-{recipe}"
    name += "".join(f"-{key}{value}" for key, value in changes.items())
    network = {"blocks": blocks, "routing": routing}
    training = {"epochs": 30 if dataset == "mnist" else 60, "batch": 128, "optimizer": optimizer}
    for key, value in changes.items():
        (network if key == "capsules" else training)[key] = value
    return Recipe(name, recipe, dataset, model, blocks, routing, optimizer, model, network, training)


BOTH = ("rescapsnet", "mocapsnet")
TABLES = {
    "table-1": [recipe("stable", d, m, b) for d in ("mnist", "svhn") for m in BOTH for b in range(1, 9)],
    "table-2": [
        recipe("stable", d, m, b) for d in ("cifar10", "cifar100") for m in BOTH for b in range(1, 9)
    ],
}
