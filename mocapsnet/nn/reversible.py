"""A momentum network around any layers that keep their input's shape; it knows nothing of capsules."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from mocapsnet.errors import OutOfRange, WrongArgument
from mocapsnet.nn.arriving import Arriving
from mocapsnet.nn.inversion import InversionReport, report
from mocapsnet.nn.tape import Tape, answer
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.momentum import RANGE, Arithmetic, ExactArithmetic, FloatArithmetic

Walk = Callable[[Tensor, Tensor | None, Any, Any], tuple[Tensor, Tensor]]
Through = Callable[[Tensor, Tensor | None, ExactArithmetic], tuple[Tensor, Tensor, Tensor]]


class Fusible(nn.Module, ABC):
    """A layer that may know a faster way through a sequence of its kind."""

    @abstractmethod
    def through(self, layers: Sequence[nn.Module], x: Tensor) -> Through | None:
        """A function from states like x and a velocity to both after the layers, and to the largest |x|.

        What left the range of exact arithmetic is NaN. None where there is no faster way.
        """


class MomentumSequence(nn.Module):
    """v_{n+1} = γ v_n + (1 − γ) f(x_n),  x_{n+1} = x_n + v_{n+1} (equations 3 and 4).

    The velocity starts at zero and is carried through all layers. gamma = 0 is the residual network.
    Further arguments of the call go to every layer, and receive gradients.

    memory says what is kept for the backward pass: "reverse" the last state alone, from which the others are
    reconstructed; "checkpoint" each layer's input; "store" everything, as autograd does. arithmetic="exact"
    holds the state in integers (|x| < 511, in steps of 2^-22), and reconstruction is exact to the bit at any
    depth; "float" with "reverse" is the paper's Listing 2, and wrong beyond some 70 layers.
    check="raise" compares each layer that is computed again with its first result; "store" computes none.

    >>> sequence = MomentumSequence([nn.Linear(4, 4) for _ in range(6)], gamma=0.9)
    >>> y = sequence(torch.randn(2, 4))
    >>> y, velocity = sequence(torch.randn(2, 4), return_velocity=True)
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        gamma: float = 0.9,
        memory: str = "reverse",
        arithmetic: str = "exact",
        check: str | None = None,
    ) -> None:
        super().__init__()
        gamma = momentum_term(gamma)
        one_of("memory", memory, ("reverse", "checkpoint", "store"))
        one_of("arithmetic", arithmetic, ("exact", "float"))
        if check not in (None, "raise"):
            raise WrongArgument(f"check must be None or 'raise', got {check!r}")
        if memory == "reverse" and gamma == 0:
            raise WrongArgument(
                "gamma must be > 0 with memory='reverse', got 0: a residual network forgets its states; "
                "use memory='checkpoint' or 'store'"
            )
        if check and arithmetic == "float" and memory == "reverse":
            raise WrongArgument(
                "check must be None with arithmetic='float' and memory='reverse', got 'raise': "
                "states reconstructed in floats never agree to the bit; use arithmetic='exact'"
            )
        self.layers = nn.ModuleList(modules(layers))
        self.gamma = gamma
        self.memory = memory
        self.arithmetic = arithmetic
        self.check = check
        self.arriving: list[Arriving] = []

    def forward(
        self,
        x: Tensor,
        *args: Any,
        velocity: Tensor | None = None,
        return_velocity: bool = False,
        **kwargs: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The state after the last layer, and the velocity when asked for."""
        if not x.is_floating_point():
            raise WrongArgument(f"x must be real floats, got {x.dtype}")
        if velocity is not None and velocity.shape != x.shape:
            raise WrongArgument(f"velocity must have x's shape {tuple(x.shape)}, got {tuple(velocity.shape)}")
        # A velocity may come from a stage that computes in another dtype.
        velocity = None if velocity is None else velocity.to(x.dtype)
        stored = self.memory == "store" or not torch.is_grad_enabled() or len(self.layers) == 0
        walk: Walk = self.plain if stored else self.taped
        if not torch.compiler.is_compiling():
            walk = self.fused(x, bool(args or kwargs)) or walk
        x, velocity = walk(x, velocity, args, kwargs)
        return (x, velocity) if return_velocity else x

    def fused(self, x: Tensor, further: bool = False) -> Walk | None:
        """The sequence as its layers do it faster, if they do, and nobody looks in between."""
        first = self.layers[0] if len(self.layers) else None
        if not isinstance(first, Fusible) or self.arithmetic == "float" or self.gamma == 0:
            return None
        if further or self.check or (self.memory != "reverse" and torch.is_grad_enabled()):
            return None
        if traced(x) or forward_ad._current_level >= 0:
            return None
        through = first.through(list(self.layers), x)
        if through is None or any(map(watched, self.layers)):
            return None
        return partial(self.at_once, through)

    # As torch.compiler.disable, which would import the compiler with this file, for seconds.
    @_disable_dynamo
    def at_once(self, through: Through, x: Tensor, velocity: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        """The sequence as one function."""
        x, velocity, peak = through(x, velocity, ExactArithmetic(self.gamma, len(self.layers), x.dtype))
        self.watch_range(peak)
        return x, velocity

    def plain(self, x: Tensor, velocity: Tensor | None, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
        """The sequence as it is written; autograd keeps what it likes."""
        velocity = torch.zeros_like(x) if velocity is None else velocity
        if len(self.layers) == 0:
            return x, velocity
        arithmetic = self.make_arithmetic(x)
        state = arithmetic.begin(x, velocity)
        for n, layer in enumerate(self.layers):
            state = arithmetic.step(n, state, answer(layer, n, state.x, args, kwargs))
        return self.within_range(state.peak, state.x, state.velocity)

    @_disable_dynamo
    def taped(self, x: Tensor, velocity: Tensor | None, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
        """The sequence with every layer to be computed again."""
        # A compiled network comes here without having asked.
        if (faster := self.fused(x, bool(args or kwargs))) is not None:
            return faster(x, velocity, args, kwargs)
        reverse = self.memory == "reverse"
        # torch.func's transforms have no hooks on saved tensors, and tensors without data nothing to keep.
        # The checkpoint of torch 2.11 passes no tangents on, which a reversed sequence does not ask of it.
        if traced(x) or (forward_ad._current_level >= 0 and not reverse):
            return self.plain(x, velocity, args, kwargs)
        velocity = torch.zeros_like(x) if velocity is None else velocity
        arithmetic = self.make_arithmetic(x)
        tape = Tape(list(self.layers), arithmetic, args, kwargs, reverse, self.check is not None)
        state = arithmetic.begin(x, velocity)
        for n in range(len(self.layers)):
            state = arithmetic.step(n, state, tape.call(n, state))
        x, velocity = tape.finish(state) if reverse else (state.x, state.velocity)
        return self.within_range(state.peak, x, velocity)

    def make_arithmetic(self, x: Tensor) -> Arithmetic:
        """The arithmetic of this sequence for states like x; the residual network has nothing to invert."""
        if self.arithmetic == "float" or self.gamma == 0:
            return FloatArithmetic(self.gamma)
        return ExactArithmetic(self.gamma, len(self.layers), x.dtype)

    def within_range(self, peak: Tensor | None, x: Tensor, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """x and the velocity; an error if the state left its range, or NaN where none can be raised yet."""
        if peak is None:
            return x, velocity
        if not torch.compiler.is_compiling() and not traced(x):
            self.watch_range(peak)
            if not peak.is_cuda:
                return x, velocity
        # A factor, so that gradients are NaN too.
        one = torch.where(peak < RANGE, 1.0, math.nan).to(x.dtype)
        return x * one, velocity * one

    def watch_range(self, peak: Tensor) -> None:
        """Raise OutOfRange if the state left its range.

        A GPU runs behind: nobody waits for its answer, and the next call that finds it there reads it.
        """
        if not peak.is_cuda:
            check_range(peak.amax().item())
        elif not torch.cuda.is_current_stream_capturing():
            self.read_range(wait=False)
            self.arriving.append(Arriving(peak.amax()))

    def read_range(self, wait: bool = True) -> None:
        """Raise OutOfRange if an earlier forward on a GPU left the range of exact arithmetic."""
        while self.arriving and (wait or self.arriving[0].there()):
            check_range(self.arriving.pop(0).read())

    def inversion_report(
        self, x: Tensor, *args: Any, velocity: Tensor | None = None, **kwargs: Any
    ) -> InversionReport:
        """What memory="reverse" would do at x, whatever the memory is, against memory="store".

        >>> report = sequence.inversion_report(torch.randn(2, 4))
        >>> report.exact, report.gradient_error, report.layers[0].error
        """
        if self.gamma == 0:
            raise WrongArgument("gamma must be > 0 for an inversion, got 0")
        if not x.is_floating_point():
            raise WrongArgument(f"x must be real floats, got {x.dtype}")
        return report(self, x, velocity, args, kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """All but the answers under way, which no copy needs."""
        return {**self.__dict__, "arriving": []}

    def extra_repr(self) -> str:
        """The options, for print(model)."""
        check = f", check={self.check!r}" if self.check else ""
        return f"gamma={self.gamma}, memory={self.memory!r}, arithmetic={self.arithmetic!r}{check}"


def check_range(peak: float) -> None:
    """Refuse a state whose largest element exact arithmetic cannot hold."""
    if not peak < RANGE:
        raise OutOfRange(
            f"x must stay within ±{RANGE:g} and velocities within twice that in exact arithmetic, "
            f"got NaN or {peak:.6g}; use arithmetic='float', or layers with smaller answers"
        )


def momentum_term(gamma: object) -> float:
    """γ, if it is one."""
    if gamma == 1:
        raise WrongArgument("gamma must be < 1, got 1: equation 3 then ignores f; 0.9 is the paper's value")
    if not isinstance(gamma, Real) or not 0 <= float(gamma) < 1:
        raise WrongArgument(f"gamma must be a number in [0, 1), got {gamma!r}; 0 is the residual network")
    return float(gamma)


def traced(x: Tensor) -> bool:
    """Whether there is nothing to read in x: a transform of torch.func is at work, or it has no data."""
    return x.is_meta or isinstance(x, FakeTensor) or torch._C._are_functorch_transforms_active()


def watched(layer: nn.Module) -> bool:
    """Whether hooks, or another forward, wait for a call of this layer or of a part of it."""
    return "forward" in vars(layer) or any(
        hooks
        for module in layer.modules()
        for hooks in (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )


def modules(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """The layers, if they are modules."""
    if not isinstance(layers, Iterable):
        raise WrongArgument(f"layers must be a list of modules, got {layers!r}")
    found = list(layers)
    for layer in found:
        if not isinstance(layer, nn.Module):
            raise WrongArgument(f"layers must be modules, got {layer!r}; wrap a function in an nn.Module")
    return found
