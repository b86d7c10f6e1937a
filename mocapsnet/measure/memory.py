"""What depth costs: bytes kept for backward, peak memory and time of a step, per memory and arithmetic."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mocapsnet.data.augment import standardise
from mocapsnet.data.classes import shape_of
from mocapsnet.errors import Irreproducible
from mocapsnet.losses import capsule_loss
from mocapsnet.measure.inspect import bytes_for_backward
from mocapsnet.measure.memory_report import Row
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.timing import attempt, cells, progress, seconds_of, sized, times_of
from mocapsnet.nn.inversion import relative_error
from mocapsnet.nn.network import MoCapsNet
from mocapsnet.nn.reversible import MomentumSequence
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk
from mocapsnet.train.device import pick_device

# Deeper trunks are not reconstructed well in floats; their error is measured and not refused.
FLOAT_LAYERS = 16
ROUNDING = 1e-5


class TorchCheckpoint(nn.Module):
    """Equations 3 and 4 in floats, each layer in torch's own checkpoint: the honest baseline.

    Its inputs are saved tensors and counted as such; the states of the random generators that it keeps for
    every layer (some 5 kB each, in the host's memory) are not.
    """

    def __init__(self, layers: Iterable[nn.Module], gamma: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.gamma = gamma

    def forward(self, x: Tensor) -> Tensor:
        """The state after the last layer."""
        velocity = torch.zeros_like(x)
        for layer in self.layers:
            f = checkpoint(layer, x, use_reentrant=False)
            velocity = self.gamma * velocity + (1 - self.gamma) * f
            x = x + velocity
        return x


# Those that store come first: the others are compared with them.
VARIANTS: dict[str, Callable[..., nn.Module]] = {
    f"{arithmetic}-{memory}": partial(MomentumSequence, memory=memory, arithmetic=arithmetic)
    for memory in ("store", "checkpoint", "reverse")
    for arithmetic in ("float", "exact")
} | {"torch-checkpoint": TorchCheckpoint}
# Of a whole network; they compute something else and are compared with nothing.
WITHOUT_MOMENTUM = {"residual": ResidualTrunk, "plain": PlainTrunk}


class Step:
    """A training step of a model whose trunk is exchanged, always around the same layers."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Sequence[Tensor],
        loss: Callable[[Any], Tensor],
        gamma: float,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.loss = loss
        self.optimizer = optimizer
        self.device = inputs[0].device
        layers = model.get_submodule("trunk.layers")
        self.trunks = {name: make(layers, gamma=gamma) for name, make in VARIANTS.items()}
        if optimizer:
            self.trunks |= {name: make(layers) for name, make in WITHOUT_MOMENTUM.items()}
        self.leaves = [leaf for leaf in (*model.parameters(), *inputs) if leaf.requires_grad]
        self.weights = [weight.detach().clone() for weight in self.leaves] if optimizer else []

    @torch.no_grad()
    def use(self, variant: str) -> None:
        """Take a trunk and put all back to the start, so that no variant meets another's gradients."""
        self.model.trunk = self.trunks[variant]
        for leaf in self.leaves:
            leaf.grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.zero_()
        if self.optimizer:
            for leaf, weight in zip(self.leaves, self.weights, strict=True):
                leaf.copy_(weight)
            for moments in self.optimizer.state.values():
                for moment in moments.values():
                    moment.zero_()

    def forward(self) -> Tensor:
        """The loss."""
        return self.loss(self.model(*self.inputs))

    def finish(self, loss: Tensor) -> None:
        """The rest of the step."""
        loss.backward()
        if self.optimizer:
            self.optimizer.step()

    def results(self, variant: str) -> tuple[list[Tensor], list[Tensor]]:
        """What the model gives, and the gradients."""
        self.use(variant)
        # A GPU's convolutions may otherwise add up in another order every time.
        with torch.backends.cudnn.flags(enabled=True, deterministic=True):
            output = self.model(*self.inputs)
            self.finish(self.loss(output))
        outputs = [output] if isinstance(output, Tensor) else [*output]
        gradients = [leaf.grad.clone() for leaf in self.leaves if leaf.grad is not None]
        return [y.detach() for y in outputs], gradients

    def memory(self, variant: str) -> tuple[int, int | None, int | None]:
        """Bytes kept for backward; on CUDA, bytes after a forward and at the peak, beyond those before."""
        self.use(variant)
        kept = bytes_for_backward(self.forward, self.model)
        if self.device.type != "cuda":
            return kept, None, None
        # From an empty cache: what lies in it decides how blocks are cut, and so counted.
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        loss = self.forward()
        after = torch.cuda.memory_allocated(self.device)
        self.finish(loss)
        return kept, after - before, torch.cuda.max_memory_allocated(self.device) - before

    def seconds(self, variant: str) -> float:
        """The time of one step."""
        self.use(variant)
        return seconds_of(lambda: self.finish(self.forward()), self.device)[0]


def make_step(settings: BenchSettings, blocks: int, device: torch.device) -> Step:
    """The step of a trunk alone, or of a whole network with its loss and Adam, on random data."""
    torch.manual_seed(0)
    capsules, dim, batch, gamma = settings.capsules, settings.capsule_dim, settings.batch, settings.gamma
    if settings.of == "network":
        shape, classes = shape_of(settings.dataset)
        sizes: dict[str, Any] = {"capsules": capsules, "capsule_dim": dim, "channels": settings.channels}
        network = MoCapsNet(shape, classes, blocks, settings.routing, **sizes, gamma=gamma).to(device)
        pixels, labels = torch.rand(batch, *shape).to(device), torch.randint(classes, (batch,)).to(device)
        adam = torch.optim.Adam(network.parameters(), fused=device.type == "cuda")
        images = standardise(pixels)
        return Step(network, (images, labels), lambda y: capsule_loss(y, labels, pixels), gamma, adam)
    layers = [
        # Weights as large as trained ones: with smaller ones a wrong inversion would go unseen.
        CapsLayer(capsules, dim, capsules, dim, settings.routing, weight_std=0.3)
        for _ in range(2 * blocks)
    ]
    trunk = nn.Sequential(OrderedDict(trunk=MomentumSequence(layers, gamma))).to(device)
    x = torch.randn(batch, capsules, dim).to(device).requires_grad_()
    return Step(trunk, (x,), lambda y: y.sum(), gamma)


def check(step: Step, layers: int, gamma: float, advance: Callable[[], object]) -> dict[str, float | None]:
    """Each variant's gradient error, against the first of its arithmetic that fits, which is store.

    Exact variants must agree to the bit, in output and gradients, but for a GPU's fused trunk, whose programs
    round in their own way; those in floats to rounding, as long as reconstruction in floats can, whose errors
    grow by 1/γ per layer.
    """
    first: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    errors: dict[str, float | None] = {}
    for variant in step.trunks:
        advance()
        errors[variant] = None
        found = attempt(partial(step.results, variant))
        if found is None or variant in WITHOUT_MOMENTUM:
            continue
        exact = variant.startswith("exact")
        output, gradients = map(relative_error, found, first.setdefault("exact" if exact else "float", found))
        fused = variant == "exact-reverse" and step.device.type == "cuda"
        allowed = (ROUNDING if fused else 0) if exact else ROUNDING / max(gamma**layers, 1e-300)
        if (exact or layers <= FLOAT_LAYERS) and not (output <= allowed and gradients <= allowed):
            raise Irreproducible(
                f"{variant} must agree with store to {allowed:.1g} before anything is measured, "
                f"but at {layers} layers its output is {output:.1g} away and its gradients {gradients:.1g}"
            )
        errors[variant] = gradients
    return errors


def measure(step: Step, blocks: int, gamma: float, repeats: int, advance: Callable[[], object]) -> list[Row]:
    """A row for every variant; their steps are timed in turn, so that a busy machine slows all alike."""
    errors = check(step, 2 * blocks, gamma, advance)
    sizes = {}
    for variant in step.trunks:
        sizes[variant] = attempt(partial(step.memory, variant))
        advance()
    # What was checked and counted is warm.
    times: dict[str, list[float]] = {variant: [] for variant, size in sizes.items() if size}
    for _ in range(repeats):
        for variant, seconds in times.items():
            seconds.append(step.seconds(variant))
            advance()
    rows = []
    for variant, size in sizes.items():
        kept, after, peak = size or (None, None, None)
        told = cells(times_of(times[variant]) if size else None)
        note = "" if size else "out of memory"
        error = errors[variant]
        rows.append(Row(variant, blocks, 2 * blocks, kept, after, peak, *told, error, note))
    return rows


def bench_memory(settings: BenchSettings) -> list[Row]:
    """Measure every variant at every depth; before a depth is measured, its variants are compared.

    >>> bench_memory(BenchSettings(depths=[1, 2], batch=4, capsules=4, repeats=3))[0].kept_bytes
    """
    settings.check("memory")
    device, depths = pick_device(settings.device), settings.blocks("memory")
    rows: list[Row] = []
    variants = len(VARIANTS) + len(WITHOUT_MOMENTUM) * (settings.of == "network")
    with progress(sum(depths) * variants * (settings.repeats + 2)) as bar:
        for blocks in depths:
            bar.set_description(f"{blocks} blocks")
            with sized(f"{blocks} such blocks"):
                step = make_step(settings, blocks, device)
            # Before anything takes long: a folder that cannot be made is an error at once.
            settings.folder("memory").mkdir(parents=True, exist_ok=True)
            rows += measure(step, blocks, settings.gamma, settings.repeats, partial(bar.update, blocks))
    return rows
