"""Checkpoints of the paper's released code, as networks of released.py."""

import re
from collections.abc import Mapping
from itertools import count

from torch import Tensor

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.primary import checked_shape, primary_count
from mocapsnet.nn.released import ReleasedNetwork


def from_released(
    state_dict: Mapping[str, Tensor],
    image_shape: tuple[int, int, int],
    classes: int,
    gamma: float = 0.9,
    iterations: int = 3,
    residual: bool = True,
) -> ReleasedNetwork:
    """Load a checkpoint of the paper's released code, its sizes and its routing read off the weights.

    Plain and residual checkpoints look the same; residual says which of the two this is.

    >>> model = mc.from_released(torch.load("mocapsnet.pt", weights_only=True), (3, 32, 32), classes=10)
    """
    missing = [name for name in ("conv1.weight", "caps1.W", "caps2.W") if name not in state_dict]
    if missing:
        raise WrongArgument(f"state_dict is not one of the released code: it lacks {', '.join(missing)}")
    for name, axes in (("conv1.weight", 4), ("caps1.W", 5), ("caps2.W", 5)):
        if state_dict[name].dim() != axes:
            raise WrongArgument(f"{name} must have {axes} axes, got shape {tuple(state_dict[name].shape)}")
    _, capsules, primary, capsule_dim, _ = state_dict["caps1.W"].shape
    channels, image_channels, kernel_size, _ = state_dict["conv1.weight"].shape
    _, found_classes, _, class_dim, _ = state_dict["caps2.W"].shape
    if found_classes != classes:
        raise WrongArgument(f"classes must be {found_classes}, as caps2.W has it, got {classes}")
    image_shape = checked_shape(image_shape)
    expected = primary_count(image_shape, channels, capsule_dim, kernel_size)
    if (image_shape[0], expected) != (image_channels, primary):
        raise WrongArgument(
            f"image_shape must have {image_channels} channels and make {primary} primary capsules, "
            f"as conv1.weight and caps1.W have it, got {image_shape}, which makes {expected}"
        )
    momentum = any(".network." in key for key in state_dict)
    network = ReleasedNetwork(
        image_shape,
        classes,
        blocks=next(n for n in count() if not any(key.startswith(f"blocks.{n}.") for key in state_dict)),
        trunk="momentum" if momentum else "residual" if residual else "plain",
        # Only SDA's layers have a bias, and only theirs has three axes.
        routing="sda" if any(value.dim() == 3 for value in state_dict.values()) else "rba",
        iterations=iterations,
        capsules=capsules,
        capsule_dim=capsule_dim,
        class_dim=class_dim,
        channels=channels,
        kernel_size=kernel_size,
        gamma=gamma,
    )
    names = {_released_name(own): own for own in network.state_dict()}
    for wrong, verb in (
        (names.keys() - state_dict.keys(), "lacks"),
        (state_dict.keys() - names.keys(), "has also"),
    ):
        if wrong:
            raise WrongArgument(
                f"state_dict is not one of the released code: it {verb} {', '.join(sorted(wrong))}"
            )
    # The released W and bias carry a leading axis of one, for the batch.
    weights = {own: state_dict[name] for name, own in names.items()}
    network.load_state_dict(
        {own: value[0] if value.dim() in (3, 5) else value for own, value in weights.items()}
    )
    return network


def _released_name(own: str) -> str:
    """The name that the released code gives to a tensor of ReleasedNetwork."""
    if layer := re.fullmatch(r"trunk\.layers\.(\d+)\.momentum\.layers\.(\d)\.(W|bias)", own):
        return f"blocks.{layer[1]}.functions.0.network.{layer[2]}.0.{layer[3]}"
    if layer := re.fullmatch(r"trunk\.layers\.(\d+)\.(W|bias)", own):
        block, position = divmod(int(layer[1]), 2)
        return f"blocks.{block}.functions.{position}.0.{layer[2]}"
    return re.sub(r"^decoder\.layers", "decoder", re.sub(r"^stem\.conv", "conv1", own))
