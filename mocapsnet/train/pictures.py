"""The pictures of a run: curves.png and reconstructions.png."""

from collections.abc import Sequence
from pathlib import Path

import torch

from mocapsnet.data import Split
from mocapsnet.data.augment import Normalisation, to_pixels
from mocapsnet.nn.base import Network
from mocapsnet.train.state import Row

EXAMPLES = 10


def draw_pictures(
    folder: Path, model: Network, rows: Sequence[Row], test: Split, class_names: Sequence[str]
) -> None:
    """Draw both pictures, or say which extra draws them."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        print("no pictures without matplotlib: pip install 'mocapsnet[plots]'")
        return
    draw_curves(rows, folder / "curves.png")
    if model.decodes:
        draw_reconstructions(model, test, class_names, folder / "reconstructions.png")


def draw_curves(rows: Sequence[Row], path: Path) -> None:
    """Loss and accuracy against epochs."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    epochs = [row.epoch for row in rows]
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    loss, accuracy = figure.subplots(1, 2)
    loss.plot(epochs, [row.train_loss for row in rows], marker=".")
    loss.set(xlabel="epoch", ylabel="training loss", ylim=(0, None))
    accuracy.plot(epochs, [row.train_accuracy for row in rows], marker=".", label="training, cropped")
    tested = [(row.epoch, row.test_accuracy) for row in rows if row.test_accuracy is not None]
    accuracy.plot(*zip(*tested, strict=True), marker=".", label=f"test, {tested[-1][1]:.2%} at the end")
    accuracy.set(xlabel="epoch", ylabel="accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    accuracy.legend(loc="lower right")
    for axes in (loss, accuracy):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=130)


@torch.no_grad()
def draw_reconstructions(model: Network, test: Split, class_names: Sequence[str], path: Path) -> None:
    """The first test image of up to ten classes, and below each what the longest capsule makes of it."""
    from matplotlib.figure import Figure

    shown = [int((test.labels == label).nonzero()[0]) for label in test.labels.unique()[:EXAMPLES]]
    normalise = Normalisation(model.preprocessing, test.images.device)
    pixels = to_pixels(normalise.centre(test.images[shown]))
    output = model(normalise(pixels))
    # A network with an extra class may see one that no image has.
    names, guesses = [*class_names, "none"], output.lengths.argmax(1)
    figure = Figure(figsize=(1.1 * len(shown) + 0.9, 2.9), layout="constrained")
    grid = figure.subplots(2, len(shown), squeeze=False)
    for column, index in enumerate(shown):
        for row, image in enumerate((pixels[column], output.reconstruction[column])):
            axes = grid[row, column]
            # Only one and three channels have colours that everybody agrees on.
            shown_image = image if len(image) in (1, 3) else image.mean(0, keepdim=True)
            axes.imshow(shown_image.movedim(0, -1).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        grid[0, column].set_title(class_names[int(test.labels[index])], fontsize=10)
        grid[1, column].set_xlabel(
            f"{names[int(guesses[column])]}  {output.lengths[column].max():.2f}", fontsize=9
        )
    grid[0, 0].set_ylabel("test image")
    grid[1, 0].set_ylabel("reconstruction")
    figure.savefig(path, dpi=130)
