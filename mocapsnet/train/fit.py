"""The training loop, to be read from top to bottom."""

import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor
from tqdm import tqdm

from mocapsnet.data import Dataset, Split
from mocapsnet.data.augment import crop, crop_offsets, standardise, to_pixels
from mocapsnet.losses import capsule_loss
from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.ops.arguments import CannotRun, at_least, one_of, positive
from mocapsnet.train import record
from mocapsnet.train.pictures import draw_pictures

TEST_BATCH = 500
AVAILABLE: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}


class Run(NamedTuple):
    """A finished run: its folder, and the test accuracy of its last epoch as a fraction."""

    folder: Path
    test_accuracy: float


def fit(
    model: CapsuleNetwork,
    dataset: Dataset,
    *,
    epochs: int = 30,
    batch: int = 128,
    lr: float = 1e-3,
    decay: float = 0.96,
    seed: int = 0,
    device: str = "auto",
    output: str | Path | None = None,
) -> Run:
    """Train a capsule network in place and write a run folder.

    Adam, its learning rate times decay after every epoch; images padded by 2, cropped at random and
    standardised, test images only standardised. The test set is measured and never selects anything.

    >>> run = mc.fit(mc.MoCapsNet((1, 28, 28), classes=10, channels=64), mc.data.load("mnist6k"), epochs=3)
    """
    at_least("epochs", epochs, 1)
    at_least("batch", batch, 1)
    at_least("seed", seed, 0)
    positive("lr", lr)
    positive("decay", decay)
    one_of("device", device, ("auto", *AVAILABLE))
    if device != "auto" and not AVAILABLE[device]():
        raise CannotRun(f"device={device!r} cannot be used: torch finds none here; use 'auto' or 'cpu'")
    config = {
        "network": model.config,
        "dataset": dataset.name,
        "epochs": epochs,
        "batch": batch,
        "optimizer": "adam",
        "lr": lr,
        "decay": decay,
    }
    name = f"{model.config['model'].lower()}-{dataset.name}"
    folder = Path(output) if output else Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{name}"
    folder.mkdir(parents=True, exist_ok=True)

    fabric = Fabric(accelerator=device, devices=1)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    network, optimizer = fabric.setup(model, optimizer)
    train, test = dataset.train.to(fabric.device), dataset.test.to(fabric.device)
    rows: list[record.Row] = []
    started = time.perf_counter()
    with Progress(epochs, len(train.labels)) as progress:
        for epoch in range(epochs):
            epoch_started = time.perf_counter()
            lr_now = float(schedule.get_last_lr()[0])
            network.train()
            loss_sum = correct = torch.zeros((), device=fabric.device)
            for indices, offsets in batches(len(train.labels), batch, seed, epoch):
                indices, offsets = indices.to(fabric.device), offsets.to(fabric.device)
                pixels, labels = to_pixels(crop(train.images[indices], offsets)), train.labels[indices]
                result = network(standardise(pixels), labels)
                loss = capsule_loss(result, labels, pixels)
                optimizer.zero_grad()
                fabric.backward(loss)
                optimizer.step()
                loss_sum = loss_sum + loss.detach() * len(labels)
                correct = correct + (result.lengths.argmax(1) == labels).sum()
                progress.advance(epoch, len(labels), loss_sum, correct)
            schedule.step()
            seconds = time.perf_counter() - epoch_started
            row = record.Row(
                epoch=epoch + 1,
                lr=lr_now,
                train_loss=float(loss_sum) / len(train.labels),
                train_accuracy=float(correct) / len(train.labels),
                test_accuracy=accuracy(model, test),
                seconds=seconds,
                images_per_second=len(train.labels) / seconds,
            )
            rows.append(row)
            progress.finish(row)
    seconds = time.perf_counter() - started
    record.write(folder, model, rows, config, seed, seconds, fabric.device)
    draw_pictures(folder, model, rows, test, dataset.class_names)
    return Run(folder, rows[-1].test_accuracy)


def batches(count: int, batch: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices and crop offsets of every batch of an epoch: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)
    offsets = crop_offsets(count, generator)
    return zip(order.split(batch), offsets.split(batch), strict=True)


@torch.no_grad()
def accuracy(model: CapsuleNetwork, split: Split) -> float:
    """The fraction of images whose longest class capsule is the labelled one."""
    was_training = model.training
    model.eval()
    correct = sum(
        (model(standardise(to_pixels(images))).lengths.argmax(1) == labels).sum()
        for images, labels in zip(split.images.split(TEST_BATCH), split.labels.split(TEST_BATCH), strict=True)
    )
    model.train(was_training)
    return int(correct) / len(split.labels)


class Progress:
    """A live bar over the whole run on a terminal, and a line per epoch everywhere."""

    def __init__(self, epochs: int, images: int) -> None:
        self.epochs = epochs
        self.images = images
        self.seen = 0
        self.bar = tqdm(
            total=epochs * images,
            unit=" images",
            bar_format="{desc} |{bar}| {rate_fmt}{postfix}, {remaining} left",
            dynamic_ncols=True,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def advance(self, epoch: int, images: int, loss_sum: Tensor, correct: Tensor) -> None:
        """Count a batch; loss and accuracy are read from the device only when the bar is drawn anew."""
        self.seen += images
        if self.bar.update(images):
            self.bar.set_description(f"epoch {epoch + 1}/{self.epochs}", refresh=False)
            self.bar.set_postfix_str(
                f"loss {float(loss_sum) / self.seen:.4f}, accuracy {float(correct) / self.seen:.2%}",
                refresh=False,
            )

    def finish(self, row: record.Row) -> None:
        """Print an epoch's line above the bar."""
        self.seen = 0
        self.bar.write(
            f"epoch {row.epoch:>{len(str(self.epochs))}}/{self.epochs}  loss {row.train_loss:.4f}  "
            f"train {row.train_accuracy:.2%}  test {row.test_accuracy:.2%}  "
            f"{row.images_per_second:,.0f} images/s"
        )
