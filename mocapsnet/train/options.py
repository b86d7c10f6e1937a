"""What fit() refuses among the options that change how a network is trained."""

import math
from typing import Any

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.ops.arguments import at_least, one_of
from mocapsnet.train.objective import CHOICES


def check_options(
    options: dict[str, Any], optimizer: str, epochs: int, model: Network, image_shape: tuple[int, int, int]
) -> None:
    """Refuse options that cannot be meant, alone or with this optimizer, network and size of images."""
    for name, choices in CHOICES.items():
        one_of(name, options[name], choices)
    one_of("normalise", options["normalise"], ("image", "dataset"))
    one_of("schedule", options["schedule"], ("exponential", "cosine"))
    for name in ("pad", "cutout"):
        at_least(name, options[name], 0)
    for name in ("warm_up", "weight_decay", "reconstruction_weight"):
        if not 0 <= options[name] < math.inf:
            raise WrongArgument(f"{name} must be a finite number >= 0, got {options[name]!r}")
    for name in ("ema", "smoothing"):
        if not 0 <= options[name] < 1:
            raise WrongArgument(f"{name} must be >= 0 and < 1, got {options[name]!r}")
    if options["steps_told"] is not None:
        at_least("steps_told", options["steps_told"], 1)
        if optimizer != "ranger21":
            raise WrongArgument(
                "steps_told is what Ranger21 is told; use optimizer='ranger21' or leave it out"
            )
    if optimizer == "ranger21" and (options["schedule"] != "exponential" or options["weight_decay"]):
        raise WrongArgument("Ranger21 has a schedule and a weight decay of its own; use optimizer='adam'")
    if options["warm_up"] and options["schedule"] != "cosine":
        raise WrongArgument("warm_up is the start of schedule='cosine'; choose that or leave it out")
    if options["warm_up"] > epochs:
        raise WrongArgument(f"warm_up must be <= epochs {epochs}, got {options['warm_up']!r}")
    check_images(options, image_shape)
    if options["loss"] == "cross-entropy" and model.loss != "cross-entropy":
        raise WrongArgument(
            f"loss='cross-entropy' needs a network with logits, {type(model).__name__} has none; use 'margin'"
        )
    if options["reconstruction_weight"] and not model.decodes:
        raise WrongArgument(f"{type(model).__name__} has no decoder: its reconstruction_weight must be 0")


def check_images(options: dict[str, Any], image_shape: tuple[int, int, int]) -> None:
    """Refuse crops that images do not have, or that are cut twice."""
    smallest = min(image_shape[1:])
    for name in ("pad", "cutout", "window"):
        if (options[name] or 0) > smallest:
            raise WrongArgument(
                f"{name} must be <= {smallest}, the side of the images, got {options[name]!r}"
            )
    if options["window"] is not None:
        at_least("window", options["window"], 1)
        if options["crop_test"]:
            raise WrongArgument("crop_test cuts whole images; leave it or window out")
