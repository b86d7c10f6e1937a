"""Several networks that vote with the sum of their lengths."""

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from torch import Tensor, nn

import mocapsnet
from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.load import network_class


class Sums(NamedTuple):
    """What an ensemble returns."""

    lengths: Tensor
    """[B,K]: the members' lengths, summed."""


class Ensemble(Network):
    """Networks of one kind of images, each trained on its own; the largest sum of lengths wins.

    >>> mc.Ensemble([mc.load("runs/a"), mc.load("runs/b")]).save("runs/both")
    >>> mc.load("runs/both").evaluate(mc.data.load("mnist6k")).accuracy
    """

    decodes = False

    def __init__(self, models: Iterable[Network]) -> None:
        super().__init__()
        models = checked_models(models)
        first = models[0]
        for model in models:
            for name, mine, other in (
                ("images", first.image_shape, model.image_shape),
                ("classes", first.config["classes"], model.config["classes"]),
                ("preprocessing", cut_and_normalised(first), cut_and_normalised(model)),
                ("dtype", *(next(one.parameters()).dtype for one in (first, model))),
            ):
                if mine != other:
                    raise WrongArgument(f"all models must have the same {name}, got {mine} and {other}")
        self.members = nn.ModuleList(models)
        self.at_once = min(model.at_once for model in models)
        self.image_shape = first.image_shape
        # One of them may tell how large pictures were before a window was cut out.
        self.preprocessing = max((model.preprocessing for model in models), key=len)
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

    def evaluate(
        self, data: "mocapsnet.data.Dataset | mocapsnet.data.Split"
    ) -> "mocapsnet.measure.accuracy.Evaluation":
        """What mc.evaluate finds: the accuracy on a data set's test images, and the confusion."""
        # What evaluates lies above this room: looked up by its public name at the call, nothing is imported.
        return mocapsnet.evaluate(self, data)


def cut_and_normalised(model: Network) -> dict[str, Any]:
    """What a network's images need; how large they were before they were cut is not asked."""
    return {name: value for name, value in model.preprocessing.items() if name != "size"}


def checked_models(models: Iterable[Network]) -> list[Network]:
    """models as a list; what is no network with weights of its own is refused."""
    if not isinstance(models, Iterable):
        raise WrongArgument(f"models must be a list of networks, got {type(models).__name__}; put it in []")
    models = list(models)
    if not models:
        raise WrongArgument("models must hold one network or more, got none")
    owners: dict[int, int] = {}
    for number, model in enumerate(models):
        if not isinstance(model, Network):
            raise WrongArgument(f"models must be networks, as mc.load gives them, got {type(model).__name__}")
        for weight in model.parameters():
            if (other := owners.setdefault(id(weight), number)) != number:
                raise WrongArgument(
                    f"models {other} and {number} are one network or share weights; "
                    "leave one out, or give a copy.deepcopy of it"
                )
    return models
