"""Which recipes fill which table of the paper, and what is trained beside its tables."""

from typing import Any

from mocapsnet.paper.others import convnet, sabour, sabour_ensemble, xi_capsnet, xi_ensemble, xi_two_conv
from mocapsnet.paper.printed import MODELS, SETS
from mocapsnet.paper.recipe import Recipe
from mocapsnet.paper.recipes import (
    ablation,
    best,
    best_ensemble,
    control,
    deep,
    figure_2_skip,
    recipe,
    stable,
)

# Ours first: what a reader asks for first.
THREE = ("stable", "released", "written")


def depths(*datasets: str) -> list[Recipe]:
    """Tables 1 and 2: both networks at one to eight blocks, and the plain one, said to learn nothing."""
    cells = [
        recipe(kind, dataset, model, blocks)
        for kind in THREE
        for dataset in datasets
        for model in MODELS
        for blocks in range(1, 9)
    ]
    plain = [recipe(kind, d, "capsnet", blocks) for kind in THREE for d in datasets for blocks in (1, 4)]
    return cells + plain + [stable(dataset, "capsnet", 0) for dataset in datasets]


def table_3() -> list[Recipe]:
    """CIFAR-10: systems of others, a plain convolutional network, both optimizers and all routings."""
    others = [xi_capsnet(), xi_two_conv(), xi_ensemble(), sabour(), sabour_ensemble(), convnet("cifar10")]
    cells = [
        recipe(kind, "cifar10", model, blocks, routing, optimizer)
        for kind in THREE
        for blocks in (1, 3, 5)
        for routing in ("rba", "sda", "em")
        for optimizer in ("adam", "ranger21")
        for model in MODELS
        if (kind, routing) != ("released", "em")
    ]
    return [*others, stable("cifar10", "capsnet", 0), *cells]


def table_5() -> list[Recipe]:
    """CIFAR-10: learning rates, capsules and batch sizes, one changed at a time."""
    rows: list[dict[str, Any]] = [
        {},
        {"batch": 64},
        {"batch": 256},
        {"capsules": 64},
        {"lr": 0.001},
        {"lr": 0.1},
    ]
    return [ablation(kind, model, **row) for kind in THREE for row in rows for model in MODELS]


def deepest() -> list[Recipe]:
    """20 and 50 blocks, and ResCapsNet around the depths where the paper says that it stops learning."""
    momentum = [deep(dataset, blocks=blocks) for blocks in (20, 50) for dataset in ("svhn", "cifar10")]
    said = [("released", "svhn"), ("released", "cifar10"), ("written", "svhn")]
    residual = [
        recipe(kind, "cifar10", "rescapsnet", blocks, routing)
        for kind in ("stable", "written")
        for routing, around in (("rba", (4, 5, 6, 20)), ("sda", (7, 8, 20)), ("em", (7, 8, 20)))
        for blocks in around
    ]
    return momentum + [recipe(kind, dataset, "mocapsnet", 20) for kind, dataset in said] + residual


def controls() -> list[Recipe]:
    """Why the paper's two networks differ on CIFAR-100: from both of its networks, one change at a time."""
    changes: list[tuple[str, dict[str, Any]]] = [
        ("rescapsnet", {"doubled": True}),
        ("rescapsnet", {"doubled": True, "routing_bias": 0.1}),
        ("rescapsnet", {"routing_bias": 0.1}),
        ("rescapsnet", {"weight_std": 0.1}),
        ("rescapsnet", {"lr": 1e-3}),
        ("mocapsnet", {"doubled": False}),
        ("mocapsnet", {"doubled": False, "routing_bias": 0.1}),
        ("mocapsnet", {"routing_bias": 0.1}),
        ("mocapsnet", {"weight_std": 0.1}),
        ("mocapsnet", {"lr": 1e-3}),
    ]
    return [control("cifar100", model, 8, **change) for model, change in changes]


TABLES: dict[str, list[Recipe]] = {
    "table-1": depths("mnist", "svhn"),
    "table-2": depths("cifar10", "cifar100"),
    "table-3": table_3(),
    # Memory: nothing is trained for it.
    "table-4": [],
    "table-5": table_5(),
    "deep": deepest(),
    "controls": controls(),
    "skip": [figure_2_skip()],
    "best": [
        *(best(dataset, "mocapsnet", blocks) for dataset in SETS for blocks in (1, 5)),
        best_ensemble(),
    ],
}
PLANNED = {recipe.name: recipe for table in TABLES.values() for recipe in table}
