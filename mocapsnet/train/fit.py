"""The training loop, to be read from top to bottom."""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor

from mocapsnet.data import Dataset, Split
from mocapsnet.data.augment import crop_offsets, standardise, to_pixels
from mocapsnet.errors import CannotRun, Interrupted, WrongArgument
from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.ops import length
from mocapsnet.ops.arguments import at_least, at_least_zero, one_of
from mocapsnet.train import checkpoint, record
from mocapsnet.train.culprit import check_weights
from mocapsnet.train.optimizers import LEARNING_RATES, check_rate, make_optimizer
from mocapsnet.train.pictures import draw_pictures
from mocapsnet.train.progress import Progress
from mocapsnet.train.signals import Signals, deferred
from mocapsnet.train.state import State, check_seed
from mocapsnet.train.step import PRECISIONS, compiled, float32_products, make_step

# Images at once where none of them needs a gradient.
TEST_BATCH = {"cpu": 500, "mps": 500, "cuda": 2000}
SECONDS_BETWEEN_CHECKPOINTS = 60
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
    optimizer: str = "adam",
    lr: float | None = None,
    decay: float = 0.96,
    reconstruction_weight: float = 5e-4,
    validation: float = 0.0,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    precision: str = "auto",
    graph: str = "auto",
    compile: bool | None = None,
    output: str | Path | None = None,
    resume: str = "auto",
) -> Run:
    """Train a capsule network in place and write a run folder.

    Images are padded by 2, cropped at random and standardised, validation and test images only standardised.
    Adam's learning rate (1e-3) is multiplied by decay after every epoch; Ranger21 (1e-2) schedules its own.
    The test set is measured and never selects anything. A run that was stopped goes on from its folder's last
    checkpoint, bit for bit on a CPU; resume="never" refuses a folder that holds a run.

    On CUDA a step is one graph, its convolutions in bf16 and its layers compiled; precision ("bf16-mixed",
    "tf32", "fp32"), graph="off" and compile=False change that. Test images are classified in float32.

    >>> run = mc.fit(mc.MoCapsNet((1, 28, 28), classes=10, channels=64), mc.data.load("mnist6k"), epochs=3)
    """
    one_of("optimizer", optimizer, LEARNING_RATES)
    one_of("resume", resume, ("auto", "never"))
    lr = LEARNING_RATES[optimizer] if lr is None else lr
    at_least("epochs", epochs, 1)
    at_least("batch", batch, 1)
    check_seed(seed)
    check_rate(lr, decay)
    at_least_zero("reconstruction_weight", reconstruction_weight)
    where = pick_device(device)
    one_of("precision", precision, ("auto", *PRECISIONS))
    one_of("graph", graph, ("auto", "off"))
    if precision == "auto":
        precision = "bf16-mixed" if where.type == "cuda" else "fp32"
    if compile is None:
        compile = where.type == "cuda"
    check_fits(model, dataset)
    if limit is not None:
        dataset = dataset.limit(limit)
    dataset = dataset.hold_out(validation, seed)
    config = {
        "network": model.config,
        "dataset": dataset.name,
        "data": dataset.folder,
        "class_names": list(dataset.class_names),
        "epochs": epochs,
        "batch": batch,
        "optimizer": optimizer,
        "lr": lr,
        "decay": decay,
        "reconstruction_weight": reconstruction_weight,
        "validation": validation,
        "limit": limit,
        "seed": seed,
        "precision": precision,
        "compile": compile,
        # Behind the settings that change it, so that a resumed run is told those.
        "data_sha256": fingerprint(dataset),
    }
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{model.config['model'].lower()}-{dataset.slug}"
    folder = Path(output) if output else Path("runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(folder), deferred() as signals, float32_products(precision != "fp32"):
        return train(model, dataset, config, where, graph == "auto", folder, resume, signals)


def train(
    model: CapsuleNetwork,
    dataset: Dataset,
    config: dict[str, Any],
    device: torch.device,
    graphed: bool,
    folder: Path,
    resume: str,
    signals: Signals,
) -> Run:
    """The loop itself, in a folder that is locked."""
    epochs, batch, seed = config["epochs"], config["batch"], config["seed"]
    count = len(dataset.train.labels)
    steps = -(-count // batch)
    fabric = Fabric(accelerator=device.type, devices=1, precision=PRECISIONS[config["precision"]])
    model.to(fabric.device)
    optimizer, schedule = make_optimizer(
        config["optimizer"],
        model.parameters(),
        config["lr"],
        config["decay"],
        steps=epochs * steps,
    )
    network, fabric_optimizer = fabric.setup(model, optimizer)
    state = State(config, model, optimizer, schedule)
    if resume == "never" and any((folder / name).exists() for name in (checkpoint.LAST, "run.json")):
        raise WrongArgument(f"{folder} holds a run already; choose another output folder or resume='auto'")
    if (saved := checkpoint.latest(folder)) is not None:
        check_same_run(saved, config, folder)
        state.load_state_dict(saved)
        if state.epoch == epochs and (finished := record.finished(folder, config)) is not None:
            return Run(folder, finished)
    record.write_config(folder, config)
    record.write_metrics(folder, state.rows)
    train_set, test_set = dataset.train.to(fabric.device), dataset.test.to(fabric.device)
    validation_set = dataset.validation and dataset.validation.to(fabric.device)
    weight = config["reconstruction_weight"]
    step = make_step(fabric, network, model, fabric_optimizer, train_set, weight, graphed)
    last_saved = time.perf_counter()
    with (
        compiled(model, config["compile"]),
        Progress(epochs, count, state) as progress,
        record.Board(folder, state.rows) as board,
    ):
        for epoch in range(state.epoch, epochs):
            network.train()
            started = time.perf_counter() - state.seconds
            for indices, offsets in islice(
                batches(count, batch, seed, epoch, fabric.device), state.step, None
            ):
                outcome = step(indices, offsets, epoch * steps + state.step + 1)
                state.count(outcome.loss, outcome.correct, len(indices))
                progress.advance(state, len(indices))
                if signals.pending or time.perf_counter() - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
                    step.check()
                    check_weights(model, epoch * steps + state.step)
                    state.seconds = time.perf_counter() - started
                    checkpoint.save(folder, state.state_dict())
                    last_saved = time.perf_counter()
                if signals.pending:
                    raise Interrupted(signals.pending, f"saved in {folder}; the same command goes on")
            step.check()
            check_weights(model, (epoch + 1) * steps)
            seconds = time.perf_counter() - started
            validation_accuracy = accuracy(model, validation_set) if validation_set else None
            row = state.finish_epoch(validation_accuracy, accuracy(model, test_set), seconds)
            checkpoint.save(folder, state.state_dict())
            last_saved = time.perf_counter()
            record.write_metrics(folder, state.rows)
            board.write(row)
            progress.finish(row)
            if signals.pending:
                raise Interrupted(signals.pending, f"saved in {folder}; the same command goes on")
    model.save(folder)
    record.write_run(folder, model, state.rows, config, fabric.device)
    draw_pictures(folder, model, state.rows, test_set, dataset.class_names)
    return Run(folder, state.rows[-1].test_accuracy)


def pick_device(name: str) -> torch.device:
    """The device of that name, the best there is for auto; one that is not here is refused."""
    one_of("device", name, ("auto", *AVAILABLE))
    if name == "auto":
        name = next(name for name, available in AVAILABLE.items() if available())
    elif not AVAILABLE[name]():
        raise CannotRun(f"device={name!r} cannot be used: torch finds none here; use 'auto' or 'cpu'")
    return torch.device(name)


def check_fits(model: CapsuleNetwork, dataset: Dataset) -> None:
    """Refuse a data set that a network was not made for."""
    if (model.image_shape, model.config["classes"]) != (dataset.image_shape, dataset.classes):
        raise WrongArgument(
            f"{dataset.name} has {dataset.classes} classes of images {dataset.image_shape}, "
            f"the network was made for {model.config['classes']} of {model.image_shape}"
        )


def check_same_run(saved: dict[str, Any], config: dict[str, Any], folder: Path) -> None:
    """Refuse to go on with a run that was another one; only Adam's may be given more epochs."""
    was, now = ({**told, **told["network"], "network": None} for told in (saved["config"], config))
    more = (config["epochs"], 0) >= (saved["epoch"], saved["step"])
    for name, value in now.items():
        if (
            name != "data"
            and was.get(name) != value
            and not (name == "epochs" and config["optimizer"] == "adam" and more)
        ):
            raise WrongArgument(
                f"{folder} holds a run with {name} {was.get(name)!r}, got {value!r}; "
                "choose another output folder"
            )


def batches(
    count: int, batch: int, seed: int, epoch: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices and crop offsets of every batch of an epoch: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator).to(device)
    offsets = crop_offsets(count, generator).to(device)
    size = min(batch, count)
    return zip(order.split(size), offsets.split(size), strict=True)


def accuracy(model: CapsuleNetwork, split: Split) -> float:
    """The fraction of images whose longest class capsule is the labelled one."""
    return float((lengths_of(model, split.images).argmax(1) == split.labels).double().mean())


@torch.no_grad()
def lengths_of(model: CapsuleNetwork, images: Tensor) -> Tensor:
    """The lengths [N,K] that a model gives to images, uint8 [N,C,H,W]."""
    was_training = model.training
    model.eval()
    # What is compiled for training runs eagerly: every other size of batch would be compiled anew.
    stance = torch.compiler.set_stance("force_eager") if model._compiled_call_impl else nullcontext()
    with stance, float32_products(tf32=False):
        parts = images.split(TEST_BATCH[images.device.type])
        found = [length(model.encode(standardise(to_pixels(part)))) for part in parts]
    model.train(was_training)
    return torch.cat(found)


def fingerprint(dataset: Dataset) -> str:
    """A digest of every image and label, so that a run never goes on with other data."""
    digest = hashlib.sha256()
    for split in (dataset.train, dataset.validation, dataset.test):
        for tensor in split or ():
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
