"""Networks of others as they are trained beside the paper's; docs/deviations.md says what is theirs."""

from dataclasses import replace
from typing import Any

from mocapsnet.paper.recipe import Recipe
from mocapsnet.paper.recipes import paper_training, stable


def convnet(dataset: str) -> Recipe:
    """A plain convolutional network with as many parameters as MoCapsNet, trained alike by cross entropy.

    Command: mocapsnet reproduce table-3 --only "model=convnet"
    Hardware: one H200, 2 minutes where four share it; expected on CIFAR-10: 66.3 % (n 1).
    """
    return replace(
        stable(dataset, "mocapsnet"),
        name=f"{dataset}-convnet-none-adam-b1-stable",
        model="convnet",
        routing="none",
        kind="ConvNet",
        network={"blocks": 1},
    )


def shallow(model: str, members: int, network: dict[str, Any], training: dict[str, Any]) -> Recipe:
    """A network of primary and class capsules alone on CIFAR-10, from the start that `stable` has."""
    routing = network.get("routing", "rba")
    return Recipe(
        f"cifar10-{model}-{routing}-adam-b0-stable",
        "stable",
        "cifar10",
        model,
        0,
        routing,
        "adam",
        "ShallowCapsNet",
        network,
        {**paper_training("cifar10", "adam"), **training},
        members,
    )


def xi_capsnet() -> Recipe:
    """The CapsNet of Xi et al. on CIFAR-10, 50 epochs; the sizes are Sabour's, theirs are not public.

    Command: mocapsnet reproduce table-3 --only "model=capsnet-1conv"
    Hardware: one H200, 1 minute where fifteen share it; expected: 76.2 % (n 1).
    """
    return shallow("capsnet-1conv", 1, {}, {"epochs": 50})


def xi_two_conv() -> Recipe:
    """Their CapsNet (2-Conv): ours has 256 channels of 9x9 and of 5x5 in the stem, 32 types of 8-D capsules.

    Command: mocapsnet reproduce table-3 --only "model=capsnet-2conv"
    Hardware: one GPU. Minutes and expected accuracy: not run yet.
    """
    return shallow("capsnet-2conv", 1, {"second_kernel": 5}, {"epochs": 50})


def xi_ensemble() -> Recipe:
    """Four of these with a class "none of the above", which no image has; their lengths are summed.

    Command: mocapsnet reproduce table-3 --only "capsnet-2conv-ensemble"
    Hardware: one GPU. Minutes and expected accuracy: not run yet.
    """
    return shallow("capsnet-2conv-ensemble", 4, {"second_kernel": 5, "extra_class": True}, {"epochs": 50})


def sabour(members: int = 1) -> Recipe:
    """Sabour's CIFAR-10 network: crops of 24x24, 64 types, leaky routing differentiated through, no decoder.

    Shortened to 30 epochs (11,730 steps of its 600,000), the rate falling to where 60 epochs of the paper's
    other runs take it. Test images are cropped in their middle.

    Command: mocapsnet reproduce table-3 --only "model=sabour"
    Hardware: one GPU. Minutes and expected accuracy: not run yet.
    """
    network = {
        "routing": "leaky-rba",
        "gradient": "all",
        "types": 64,
        "same": True,
        "decoder": False,
        "truncated": True,
    }
    training = {"window": 24, "pad": 0, "flip": True, "jitter": True, "epochs": 30, "decay": 0.9216}
    return shallow("sabour" if members == 1 else "sabour-ensemble", members, network, training)


def sabour_ensemble() -> Recipe:
    """Seven of these, whose lengths are summed.

    Command: mocapsnet reproduce table-3 --only "model=sabour-ensemble"
    Hardware: one GPU. Minutes and expected accuracy: not run yet.
    """
    return sabour(members=7)
