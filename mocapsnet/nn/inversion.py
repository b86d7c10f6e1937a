"""How well a momentum network's states come back, and what that does to its gradients."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from mocapsnet.nn.circumstances import generators, set_generators
from mocapsnet.nn.tape import Tape

if TYPE_CHECKING:
    from mocapsnet.nn.reversible import MomentumSequence


class LayerInversion(NamedTuple):
    """Of a layer: max |x − x̂|, whether x and velocity came back to the bit, its relative gradient error."""

    error: float
    exact: bool
    gradient_error: float | None
    """None where a layer has no parameters to train."""


class InversionReport(NamedTuple):
    """Layer by layer, and the relative error of all gradients together."""

    layers: tuple[LayerInversion, ...]
    gradient_error: float

    @property
    def exact(self) -> bool:
        """Whether every state came back to the bit."""
        return all(layer.exact for layer in self.layers)


@torch.enable_grad()
def report(
    sequence: "MomentumSequence", x: Tensor, velocity: Tensor | None, args: Any, kwargs: Any
) -> InversionReport:
    """Run a sequence forward and back from x; its buffers and the random generators stay as they are."""
    x = x.detach().requires_grad_()
    with untouched(sequence, x.device):
        states = there_and_back(sequence, x, velocity, args, kwargs)
    wanted = [value for value in (x, velocity, *args, *kwargs.values()) if isinstance(value, Tensor)]
    wanted = [tensor for tensor in (*wanted, *sequence.parameters()) if tensor.requires_grad]
    errors = {}
    for memory in ("reverse", "store"):
        with untouched(sequence, x.device):
            twin = type(sequence)(sequence.layers, sequence.gamma, memory, sequence.arithmetic)
            errors[memory] = gradients(twin(x, *args, velocity=velocity, **kwargs), wanted)

    def error(tensors: Iterable[Tensor]) -> float | None:
        places = [n for tensor in tensors for n, other in enumerate(wanted) if tensor is other]
        return relative_error(*([errors[memory][n] for n in places] for memory in errors)) if places else None

    layers = zip(states, sequence.layers, strict=True)
    return InversionReport(
        tuple(LayerInversion(*state, error(layer.parameters())) for state, layer in layers),
        error(wanted) or 0.0,
    )


@contextmanager
def untouched(sequence: "MomentumSequence", device: torch.device) -> Iterator[None]:
    """Put buffers and random generators back in the end."""
    random = generators(device)
    buffers = [(buffer, buffer.clone()) for buffer in sequence.buffers()]
    try:
        yield
    finally:
        set_generators(device, random)
        with torch.no_grad():
            for buffer, was in buffers:
                # A write that changes nothing would still count as one, for a backward that is yet to come.
                if not torch.equal(buffer, was):
                    buffer.copy_(was)


@torch.no_grad()
def there_and_back(
    sequence: "MomentumSequence", x: Tensor, velocity: Tensor | None, args: Any, kwargs: Any
) -> list[tuple[float, bool]]:
    """max |x_n − x̂_n| for every layer, and whether x and the velocity came back to the bit."""
    arithmetic = sequence.make_arithmetic(x)
    tape = Tape(list(sequence.layers), arithmetic, args, kwargs, reverse=True)
    state = arithmetic.begin(x, torch.zeros_like(x) if velocity is None else velocity)
    states = []
    for n in range(len(sequence.layers)):
        states.append(state)
        tape.spilled |= arithmetic.spilled(n, state)
        state = arithmetic.step(n, state, tape.first(n, state.x))
    found, kept = [], state.kept
    for n, was in reversed(list(enumerate(states))):
        inputs: list[Tensor] = []

        def f(x: Tensor, n: int = n, inputs: list[Tensor] = inputs) -> Tensor:
            inputs.append(x)
            return tape.again(n, x)

        kept = arithmetic.unstep(n, kept, tape.spilled.pop(n, None), f)
        error = (inputs[0] - was.x).abs().max().item() if x.numel() else 0.0
        found.append((math.inf if math.isnan(error) else error, all(map(torch.equal, kept, was.kept))))
    return found[::-1]


def gradients(y: Tensor, wanted: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of y · r for an r that is random and fixed, zero where y does not depend."""
    r = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    return torch.autograd.grad(y, wanted, r, allow_unused=True, materialize_grads=True)


def relative_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """|found − expected| / |expected| over all tensors together; infinite where NaN was found."""

    def norm(tensors: Iterable[Tensor]) -> float:
        return math.hypot(*(tensor.cpu().double().norm().item() for tensor in tensors))

    wrong = norm(one - other for one, other in zip(found, expected, strict=True))
    size = norm(expected)
    if wrong == 0:
        return 0.0
    return wrong / size if size and not math.isnan(wrong) else math.inf
