"""What the paper printed: every cell of its five tables, the numbers of its figures and of its text."""

from typing import NamedTuple

DEPTHS = range(1, 9)


class Cell(NamedTuple):
    """One number of a table, and what was trained or measured for it; None where the table does not say."""

    table: str
    dataset: str
    model: str
    blocks: int
    value: float
    std: float | None = None
    routing: str = "rba"
    optimizer: str = "adam"
    lr: float | None = None
    capsules: int | None = None
    batch: int | None = None
    about: bool = False
    """Printed with ≈."""


# Tables 1 and 2: mean and standard deviation of three runs at 1 to 8 blocks, in percent.
ACCURACY = {
    ("table-1", "mnist", "rescapsnet"): (
        (99.41, 0.01),
        (99.28, 0.05),
        (99.30, 0.08),
        (99.38, 0.03),
        (99.30, 0.03),
        (99.35, 0.02),
        (99.36, 0.02),
        (99.34, 0.06),
    ),
    ("table-1", "mnist", "mocapsnet"): (
        (99.42, 0.04),
        (99.25, 0.11),
        (99.31, 0.04),
        (99.42, 0.05),
        (99.27, 0.06),
        (99.38, 0.02),
        (99.54, 0.23),
        (99.37, 0.06),
    ),
    ("table-1", "svhn", "rescapsnet"): (
        (92.32, 0.52),
        (92.57, 0.12),
        (92.13, 0.59),
        (91.87, 0.95),
        (92.58, 0.42),
        (92.37, 0.16),
        (92.52, 0.23),
        (92.63, 0.34),
    ),
    ("table-1", "svhn", "mocapsnet"): (
        (92.68, 0.23),
        (92.54, 0.43),
        (93.00, 0.65),
        (92.03, 1.12),
        (92.78, 0.81),
        (92.50, 1.60),
        (91.35, 1.60),
        (91.20, 1.58),
    ),
    ("table-2", "cifar10", "rescapsnet"): (
        (71.49, 0.39),
        (70.59, 0.90),
        (71.09, 0.86),
        (71.50, 0.57),
        (71.94, 0.34),
        (71.22, 0.70),
        (71.85, 0.91),
        (70.90, 1.02),
    ),
    ("table-2", "cifar10", "mocapsnet"): (
        (72.18, 0.62),
        (71.65, 0.62),
        (71.08, 0.71),
        (70.29, 0.06),
        (71.74, 0.74),
        (71.17, 0.32),
        (71.50, 0.93),
        (70.48, 0.69),
    ),
    ("table-2", "cifar100", "rescapsnet"): ((1.00, None),) * 8,
    ("table-2", "cifar100", "mocapsnet"): (
        (9.53, 0.04),
        (26.05, 0.12),
        (33.24, 0.29),
        (39.57, 0.11),
        (42.54, 0.16),
        (42.79, 0.13),
        (43.22, 0.17),
        (43.48, 0.06),
    ),
}
# Table 3: optimizer and routing, then the blocks' ResCapsNet and MoCapsNet on CIFAR-10, in percent.
PAIRS = {
    1: {
        ("adam", "rba"): (71.49, 72.18),
        ("ranger21", "rba"): (73.90, 74.78),
        ("adam", "sda"): (73.16, 73.67),
        ("ranger21", "sda"): (73.94, 72.87),
    },
    3: {
        ("adam", "rba"): (71.09, 71.08),
        ("ranger21", "rba"): (74.24, 75.15),
        ("adam", "sda"): (74.02, 74.91),
        ("ranger21", "sda"): (73.90, 73.53),
    },
    5: {
        ("adam", "rba"): (71.94, 71.74),
        ("ranger21", "rba"): (74.49, 73.47),
        ("adam", "sda"): (74.16, 75.46),
        ("ranger21", "sda"): (69.07, 72.63),
    },
}
# Table 3's baselines, which the paper took from Xi et al.
BASELINES = {"capsnet-1conv": 68.93, "capsnet-2conv": 69.34, "capsnet-2conv-ensemble": 71.50}
# Table 4: MB at 1 to 8 blocks; ResCapsNet's row is CapsNet's too.
MEMORY = {
    ("mnist", "rescapsnet"): (4462, 4612, 4858, 5199, 5204, 5502, 5572, 5786),
    ("mnist", "mocapsnet"): (4320, 4324, 4328, 4332, 4336, 4546, 4552, 4554),
    ("cifar10", "rescapsnet"): (7605, 7865, 8127, 8197, 8139, 8399, 8437, 9179),
    ("cifar10", "mocapsnet"): (7653, 7657, 7660, 7663, 7667, 7671, 7675, 7679),
    ("svhn", "rescapsnet"): (7326, 7586, 7763, 7918, 7860, 8120, 8158, 8900),
    ("svhn", "mocapsnet"): (7371, 7375, 7379, 7381, 7385, 7389, 7393, 7397),
}
# Table 5: learning rate, capsules and batch, then ResCapsNet and MoCapsNet with 2 blocks and Ranger21.
ABLATION = {
    (0.01, 32, 128): (74.85, 75.26),
    (0.01, 32, 64): (72.02, 73.85),
    (0.01, 32, 256): (74.03, 74.13),
    (0.01, 64, 128): (74.83, 75.52),
    (0.001, 32, 128): (72.70, 73.14),
    (0.1, 32, 128): (70.84, 68.98),
}
# Figure 4's legend: MB and seconds of an epoch, of so many steps, that a block adds on CIFAR-10.
STEPS = 391
STEEPNESS = {
    "memory": {"others": 174.2, "mocapsnet": 3.643},
    "seconds": {"others": 1.031, "mocapsnet": 1.882},
}
# The share of a test set's largest class, in percent: what always naming one class gets.
CHANCE = {"mnist": 11.35, "svhn": 19.59, "cifar10": 10.0, "cifar100": 1.0}
SETS = tuple(CHANCE)
TEST_IMAGES = {"mnist": 10_000, "svhn": 26_032, "cifar10": 10_000, "cifar100": 10_000}
NAMES = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "capsnet": "CapsNet",
    "rescapsnet": "ResCapsNet",
    "mocapsnet": "MoCapsNet",
    "mocapsnet-stored": "MoCapsNet, storing all",
    "capsnet-1conv": "CapsNet (1-Conv)",
    "capsnet-2conv": "CapsNet (2-Conv)",
    "capsnet-2conv-ensemble": "CapsNet (2-Conv + 4-ensemble)",
    "sabour": "Sabour et al.",
    "sabour-ensemble": "Sabour et al. (7-ensemble)",
    "mocapsnet-ensemble": "MoCapsNet (7-ensemble)",
    "convnet": "plain CNN",
}
MODELS = ("rescapsnet", "mocapsnet")


def counted(number: int, word: str = "block") -> str:
    """A number of things."""
    return f"{number} {word}{'s' * (number != 1)}"


def cells() -> list[Cell]:
    """Every number of the five tables, in their order."""
    found = [
        Cell(table, dataset, model, blocks, mean, std, about=std is None)
        for (table, dataset, model), row in ACCURACY.items()
        for blocks, (mean, std) in zip(DEPTHS, row, strict=True)
    ]
    found += [Cell("table-3", "cifar10", model, 0, value) for model, value in BASELINES.items()]
    found += [
        Cell("table-3", "cifar10", model, blocks, value, routing=routing, optimizer=optimizer)
        for blocks, pairs in PAIRS.items()
        for (optimizer, routing), values in pairs.items()
        for model, value in zip(MODELS, values, strict=True)
    ]
    found += [
        Cell("table-4", dataset, model, blocks, value)
        for (dataset, model), row in MEMORY.items()
        for blocks, value in zip(DEPTHS, row, strict=True)
    ]
    found += [
        Cell("table-5", "cifar10", model, 2, value, None, "rba", "ranger21", lr, capsules, batch)
        for (lr, capsules, batch), values in ABLATION.items()
        for model, value in zip(MODELS, values, strict=True)
    ]
    return found
