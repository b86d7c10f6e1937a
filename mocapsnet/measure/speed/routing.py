"""Each routing alone, between capsules and from primary capsules, in every implementation that runs here."""

import copy
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from mocapsnet.errors import CannotRun
from mocapsnet.measure.report import how
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.networks import CHECKED, build, over
from mocapsnet.measure.timing import agree, attempt, cells, in_turn, progress, sized, warm
from mocapsnet.nn.routing import ROUTINGS, CapsLayer
from mocapsnet.ops import squash
from mocapsnet.train.device import (
    How,
    cannot_compile,
    compiled,
    float32_products,
    in_fast_order,
    make_fabric,
    pick_device,
)

BACKENDS = ("reference", "auto", "fused")
# Errors are medians of so many draws: where a coupling is nearly a choice, one draw's error is luck.
DRAWS = 5


class RoutingRow(NamedTuple):
    """One routing, one implementation; None where there is nothing to measure, and the note says why."""

    routing: str
    inputs: str
    """capsules: of the trunk; primary: of the data set's images."""
    shape: str
    """I x D -> J x E."""
    backend: str
    forward_seconds: float | None
    """The median, without gradients."""
    forward_seconds_p20: float | None
    forward_seconds_p80: float | None
    forward_backward_seconds: float | None
    forward_backward_seconds_p20: float | None
    forward_backward_seconds_p80: float | None
    over_reference: float | None
    """Forward and backward, over that of the reference."""
    output_error: float
    """The relative distance from the reference in float64."""
    gradient_error: float
    """The same of the gradient in which it is largest."""
    error_ratio: float
    """The largest ratio of an error to the reference's own in this precision; 2 is allowed."""
    note: str = ""


def results(layer: CapsLayer, u: Tensor, fabric: Fabric | None) -> list[Tensor]:
    """Capsules, and the gradients of a fixed sum of them for u and all weights."""
    u = u.detach().requires_grad_()
    with fabric.autocast() if fabric else nullcontext():
        v = layer(u)
    weights = torch.linspace(-1, 2, v.numel(), dtype=torch.float64).view_as(v).to(v)
    return [v.detach(), *torch.autograd.grad((weights * v).sum(), [u, *layer.parameters()])]


def errors_of(
    layers: dict[str, CapsLayer], batch: int, fabric: Fabric
) -> dict[str, tuple[float, float, float]]:
    """Each backend's errors of v and of the worst gradient, and the largest ratio to the reference's."""
    _, I, _, D = layers["reference"].W.shape  # noqa: E741
    exact = copy.deepcopy(layers["reference"]).double()
    start = {name: x.clone() for name, x in exact.state_dict().items()}
    drawn: dict[str, list[Any]] = {name: [] for name in layers}
    sizes = []
    for seed in range(DRAWS):
        generator = torch.Generator().manual_seed(seed)
        u = squash(torch.randn(min(batch, CHECKED), I, D, generator=generator)).to(exact.W.device)
        # Weights that begin alike would all be rounded alike, in every draw.
        weights = {
            name: x + 0.1 * torch.randn(x.shape, generator=generator).to(x) for name, x in start.items()
        }
        for layer in layers.values():
            layer.load_state_dict(weights)
        exact.load_state_dict(layers["reference"].state_dict())
        truth = results(exact, u.double(), None)
        sizes.append([float(part.norm()) for part in truth])
        for name, layer in layers.items():
            found = zip(results(layer, u, fabric), truth, strict=True)
            drawn[name].append([float((x.double() - y).norm()) for x, y in found])
    size = np.median(sizes, axis=0)
    away = {name: np.median(draws, axis=0) for name, draws in drawn.items()}
    # Rounding the right result to float32 is nobody's fault.
    allowed = np.maximum(away["reference"], np.maximum(2**-24 * size, 1e-30))
    relative = {name: found / np.maximum(size, 1e-30) for name, found in away.items()}
    return {
        name: (float(relative[name][0]), float(relative[name][1:].max()), float((found / allowed).max()))
        for name, found in away.items()
    }


def backends(make: Callable[[str], CapsLayer], u: Tensor) -> dict[str, CapsLayer]:
    """The layer in every implementation that can run on u, with the same weights, laid out as for a step."""
    layers: dict[str, CapsLayer] = {}
    for backend in BACKENDS:
        torch.manual_seed(0)
        try:
            layer = make(backend).to(u.device)
            in_fast_order(layer, u.device)
            with torch.no_grad():
                layer(u[:1])
        except CannotRun:
            continue
        layers[backend] = layer
    return layers


def functions_of(
    layer: CapsLayer, u: Tensor, how: How, stack: ExitStack
) -> tuple[dict[str, Callable[[], Any]], str]:
    """Forward alone, and forward and backward, warm, as long as the stack is open; and what is to be noted.

    What torch.compile fails at is timed as it is, and noted.
    """
    with ExitStack() as own:
        own.enter_context(compiled(layer, how.compile))
        try:
            found = attempt(partial(warm_functions, layer, u, how))
        except RuntimeError as error:
            if not cannot_compile(error):
                raise
            own.close()
            parts, note = functions_of(layer, u, how._replace(compile=False), stack)
            return parts, note or "not compiled: torch cannot"
        stack.push(own.pop_all())
    return (found, "") if found else ({}, "out of memory")


def warm_functions(layer: CapsLayer, u: Tensor, how: How) -> dict[str, Callable[[], Any]]:
    """The two functions, warm."""
    fabric = make_fabric(u.device, how.precision)
    leaf = u.detach().requires_grad_()

    @torch.no_grad()
    def forward() -> Any:
        with fabric.autocast():
            return layer(u)

    with fabric.autocast(), torch.no_grad():
        gradient = torch.randn_like(layer(u))

    def forward_backward() -> None:
        layer.zero_grad()
        leaf.grad = None
        with fabric.autocast():
            v = layer(leaf)
        v.backward(gradient)

    parts = {"forward": forward, "forward_backward": forward_backward}
    return {name: warm(function, u.device, how.graph == "auto") for name, function in parts.items()}


def measure(
    settings: BenchSettings,
    routing: str,
    inputs: int,
    how: How,
    device: torch.device,
    advance: Callable[[], object],
) -> list[RoutingRow]:
    """A row for every implementation of a routing, once all of them are right; they are timed in turn."""
    J, D = settings.capsules, settings.capsule_dim
    with sized(f"{inputs} such capsules"):
        u = squash(torch.randn(settings.batch, inputs, D)).to(device)
        layers = backends(lambda backend: CapsLayer(inputs, D, J, D, routing, backend=backend), u)
    fabric = make_fabric(device, how.precision)
    errors = errors_of(layers, settings.batch, fabric)
    for backend, (_, _, ratio) in errors.items():
        what = f"{routing} of {inputs} capsules, {backend}: errors must be at most twice the reference's"
        agree(what, ratio, 2)
    with ExitStack() as stack:
        if how.compile:
            torch.compiler.reset()
        made = {backend: functions_of(layer, u, how, stack) for backend, layer in layers.items()}
        timed = {(name, part): run for name, (parts, _) in made.items() for part, run in parts.items()}
        times = in_turn(timed, device, settings.repeats, advance)
    rows = []
    for backend, (_, note) in made.items():
        both = times.get((backend, "forward_backward"))
        rows.append(
            RoutingRow(
                routing,
                "capsules" if inputs == J else "primary",
                f"{inputs}x{D} -> {J}x{D}",
                backend,
                *cells(times.get((backend, "forward"))),
                *cells(both),
                over(both, times.get(("reference", "forward_backward"))),
                *errors[backend],
                note,
            )
        )
    return rows


def bench_routing(settings: BenchSettings) -> list[RoutingRow]:
    """Time every routing alone, with its default gradient, in the two sizes a network has.

    >>> bench_routing(BenchSettings(batch=4, dataset="mnist6k", channels=8))[0].forward_seconds
    """
    settings.check("routing")
    device = pick_device(settings.device)
    way = how(settings, device)
    primary = build(settings, "capsnet", 1).caps1.W.shape[1]
    settings.folder("routing").mkdir(parents=True, exist_ok=True)
    rows: list[RoutingRow] = []
    # Of three implementations at most, two functions each.
    total = len(ROUTINGS) * 2 * len(BACKENDS) * 2 * settings.repeats
    with progress(total) as bar, float32_products(way.precision != "fp32"):
        for routing in ROUTINGS:
            for inputs in (settings.capsules, primary):
                bar.set_description(f"{routing}, {inputs} capsules")
                rows += measure(settings, routing, inputs, way, device, bar.update)
    return rows
