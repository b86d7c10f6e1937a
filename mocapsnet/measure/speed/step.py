"""The training step, as training runs it, beside its naive version and the two convolutions alone."""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocapsnet.data import Split
from mocapsnet.data.augment import PAD, crop, standardise, to_pixels
from mocapsnet.errors import CannotRun
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
    released,
)
from mocapsnet.measure.timing import Peak, agree, attempt, cells, in_turn, progress, warm
from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.train.device import How, compiled, float32_products, in_fast_order, make_fabric
from mocapsnet.train.fit import batches
from mocapsnet.train.graph import WARM_UP, GraphedStep, make_step
from mocapsnet.train.optimizers import LEARNING_RATES, make_optimizer
from mocapsnet.train.step import Outcome, Step

# Of lengths and gradients in float32, and of both in the step's precision.
Errors = tuple[float | None, float | None, float | None, float | None]
# A graph runs the very kernels of the eager step; only those that add in any order may differ.
GRAPH_LOSSES = 1e-5


class StepRow(NamedTuple):
    """One network at one depth; None where there is nothing to measure, and the note says why."""

    network: str
    """naive is a MoCapsNet in eager float32, convolutions the two of a network alone."""
    blocks: int
    seconds: float | None
    """The median step: gather, crop, standardise, forward, loss, backward, Adam."""
    seconds_p20: float | None
    seconds_p80: float | None
    forward_backward_seconds: float | None
    """Forward, loss and backward alone, on images that are ready."""
    forward_backward_seconds_p20: float | None
    forward_backward_seconds_p80: float | None
    over_convolutions: float | None
    """Forward and backward, over that of the convolutions."""
    over_naive: float | None
    """Forward and backward, over that of the naive version."""
    step_over_naive: float | None
    images_per_second: float | None
    """Trained on."""
    peak_bytes: int | None
    """On CUDA: the most a step allocates; weights, gradients, moments, graph included, the data set not."""
    first_loss: float | None
    last_loss: float | None
    lengths_error: float | None
    """The relative distance from the naive version's lengths, in eager float32."""
    gradient_error: float | None
    """The same of gradients, in the part of the network where it is largest."""
    rounded_error: float | None
    """The relative distance of lengths in the step's precision from the naive version's, where it rounds."""
    rounded_gradient_error: float | None
    """The same of gradients, in the part of the network where it is largest."""
    graph_error: float | None
    """The largest relative distance of a graphed step's loss from the eager one's."""
    note: str = ""


class Trained:
    """A network with its optimizer and its step, and a way back to the start."""

    def __init__(
        self, model: Any, data: Split, batch: int, how: How, device: torch.device, decay: float = 0.96
    ) -> None:
        self.how, self.device, self.model = how, device, model.to(device)
        self.fabric = make_fabric(device, how.precision)
        adam, self.schedule = make_optimizer(
            "adam", model.parameters(), LEARNING_RATES["adam"], decay, steps=1
        )
        network, self.optimizer = self.fabric.setup(model, adam)
        arguments = (self.fabric, network, model, self.optimizer, data)
        self.step = (
            Step(*arguments)
            if isinstance(model, Naive)
            else make_step(*arguments, how.graph == "auto", compile=how.compile)
        )
        # On the host, so that no peak holds them.
        self.start = [weight.detach().to("cpu", copy=True) for weight in model.parameters()]
        self.batches = [
            pair for pair in batches(len(data.labels), batch, 0, 0, device) if len(pair[0]) == batch
        ]
        self.restart()

    @torch.no_grad()
    def restart(self) -> None:
        """Back to the first weights, moments and batch, in place."""
        for weight, first in zip(self.model.parameters(), self.start, strict=True):
            weight.copy_(first)
        for moments in self.optimizer.state.values():
            for moment in moments.values():
                moment.zero_()
        self.optimizer.zero_grad()
        self.number, self.following = 0, cycle(self.batches)

    def train(self, run: Callable[..., Outcome] | None = None) -> Tensor:
        """The next step; its loss."""
        self.number += 1
        with float32_products(self.how.precision != "fp32"):
            return (run or self.step)(*next(self.following), self.number).loss

    def forward_backward(self) -> Callable[[], None]:
        """A function that computes the gradients of the first batch, and no more."""
        images, pixels, labels, _ = self.step.batch(*self.batches[0])

        def function() -> None:
            self.optimizer.zero_grad()
            with float32_products(self.how.precision != "fp32"):
                self.fabric.backward(self.step.loss(self.step.network(images, labels), labels, pixels))

        return function

    def check_as_asked(self) -> None:
        """Refuse to time a step that went on in another way than was asked for."""
        if self.how.compile and not self.step.compiled:
            raise CannotRun("the step is not compiled; --compile false times it as written")
        if isinstance(self.step, GraphedStep) and self.step.failed is not None:
            if isinstance(self.step.failed, torch.OutOfMemoryError):
                raise self.step.failed
            raise CannotRun("the step is no graph; --graph off times it without one")

    def warm_up(self, peak: Peak) -> tuple[int | None, float | None]:
        """Peak bytes of a step that is warm; how far a graph's losses are from the eager step's."""
        losses = [float(self.train()) for _ in range(WARM_UP)]
        most = peak.of(lambda: losses.append(float(self.train())))
        self.check_as_asked()
        error = None
        if isinstance(self.step, GraphedStep):
            losses.append(float(self.train()))
            self.restart()
            eager = [float(self.train(partial(Step.__call__, self.step))) for _ in losses]
            error = max(abs(one - other) / other for one, other in zip(losses, eager, strict=True))
            name = type(self.model).__name__
            agree(f"{name}'s graphed and eager steps must have equal losses", error, GRAPH_LOSSES)
        self.restart()
        return most, error


class Contender(NamedTuple):
    """What is timed in turn, and what is known of it before."""

    functions: dict[str, Callable[[], Any]]
    peak: int | None
    graph_error: float | None = None
    check: Callable[[], None] = lambda: None


def network_contender(model: Any, batch: int, how: How, data: Split, stack: ExitStack) -> Contender:
    """A network's step, and its forward and backward alone."""
    device = data.images.device
    peak = Peak(device)
    trained = Trained(model, data, batch, how, device)
    stack.enter_context(compiled(model, how.compile))
    most, error = trained.warm_up(peak)
    function = warm(trained.forward_backward(), device, how.graph == "auto")
    functions: dict[str, Callable[[], Any]] = {"step": trained.train, "forward_backward": function}
    return Contender(functions, most, error, trained.step.check)


def convolutions_contender(
    model: CapsuleNetwork, batch: int, how: How, data: Split, stack: ExitStack
) -> Contender:
    """The two convolutions' forward and backward, in the step's precision."""
    device = data.images.device
    peak = Peak(device)
    convolutions = Convolutions(model).to(device)
    in_fast_order(model, device)
    stack.enter_context(compiled(convolutions, how.compile))
    fabric = make_fabric(device, how.precision)
    # In the order of memory that a step's crop leaves.
    images = standardise(to_pixels(crop(data.images[:batch], data.labels.new_full((batch, 2), PAD))))
    with fabric.autocast(), torch.no_grad():
        gradient = torch.randn_like(Convolutions.forward(convolutions, images))

    def function() -> None:
        convolutions.zero_grad()
        with float32_products(how.precision != "fp32"):
            with fabric.autocast():
                maps = convolutions(images)
            maps.backward(gradient)

    warmed = warm(function, device, how.graph == "auto")
    return Contender({"forward_backward": warmed}, peak.of(function))


def measure(
    settings: BenchSettings, blocks: int, how: How, data: Split, advance: Callable[[], object]
) -> list[StepRow]:
    """A row for every network at a depth, once all of them are right; their steps are timed in turn."""
    models: dict[str, Any] = {name: build(settings, name, blocks) for name in settings.networks}
    errors: dict[str, Errors] = {}
    for name, model in models.items():
        errors[name] = *against_naive(model, data), *in_precision(model, data, how)
        advance()
    ways = dict.fromkeys(models, how)
    if blocks in settings.naive_blocks("step"):
        models["naive"], ways["naive"] = Naive(build(settings, "mocapsnet", blocks)), EAGER
    if blocks in (settings.released_depths or []):
        models |= (code := released(settings, blocks))
        ways |= dict.fromkeys(code, EAGER)
    make = {name: partial(network_contender, model, how=ways[name]) for name, model in models.items()}
    make["convolutions"] = partial(convolutions_contender, build(settings, "capsnet", 1), how=how)
    with ExitStack() as stack:
        made = {
            name: attempt(partial(function, batch=settings.batch, data=data, stack=stack))
            for name, function in make.items()
        }
        timed = {
            (name, part): function
            for name, contender in made.items()
            if contender
            for part, function in contender.functions.items()
        }
        losses: dict[str, list[float]] = {name: [] for name in made}

        def seen(what: tuple[str, str], loss: Tensor | None) -> None:
            if loss is not None:
                losses[what[0]].append(float(loss))

        times = in_turn(timed, data.images.device, settings.repeats, advance, seen)
        for contender in made.values():
            if contender:
                contender.check()
    rows = []
    for name, contender in made.items():
        step, alone = (times.get((name, part)) for part in ("step", "forward_backward"))
        fell: list[float] | list[None] = losses[name] or [None]
        rows.append(
            StepRow(
                name,
                blocks,
                *cells(step),
                *cells(alone),
                over(alone, times.get(("convolutions", "forward_backward"))),
                over(alone, times.get(("naive", "forward_backward"))),
                over(step, times.get(("naive", "step"))),
                settings.batch / step.seconds if step else None,
                contender.peak if contender else None,
                fell[0],
                fell[-1],
                *errors.get(name, (None, None, None, None)),
                contender.graph_error if contender else None,
                "" if contender else "out of memory",
            )
        )
    return rows


def bench_step(settings: BenchSettings) -> list[StepRow]:
    """Time the training step of every network at every depth, on random images that lie on the device.

    >>> bench_step(BenchSettings(depths=[1], batch=4, dataset="mnist6k", channels=8, repeats=3))[0].seconds
    """
    start = begin("step", settings)
    networks = len(settings.networks)
    beside = Counter([*start.naive, *2 * (settings.released_depths or [])])
    turns = sum(2 * (networks + beside[blocks]) + 1 for blocks in start.depths)
    rows: list[StepRow] = []
    with progress(turns * settings.repeats + len(start.depths) * networks) as bar:
        for blocks in start.depths:
            bar.set_description(f"{blocks} blocks")
            rows += measure(settings, blocks, start.how, start.data, bar.update)
    return rows
