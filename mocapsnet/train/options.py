"""What fit() refuses: options that cannot be meant, and another run in the folder."""

import hashlib
import math
from pathlib import Path
from typing import Any

from mocapsnet.data import Dataset
from mocapsnet.data.augment import windowed
from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.ops.arguments import at_least, one_of
from mocapsnet.train.objective import CHOICES
from mocapsnet.train.settings import Settings

# What runs had that were saved before they could be told otherwise.
LATER = {name: getattr(Settings, name) for name in ("mix", "turn", "zoom")}


def check_options(
    options: dict[str, Any], optimizer: str, epochs: int, model: Network, image_shape: tuple[int, int, int]
) -> None:
    """Refuse options that cannot be meant, alone or with this optimizer, network and size of images."""
    for name, choices in CHOICES.items():
        one_of(name, options[name], choices)
    one_of("normalise", options["normalise"], ("image", "dataset"))
    one_of("test", options["test"], ("epoch", "end"))
    one_of("schedule", options["schedule"], ("exponential", "cosine"))
    for name in ("pad", "cutout"):
        at_least(name, options[name], 0)
    for name in ("flip", "jitter", "crop_test"):
        if not isinstance(options[name], bool):
            raise WrongArgument(f"{name} must be True or False, got {options[name]!r}")
    for name, most in (
        *((name, math.inf) for name in ("warm_up", "weight_decay", "reconstruction_weight")),
        *((name, 1) for name in ("ema", "smoothing", "mix", "zoom")),
        ("turn", 180),
    ):
        if not isinstance(options[name], int | float) or not 0 <= options[name] < most:
            raise WrongArgument(f"{name} must be a number >= 0 and < {most}, got {options[name]!r}")
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


def check_fits(model: Network, dataset: Dataset, window: int | None) -> None:
    """Refuse a data set that a network was not made for; a window is cut out of its images."""
    image_shape = windowed(dataset.image_shape, window)
    if (model.image_shape, model.config["classes"]) != (image_shape, dataset.classes):
        raise WrongArgument(
            f"{dataset.name} has {dataset.classes} classes of images {image_shape}, "
            f"the network was made for {model.config['classes']} of {model.image_shape}"
        )


def check_same_run(saved: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with a run that was another one; only Adam's may be given more epochs, if it decays."""
    was, now = ({**LATER, **told, **told["network"], "network": None} for told in (saved["config"], config))
    open_ended = config["optimizer"] == "adam" and config["schedule"] == "exponential"
    more = open_ended and (config["epochs"], 0) >= (saved["epoch"], saved["step"])
    for name, value in now.items():
        if name != "data" and was.get(name) != value and not (name == "epochs" and more):
            raise WrongArgument(
                f"{folder} holds a run with {name} {was.get(name)!r}, got {value!r}; "
                "choose another output folder"
            )


def part(dataset: Dataset, limit: int | None, validation: float, seed: int) -> Dataset:
    """The images of a run: some of those to train on, and some of these held out."""
    if limit is not None:
        dataset = dataset.limit(limit)
    return dataset.hold_out(validation, seed)


def fingerprint(dataset: Dataset) -> str:
    """A digest of every image and label, so that a run never goes on with other data."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.validation, dataset.test):
        for tensor in split or ():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
