"""How well a model does on a data set, as a whole and class by class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocapsnet.data import Dataset, Split
from mocapsnet.data.classes import CLASS_NAMES
from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.train.classify import lengths_of
from mocapsnet.train.options import check_fits


class Evaluation(NamedTuple):
    """Accuracy as a fraction, and confusion [K,K]: how often a class (row) is seen as another."""

    accuracy: float
    confusion: Tensor

    def per_class(self) -> list[float | None]:
        """The accuracy of each class; None for a class that has no image."""
        totals = self.confusion.sum(1).tolist()
        right = self.confusion.diagonal().tolist()
        return [hit / total if total else None for hit, total in zip(right, totals, strict=True)]


def evaluate(model: Network, data: Dataset | Split) -> Evaluation:
    """Classify every test image of a data set, or every image of a split, on the model's device.

    >>> mc.evaluate(model, mc.data.load("mnist6k")).accuracy
    """
    if isinstance(data, Dataset):
        check_fits(model, data, model.preprocessing.get("window"))
        data = data.test
    if not isinstance(data, Split):
        raise WrongArgument(
            f"data must be what mc.data.load gives, or a split of it, got {type(data).__name__}"
        )
    images, labels = data.to(next(model.parameters()).device)
    K = model.config["classes"]
    pairs = labels * K + lengths_of(model, images).argmax(1)
    confusion = torch.bincount(pairs, minlength=K**2).view(K, K).cpu()
    return Evaluation(int(confusion.diagonal().sum()) / len(labels), confusion)


def check_names(data: Dataset, trained: Sequence[str]) -> None:
    """Refuse as many other classes as a network was trained for; those of one's own .npz have no names."""
    names = [*data.class_names]
    unnamed = data.name not in CLASS_NAMES and names == [str(k) for k in range(len(names))]
    if len(names) == len(trained) and names != [*trained] and not unnamed:
        found, wanted = (", ".join(some[:10]) + ", …" * (len(some) > 10) for some in (names, [*trained]))
        raise WrongArgument(f"{data.name} has the classes {found}, the network was trained for {wanted}")


def draw_confusion(evaluation: Evaluation, class_names: Sequence[str], path: Path) -> None:
    """Draw the confusion matrix, its rows scaled to one; needs matplotlib."""
    from matplotlib.figure import Figure

    K = len(class_names)
    rows = evaluation.confusion / evaluation.confusion.sum(1, keepdim=True).clamp(min=1)
    size = min(3 + 0.45 * K, 14)
    figure = Figure(figsize=(size, size), layout="constrained")
    axes = figure.subplots()
    axes.imshow(rows.numpy(), cmap="Blues", vmin=0, vmax=1)
    axes.set(
        xlabel="seen as", ylabel="class", title=f"{evaluation.accuracy:.2%} of all images are seen right"
    )
    options: dict[str, Any] = {"fontsize": 9 if K <= 30 else 5}
    axes.set_xticks(range(K), class_names, rotation=90 if max(map(len, class_names)) > 2 else 0, **options)
    axes.set_yticks(range(K), class_names, **options)
    if K <= 30:
        for row in range(K):
            for column in range(K):
                if count := int(evaluation.confusion[row, column]):
                    colour = "white" if rows[row, column] > 0.5 else "black"
                    axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=130)
