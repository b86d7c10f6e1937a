"""Classifying: the lengths of class capsules, without a decoder and without gradients."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import standardise, to_pixels
from mocapsnet.measure.report import EAGER
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.naive import Naive
from mocapsnet.measure.speed.networks import (
    Convolutions,
    against_naive,
    begin,
    build,
    in_precision,
    over,
)
from mocapsnet.measure.timing import Peak, agree, attempt, cells, in_turn, progress, warm
from mocapsnet.nn.inversion import relative_error
from mocapsnet.ops import length
from mocapsnet.train.device import How, compiled, float32_products, in_fast_order, make_fabric

# What a compiler may change by rounding at other places: a last digit of the products' type.
COMPILED = {"bf16-mixed": 2**-8, "tf32": 2**-11, "fp32": 1e-5}


class InferenceRow(NamedTuple):
    """One network at one depth; None where there is nothing to measure, and the note says why."""

    network: str
    """naive is a MoCapsNet in eager float32, convolutions the two of a network alone."""
    blocks: int
    seconds: float | None
    """The median forward of a batch: standardised images to lengths."""
    seconds_p20: float | None
    seconds_p80: float | None
    over_convolutions: float | None
    over_naive: float | None
    images_per_second: float | None
    peak_bytes: int | None
    """On CUDA: the most a forward allocates, weights and images of the batch included, the data set not."""
    lengths_error: float | None
    """The relative distance from the naive version's lengths, in eager float32."""
    compiled_error: float | None
    """The relative distance of what is timed, compiled and graphed, from the same in eager mode."""
    note: str = ""


class Lengths(nn.Module):
    """Images [B,C,H,W] to the lengths [B,K] of class capsules."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """Nothing is reconstructed."""
        return length(self.model.encode(images))


class Contender(NamedTuple):
    """What is timed in turn, and what is known of it before."""

    function: Callable[[], Tensor]
    peak: int | None
    error: float


def contender(module: nn.Module, how: How, batch: int, data: Split, stack: ExitStack) -> Contender:
    """A module's forward, compiled and graphed where that is wanted; it must give what eager mode gives."""
    device = data.images.device
    peak = Peak(device)
    module.to(device).eval()
    images = standardise(to_pixels(data.images[:batch]))
    fabric = make_fabric(device, how.precision)

    @torch.no_grad()
    def function() -> Tensor:
        with fabric.autocast(), float32_products(how.precision != "fp32"):
            given: Tensor = module(images)
            return given

    eager = function().float()
    stack.enter_context(compiled(module, how.compile))
    timed = warm(function, device, how.graph == "auto")
    what = f"{type(module).__name__} as it is timed and in eager mode must be equal"
    error = agree(what, relative_error([timed().float()], [eager]), COMPILED[how.precision])
    return Contender(timed, peak.of(function), error)


def measure(
    settings: BenchSettings, blocks: int, how: How, data: Split, advance: Callable[[], object]
) -> list[InferenceRow]:
    """A row for every network at a depth, once all of them are right; they are timed in turn."""
    make: dict[str, Callable[..., Contender]] = {}
    errors: dict[str, float] = {}
    for name in settings.networks:
        model = build(settings, name, blocks)
        errors[name], _ = against_naive(model, data)
        in_precision(model, data, how)
        in_fast_order(model, data.images.device)
        make[name] = partial(contender, Lengths(model), how)
        advance()
    if blocks in settings.naive_blocks("inference"):
        make["naive"] = partial(contender, Lengths(Naive(build(settings, "mocapsnet", blocks))), EAGER)
    model = build(settings, "capsnet", 1)
    in_fast_order(model, data.images.device)
    make["convolutions"] = partial(contender, Convolutions(model), how)
    with ExitStack() as stack:
        made = {
            name: attempt(partial(function, settings.batch, data, stack)) for name, function in make.items()
        }
        timed = {name: found.function for name, found in made.items() if found}
        times = in_turn(timed, data.images.device, settings.repeats, advance)
    return [
        InferenceRow(
            name,
            blocks,
            *cells(times.get(name)),
            over(times.get(name), times.get("convolutions")),
            over(times.get(name), times.get("naive")),
            settings.batch / times[name].seconds if found else None,
            found.peak if found else None,
            errors.get(name),
            found.error if found else None,
            "" if found else "out of memory",
        )
        for name, found in made.items()
    ]


def bench_inference(settings: BenchSettings) -> list[InferenceRow]:
    """Time every network's lengths at every depth, for a batch of random images that lies on the device.

    >>> bench_inference(BenchSettings(depths=[1], batch=4, dataset="mnist6k", channels=8))[0].seconds
    """
    start = begin("inference", settings)
    networks = len(settings.networks)
    turns = sum(networks + 1 + (blocks in start.naive) for blocks in start.depths)
    rows: list[InferenceRow] = []
    with progress(turns * settings.repeats + len(start.depths) * networks) as bar:
        for blocks in start.depths:
            bar.set_description(f"{blocks} blocks")
            rows += measure(settings, blocks, start.how, start.data, bar.update)
    return rows
