"""The training loop, to be read from top to bottom."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocapsnet.data import Dataset
from mocapsnet.data.augment import Augmentation, crop_offsets, mean_and_std
from mocapsnet.data.classes import CLASS_NAMES
from mocapsnet.errors import Interrupted, WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.ops.arguments import a_folder, at_least, one_of
from mocapsnet.train import checkpoint, record
from mocapsnet.train.average import Average
from mocapsnet.train.classify import accuracy
from mocapsnet.train.culprit import check_weights
from mocapsnet.train.device import choose, compiled, float32_products, make_fabric, pick_device
from mocapsnet.train.graph import GraphedStep, make_step
from mocapsnet.train.objective import Objective
from mocapsnet.train.optimizers import LEARNING_RATES, check_rate, cosine, make_optimizer, set_rate
from mocapsnet.train.options import check_fits, check_options, check_same_run, fingerprint, part
from mocapsnet.train.pictures import draw_pictures
from mocapsnet.train.progress import Progress
from mocapsnet.train.signals import Signals, deferred
from mocapsnet.train.state import State, check_seed

SECONDS_BETWEEN_CHECKPOINTS = 60
# At the end of an epoch, which may take a GPU no longer than a disk needs for a checkpoint.
SECONDS_BETWEEN_SAVED_EPOCHS = {"cpu": 0, "mps": 0, "cuda": 10}


class Run(NamedTuple):
    """A finished run: its folder, and the test accuracy of its last epoch as a fraction."""

    folder: Path
    test_accuracy: float


def fit(
    model: Network,
    dataset: Dataset,
    *,
    epochs: int = 30,
    batch: int = 128,
    optimizer: str = "adam",
    lr: float | None = None,
    decay: float = 0.96,
    schedule: str = "exponential",
    warm_up: float = 0.0,
    steps_told: int | None = None,
    weight_decay: float = 0.0,
    ema: float = 0.0,
    loss: str | None = None,
    smoothing: float = 0.0,
    reconstruction_weight: float | None = None,
    mask: str = "label",
    target: str = "pixels",
    reduction: str = "mean",
    normalise: str = "image",
    pad: int = 2,
    window: int | None = None,
    flip: bool = False,
    jitter: bool = False,
    cutout: int = 0,
    mix: float = 0.0,
    turn: float = 0.0,
    zoom: float = 0.0,
    crop_test: bool = False,
    test: str = "epoch",
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
    """Train a network in place and write a run folder.

    Images are padded by 2, cropped at random and standardised, validation and test images only standardised.
    Adam's learning rate (1e-3) is multiplied by decay after every epoch; Ranger21 (1e-2) schedules its own.
    What else can be changed, `mocapsnet train --help` says: every argument is a flag. The test set is
    measured, after every epoch or, with test="end", once, and never selects anything. A run that was stopped
    goes on from its folder's last checkpoint, bit for bit on a CPU; resume="never" refuses a folder that
    holds a run.

    On CUDA a step is one graph, its convolutions in bf16 and its layers compiled; precision ("bf16-mixed",
    "tf32", "fp32"), graph="off" and compile=False change that. Test images are classified
    in the precision of training.

    >>> run = mc.fit(mc.MoCapsNet((1, 28, 28), classes=10, channels=64), mc.data.load("mnist6k"), epochs=3)
    """
    if not isinstance(dataset, Dataset):
        raise WrongArgument(f"dataset must be what mc.data.load gives, got {type(dataset).__name__}")
    one_of("optimizer", optimizer, LEARNING_RATES)
    one_of("resume", resume, ("auto", "never"))
    lr = LEARNING_RATES[optimizer] if lr is None else lr
    at_least("epochs", epochs, 1)
    at_least("batch", batch, 1)
    check_seed(seed)
    check_rate(lr, decay)
    where = pick_device(device)
    how = choose(precision, graph, compile, where)
    loss = model.loss if loss is None else loss
    if reconstruction_weight is None:
        reconstruction_weight = 5e-4 if model.decodes else 0.0
    options = {
        "schedule": schedule,
        "warm_up": warm_up,
        "steps_told": steps_told,
        "weight_decay": weight_decay,
        "ema": ema,
        "loss": loss,
        "smoothing": smoothing,
        "reconstruction_weight": reconstruction_weight,
        "mask": mask,
        "target": target,
        "reduction": reduction,
        "normalise": normalise,
        "pad": pad,
        "window": window,
        "flip": flip,
        "jitter": jitter,
        "cutout": cutout,
        "mix": mix,
        "turn": turn,
        "zoom": zoom,
        "crop_test": crop_test,
        "test": test,
    }
    check_options(options, optimizer, epochs, model, dataset.image_shape)
    check_fits(model, dataset, window)
    dataset = part(dataset, limit, validation, seed)
    whole = list(dataset.image_shape[1:])
    model.preprocessing = {} if window is None else {"window": window, "size": whole}
    if normalise == "dataset":
        model.preprocessing |= mean_and_std(dataset.train)
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
        **options,
        "validation": validation,
        "limit": limit,
        "seed": seed,
        "precision": how.precision,
        "compile": how.compile,
        # Behind the settings that change it, so that a resumed run is told those.
        "data_sha256": fingerprint(dataset),
    }
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{model.config['model'].lower()}-{dataset.slug}"
    folder = Path(output) if output else Path("runs") / name
    # A folder that the clock named is not found again unless it is given.
    way_on = "the same command goes on" if output else f"the same command with --output {folder} goes on"
    a_folder("output", folder)
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(folder), deferred() as signals, float32_products(how.precision != "fp32"):
        return train(model, dataset, config, where, how.graph == "auto", folder, resume, signals, way_on)


def train(
    model: Network,
    dataset: Dataset,
    config: dict[str, Any],
    device: torch.device,
    graphed: bool,
    folder: Path,
    resume: str,
    signals: Signals,
    way_on: str,
) -> Run:
    """The loop itself, in a folder that is locked."""
    epochs, batch, seed = config["epochs"], config["batch"], config["seed"]
    count = len(dataset.train.labels)
    steps = -(-count // batch)
    fabric = make_fabric(device, config["precision"])
    model.to(fabric.device)
    optimizer, schedule = make_optimizer(
        config["optimizer"],
        model.parameters(),
        config["lr"],
        config["decay"],
        steps=epochs * (config["steps_told"] or steps),
        weight_decay=config["weight_decay"],
        schedule=config["schedule"],
        compile=config["compile"],
    )
    network, fabric_optimizer = fabric.setup(model, optimizer)
    average = Average(model, config["ema"]) if config["ema"] else None
    state = State(config, model, optimizer, schedule, average)
    if resume == "never" and any((folder / name).exists() for name in (checkpoint.LAST, "run.json")):
        raise WrongArgument(f"{folder} holds a run already; choose another output folder or resume='auto'")
    if (saved := checkpoint.latest(folder)) is not None:
        check_same_run(saved, config, folder)
        state.load_state_dict(saved)
        if state.epoch == epochs and (finished := record.finished(folder, config)) is not None:
            if average:
                average.apply(epochs * steps)
            return Run(folder, finished)
    # Whether one's own data were read as they were meant shows here.
    if dataset.name not in CLASS_NAMES:
        print(dataset.summary)
    # The code that runs is that of now.
    record.commit()
    record.write_config(folder, config)
    record.write_metrics(folder, state.rows)
    train_set, test_set = dataset.train.to(fabric.device), dataset.test.to(fabric.device)
    validation_set = dataset.validation and dataset.validation.to(fabric.device)
    augmentation = Augmentation(**{name: config[name] for name in Augmentation.__dataclass_fields__})
    objective = Objective(**{name: config[name] for name in Objective.__dataclass_fields__})
    step = make_step(
        fabric,
        network,
        model,
        fabric_optimizer,
        train_set,
        graphed,
        augmentation,
        objective,
        average,
        config["compile"],
    )

    def crops(epoch: int) -> Tensor | None:
        """Where test images are cropped, if they are: a function of seed and epoch alone."""
        if not config["crop_test"]:
            return None
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        return crop_offsets(len(test_set.labels), generator, config["pad"]).to(fabric.device)

    found = partial(accuracy, model, precision=config["precision"])
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
                batches(count, batch, seed, epoch, fabric.device, augmentation, dataset.image_shape[1:]),
                state.step,
                None,
            ):
                number = epoch * steps + state.step + 1
                if config["schedule"] == "cosine":
                    factor = cosine(number, epochs * steps, config["warm_up"] * steps)
                    set_rate(optimizer, config["lr"] * factor)
                outcome = step(indices, offsets, number)
                state.count(outcome.loss, outcome.correct, len(indices))
                progress.advance(state, len(indices))
                if signals.pending or time.perf_counter() - last_saved > SECONDS_BETWEEN_CHECKPOINTS:
                    step.check()
                    check_weights(model, epoch * steps + state.step)
                    state.seconds = time.perf_counter() - started
                    checkpoint.save(folder, state.state_dict())
                    last_saved = time.perf_counter()
                if signals.pending:
                    raise Interrupted(signals.pending, f"saved in {folder}; {way_on}")
            step.check()
            check_weights(model, (epoch + 1) * steps)
            seconds = time.perf_counter() - started
            with average.applied((epoch + 1) * steps) if average else nullcontext():
                validation_accuracy = found(validation_set) if validation_set else None
                asked = config["test"] == "epoch"
                test_accuracy = found(test_set, crops(epoch), config["pad"]) if asked else None
            row = state.finish_epoch(validation_accuracy, test_accuracy, seconds)
            waited = time.perf_counter() - last_saved >= SECONDS_BETWEEN_SAVED_EPOCHS[device.type]
            if waited or signals.pending or epoch == epochs - 1:
                checkpoint.save(folder, state.state_dict())
                last_saved = time.perf_counter()
            record.write_metrics(folder, state.rows)
            board.write(row)
            progress.finish(row)
            if signals.pending:
                raise Interrupted(signals.pending, f"saved in {folder}; {way_on}")
    if average:
        average.apply(epochs * steps)
    test_accuracy = state.rows[-1].test_accuracy
    if test_accuracy is None:
        test_accuracy = found(test_set, crops(epochs - 1), config["pad"])
        state.rows[-1] = state.rows[-1]._replace(test_accuracy=test_accuracy)
        record.write_metrics(folder, state.rows)
    model.save(folder)
    ran = {"compiled": step.compiled, "graph": isinstance(step, GraphedStep) and bool(step.captured)}
    record.write_run(folder, model, state.rows, config, fabric.device, ran)
    draw_pictures(folder, model, state.rows, test_set, dataset.class_names)
    return Run(folder, test_accuracy)


def batches(
    count: int,
    batch: int,
    seed: int,
    epoch: int,
    device: torch.device | str = "cpu",
    augmentation: Augmentation | None = None,
    size: tuple[int, int] = (0, 0),
) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices and chance of every batch of an epoch, images having a size: only seed and epoch decide."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator).to(device)
    offsets = (augmentation or Augmentation()).draw(count, size, generator).to(device)
    at_once = min(batch, count)
    return zip(order.split(at_once), offsets.split(at_once), strict=True)
