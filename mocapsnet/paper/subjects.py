"""What sentences of the paper are about: trained runs and measured networks, by short names."""

from mocapsnet.paper.measured import Curve
from mocapsnet.paper.trained import Better, Trained


def momentum(dataset: str, blocks: int, routing: str = "rba", optimizer: str = "adam") -> Trained:
    """MoCapsNet's runs."""
    return Trained(dataset, "mocapsnet", blocks, routing, optimizer)


def residual(dataset: str, blocks: int, routing: str = "rba", optimizer: str = "adam") -> Trained:
    """ResCapsNet's runs."""
    return Trained(dataset, "rescapsnet", blocks, routing, optimizer)


def ablated(model: str, lr: float = 0.01, capsules: int = 32, batch: int = 128) -> Trained:
    """Table 5's runs."""
    return Trained("cifar10", model, 2, "rba", "ranger21", lr, capsules, batch)


def better_than_residual(dataset: str, blocks: int, *options: str) -> Better:
    """Momentum against residual, all else equal."""
    return Better(momentum(dataset, blocks, *options), residual(dataset, blocks, *options))


def baseline(model: str) -> Trained:
    """A baseline of table 3."""
    return Trained("cifar10", model, 0)


def both(what: str, metric: str, dataset: str = "cifar10") -> tuple[Curve, Curve]:
    """MoCapsNet and ResCapsNet as bench measures them."""
    return Curve(what, metric, dataset, "mocapsnet"), Curve(what, metric, dataset, "rescapsnet")


# The depth at which MoCapsNet is best in tables 1 and 2.
BEST_DEPTH = {"mnist": 7, "svhn": 3, "cifar10": 1, "cifar100": 8}
OPTIMIZERS = ("adam", "ranger21")
# The shapes whose times are compared; SVHN's are CIFAR-10's.
TIMED = ("mnist", "cifar10")
# Of a sentence about every depth, those that are asked for.
SOME_DEPTHS = (1, 2, 4, 8)
