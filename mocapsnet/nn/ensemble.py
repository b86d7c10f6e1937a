"""Several networks that vote with the sum of their lengths."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.network import network_class


class Sums(NamedTuple):
    """What an ensemble returns."""

    lengths: Tensor
    """[B,K]: the members' lengths, summed."""


class Ensemble(Network):
    """Networks of one kind of images, each trained on its own; the largest sum of lengths wins.

    >>> mc.Ensemble([mc.load("runs/a"), mc.load("runs/b")]).save("runs/both")
    """

    decodes = False

    def __init__(self, models: Sequence[Network]) -> None:
        super().__init__()
        if not models:
            raise WrongArgument("models must hold one network or more, got none")
        first = models[0]
        for model in models:
            for name, mine, other in (
                ("images", first.image_shape, model.image_shape),
                ("classes", first.config["classes"], model.config["classes"]),
                ("preprocessing", first.preprocessing, model.preprocessing),
            ):
                if mine != other:
                    raise WrongArgument(f"all models must have the same {name}, got {mine} and {other}")
        self.members = nn.ModuleList(models)
        self.at_once = min(model.at_once for model in models)
        self.image_shape = first.image_shape
        self.preprocessing = first.preprocessing
        self.config = {
            "model": "Ensemble",
            "image_shape": list(first.image_shape),
            "classes": first.config["classes"],
            "members": [model.config for model in models],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Networks with new weights."""
        members = [dict(member) for member in config["members"]]
        return cls([network_class(member.pop("model")).from_config(member) for member in members])

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Sums:
        """Classify images [B,C,H,W]; labels change nothing."""
        return Sums(self.lengths(images))

    def lengths(self, images: Tensor) -> Tensor:
        """The members' lengths [B,K], summed."""
        total, *others = (member.lengths(images) for member in self.members)  # type: ignore[operator]
        for lengths in others:
            total = total + lengths
        return total
