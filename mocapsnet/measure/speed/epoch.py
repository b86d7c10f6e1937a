"""Whole epochs with evaluation, as training runs them, kernels warm and data resident."""

import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch

from mocapsnet import data
from mocapsnet.data import Dataset
from mocapsnet.data.classes import CLASS_NAMES, COUNTS
from mocapsnet.measure.report import how
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.networks import build, random_split
from mocapsnet.measure.speed.step import Trained
from mocapsnet.measure.timing import progress
from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.train.classify import accuracy
from mocapsnet.train.culprit import check_weights
from mocapsnet.train.device import compiled, float32_products, pick_device
from mocapsnet.train.fit import batches
from mocapsnet.train.graph import WARM_UP
from mocapsnet.train.state import Row, State


class EpochRow(NamedTuple):
    """One epoch of one network."""

    network: str
    blocks: int
    seed: int
    epoch: int
    train_seconds: float
    """The order and crops drawn, every step, and the check that all of it is finite."""
    evaluation_seconds: float
    """Every test image classified, in the precision of training."""
    total_seconds: float
    """Since the first epoch began; no checkpoint is written and nothing drawn."""
    images_per_second: float
    """Trained on."""
    train_loss: float
    test_accuracy: float | None
    """None where images are random."""
    images: str
    """real, or random in the data set's shape and number."""
    train_images: int
    test_images: int


def dataset_of(settings: BenchSettings) -> tuple[Dataset, str]:
    """The data set if it is there, else random images like it; and which."""
    try:
        dataset, images = data.load(settings.dataset, settings.data), "real"
    except FileNotFoundError:
        name = settings.dataset
        train, test = (random_split(name, count, seed) for seed, count in enumerate(COUNTS[name]))
        dataset, images = Dataset(name, train, test, CLASS_NAMES[name]), "random"
    return (dataset if settings.limit is None else dataset.limit(settings.limit)), images


def epochs_of(
    settings: BenchSettings,
    model: CapsuleNetwork,
    dataset: Dataset,
    seed: int,
    device: torch.device,
    advance: Callable[[int], object],
) -> Iterator[tuple[Row, float, float]]:
    """Train one network: fit's row of each epoch, seconds of its evaluation, and seconds since the start."""
    way = how(settings, device)
    train_set, test_set, count = dataset.train.to(device), dataset.test.to(device), len(dataset.train.labels)
    trained = Trained(model, train_set, settings.batch, way, device, settings.decay)
    state = State({}, model, trained.optimizer.optimizer, trained.schedule)
    with float32_products(way.precision != "fp32"), compiled(model, way.compile):
        # A whole batch and an epoch's last one: each is compiled and captured before the clock runs.
        first, *_, last = [*batches(count, settings.batch, 0, 0, device)] * 2
        for indices, offsets in [first, last] * (WARM_UP + 1):
            trained.step(indices, offsets, 1)
        trained.check_as_asked()
        trained.step.check()
        accuracy(model, test_set, precision=way.precision)
        trained.restart()
        begun = time.perf_counter()
        for epoch in range(settings.epochs):
            started = time.perf_counter()
            for indices, offsets in batches(count, settings.batch, seed, epoch, device):
                outcome = trained.step(indices, offsets, state.step + 1)
                state.count(outcome.loss, outcome.correct, len(indices))
                advance(len(indices))
            trained.step.check()
            check_weights(model, state.step)
            between = time.perf_counter()
            found = accuracy(model, test_set, precision=way.precision)
            ended = time.perf_counter()
            yield state.finish_epoch(None, found, between - started), ended - between, ended - begun


def bench_epoch(settings: BenchSettings) -> list[EpochRow]:
    """Time epochs of every network at every depth; each starts from its first weights once all is warm.

    >>> bench_epoch(BenchSettings(dataset="mnist6k", limit=100, channels=8, epochs=1))[0].train_seconds
    """
    settings.check("epoch")
    device, depths = pick_device(settings.device), settings.blocks("epoch")
    how(settings, device)
    dataset, images = dataset_of(settings)
    shape = dataset.image_shape, dataset.classes
    for network in settings.networks:
        build(settings, network, depths[0], shape)
    settings.folder("epoch").mkdir(parents=True, exist_ok=True)
    counts = len(dataset.train.labels), len(dataset.test.labels)
    rows = []
    runs = [*product(depths, settings.networks, range(settings.seeds))]
    with progress(len(runs) * settings.epochs * counts[0]) as bar:
        for blocks, network, seed in runs:
            bar.set_description(f"{network}, {blocks} blocks")
            model = build(settings, network, blocks, shape, seed)
            for row, evaluation, total in epochs_of(settings, model, dataset, seed, device, bar.update):
                seconds = row.seconds, evaluation, total, row.images_per_second
                found = row.test_accuracy if images == "real" else None
                told = (*seconds, row.train_loss, found, images, *counts)
                rows.append(EpochRow(network, blocks, seed, row.epoch, *told))
    return rows
