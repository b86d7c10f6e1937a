"""One step of a momentum network (equations 3 and 4) and its inverse, in floats and in exact integers.

An arithmetic begins a state from x and a velocity, steps it with f(x_n), and unsteps it with a function that
gives f when it is told x_n. docs/reversible.md derives the integers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

# x is an int32 in units of 2^-22, so that it reaches ±512; the velocity has five more bits.
X_BITS = 22
VELOCITY_BITS = 27
# The scaled velocity w outgrows the velocity by less than 2^24: |v| < 2^10 then keeps w below 2^61.
SCALE_BITS = 24
WORD_BITS = 63
# A little under what an int32 holds.
RANGE = 511.0
Layer = Callable[[Tensor], Tensor]


def step(x: Tensor, velocity: Tensor, f: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """v_{n+1} = γ v_n + (1 − γ) f(x_n),  x_{n+1} = x_n + v_{n+1}."""
    velocity = gamma * velocity + (1 - gamma) * f
    return x + velocity, velocity


def unstep(x: Tensor, velocity: Tensor, f: Layer, gamma: float) -> tuple[Tensor, Tensor]:
    """x_n = x_{n+1} − v_{n+1},  v_n = (v_{n+1} − (1 − γ) f(x_n)) / γ (the paper's Listing 2)."""
    x = x - velocity
    return x, (velocity - (1 - gamma) * f(x)) / gamma


class State(NamedTuple):
    """Where a forward stands between two layers."""

    x: Tensor
    velocity: Tensor
    kept: tuple[Tensor, Tensor]
    """What a way back would start from; no gradient flows here."""
    peak: Tensor | None = None
    """max |x| so far, where that has a limit."""


class Arithmetic(ABC):
    """How states are computed, forth and back."""

    @abstractmethod
    def begin(self, x: Tensor, velocity: Tensor) -> State:
        """The state before the first layer."""

    @abstractmethod
    def step(self, n: int, state: State, f: Tensor) -> State:
        """The state after layer n."""

    @abstractmethod
    def spilled(self, n: int, state: State) -> dict[int, Tensor]:
        """What the way back needs beside the state after layer n, under that number."""

    @abstractmethod
    def unstep(
        self, n: int, kept: Sequence[Tensor], spilled: Tensor | None, f: Layer
    ) -> tuple[Tensor, Tensor]:
        """What was kept before layer n, from what is kept after it."""


class FloatArithmetic(Arithmetic):
    """Plain floats: the way back multiplies errors by 1/γ at every layer, by more where f is steep."""

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def begin(self, x: Tensor, velocity: Tensor) -> State:
        """The state before the first layer."""
        return State(x, velocity, (x.detach(), velocity.detach()))

    def step(self, n: int, state: State, f: Tensor) -> State:
        """The state after layer n."""
        return self.begin(*step(state.x, state.velocity, f, self.gamma))

    def spilled(self, n: int, state: State) -> dict[int, Tensor]:
        """Nothing: the bits that floats lose are lost."""
        return {}

    def unstep(
        self, n: int, kept: Sequence[Tensor], spilled: Tensor | None, f: Layer
    ) -> tuple[Tensor, Tensor]:
        """What was kept before layer n."""
        return unstep(kept[0], kept[1], f, self.gamma)


class Stage(NamedTuple):
    """A layer's constants: bits spilled before it, f to units of w, w to units of x."""

    shift: int
    gain: float
    unit: float


def schedule(gamma: float, depth: int) -> tuple[Stage, ...]:
    """The constants of every layer: they follow from γ and the depth alone, never from data.

    The scale γ^-t of w grows until it has 24 bits; then w gives up as many bits as bring it back to [1, 2).
    """
    scale = 1.0
    stages = []
    for _ in range(depth):
        scale = scale / gamma if gamma else math.inf
        shift = int(min(math.log2(scale), WORD_BITS)) if scale >= 2**SCALE_BITS else 0
        # A word that gives up all its bits is zero at any scale.
        scale = 1.0 if shift == WORD_BITS else scale / 2**shift
        stages.append(
            Stage(shift, (1 - gamma) * scale * 2**VELOCITY_BITS, 2.0 ** (X_BITS - VELOCITY_BITS) / scale)
        )
    return tuple(stages)


class ExactArithmetic(Arithmetic):
    """x as fixed point and w = v·γ^-t as an integer: a step only adds, so the way back subtracts the same.

    Whatever is added is a function of the bits at hand, computed alike in both directions: the inverse is
    exact for any γ. The gradient goes straight through the rounding. 12 bytes an element are kept.
    """

    def __init__(self, gamma: float, depth: int, dtype: torch.dtype) -> None:
        self.gamma = gamma
        self.dtype = dtype
        self.stages = schedule(gamma, depth)

    def begin(self, x: Tensor, velocity: Tensor) -> State:
        """The state before the first layer, rounded to the grid."""
        with torch.no_grad():
            grid = whole(x, 2.0**X_BITS, self.dtype)
            word = whole(velocity, 2.0**VELOCITY_BITS, self.dtype)
            rounded = to_float(grid, x.dtype), to_float(word, x.dtype, VELOCITY_BITS)
            # A velocity may be twice as large.
            peak = torch.maximum(largest(rounded[0]), largest(rounded[1]) / 2)
            state = (grid.int(), word), peak
        # New tensors, which are written to in the place of x and the velocity.
        return State(straight(rounded[0], x * 1), straight(rounded[1], velocity * 1), *state)

    def step(self, n: int, state: State, f: Tensor) -> State:
        """The state after layer n."""
        # Equation 3 for the gradient alone: lerp is γ v + (1 − γ) f, and keeps nothing, not even γ.
        velocity = torch.lerp(f.to(self.dtype), state.velocity, self.gamma)
        x = state.x + velocity
        with torch.no_grad():
            shift, gain, unit = self.stages[n]
            word = shifted(state.kept[1], shift) + whole(f, gain, self.dtype)
            move = moved(word, unit, self.dtype)
            # In 64 bits, where nothing wraps.
            grid = state.kept[0] + move.round().long()
            rounded = to_float(grid, self.dtype)
            peak = largest(rounded)
            peak = peak if state.peak is None else torch.maximum(state.peak, peak)
            kept = grid.int(), word
            move = move.mul_(2.0**-X_BITS).to(self.dtype)
        return State(straight(rounded, x), straight(move, velocity), kept, peak)

    def spilled(self, n: int, state: State) -> dict[int, Tensor]:
        """The bits that w gives up before layer n, if it does, in as few bytes as hold them."""
        if (shift := self.stages[n].shift) == 0:
            return {}
        word = state.kept[1]
        return {n: to_bytes(word - (shifted(word, shift) << shift), shift)}

    def unstep(
        self, n: int, kept: Sequence[Tensor], spilled: Tensor | None, f: Layer
    ) -> tuple[Tensor, Tensor]:
        """What was kept before layer n."""
        grid, word = kept
        shift, gain, unit = self.stages[n]
        grid = (grid - moved(word, unit, self.dtype).round_().long()).int()
        word = word - whole(f(to_float(grid, self.dtype)), gain, self.dtype)
        return grid, word if spilled is None else (word << shift) + from_bytes(spilled)


def straight(rounded: Tensor, smooth: Tensor) -> Tensor:
    """Rounded values with the gradient of smooth ones, which are written over.

    Forward mode and tracing would see the values written: for them, what is added is zero, and its gradient
    is not.
    """
    if (
        forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
    ):
        return rounded + (smooth - smooth.detach())
    with torch.no_grad():
        smooth.copy_(rounded)
    return smooth


def wide(dtype: torch.dtype) -> torch.dtype:
    """What is computed in: float32, which every device has, and float64 only for what comes in it."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def to_float(grid: Tensor, dtype: torch.dtype, bits: int = X_BITS) -> Tensor:
    """Fixed point as floats."""
    return grid.to(wide(dtype)).mul_(2.0**-bits).to(dtype)


def whole(x: Tensor, gain: float, dtype: torch.dtype) -> Tensor:
    """x times gain as integers; NaN and what is too large become so large that the range is left."""
    return (x.to(wide(dtype)) * gain).round_().nan_to_num_(2.0**62).long()


def moved(word: Tensor, unit: float, dtype: torch.dtype) -> Tensor:
    """What w adds to x, in units of 2^-22, before it is rounded."""
    return word.to(wide(dtype)).mul_(unit)


def largest(x: Tensor) -> Tensor:
    """max |x|, zero where x has nothing."""
    return x.abs().amax() if x.numel() else x.new_zeros(())


def shifted(word: Tensor, shift: int) -> Tensor:
    """w without its lowest bits, rounded to nearest."""
    return (word + (1 << (shift - 1))) >> shift if shift else word


def to_bytes(rest: Tensor, bits: int) -> Tensor:
    """Signed numbers of so many bits, each in the fewest bytes."""
    return rest.unsqueeze(-1).contiguous().view(torch.uint8)[..., : -(-bits // 8)].contiguous()


def from_bytes(spilled: Tensor) -> Tensor:
    """The numbers that to_bytes packed."""
    count = spilled.shape[-1]
    rest = spilled.new_zeros((*spilled.shape[:-1], 8))
    rest[..., :count] = spilled
    above = 64 - 8 * count
    return (rest.view(torch.int64).squeeze(-1) << above) >> above
