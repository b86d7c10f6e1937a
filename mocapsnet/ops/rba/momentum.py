"""Routed layers with momentum in exact arithmetic as one function, a Triton program for some layers.

It computes what the driver in nn/reversible.py computes with memory="reverse", which stays the specification.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from mocapsnet.ops.backend import differentiable_once, on_its_gpu
from mocapsnet.ops.momentum import ExactArithmetic, Stage, State, from_bytes, shifted
from mocapsnet.ops.order import matrices, power
from mocapsnet.ops.rba import momentum_kernels
from mocapsnet.ops.rba.fused import weight_gradients

# Layers that a program goes through, and whose weights' gradients are one program's.
AT_ONCE = 8


class Momentum(torch.autograd.Function):
    """x, the velocity and each element's largest |x|; the way back undoes a layer as it differentiates it.

    An image that left the range of exact arithmetic has NaN, and so have all gradients that it has a part in.
    """

    @staticmethod
    @on_its_gpu
    def forward(
        ctx: Any,
        x: Tensor,
        velocity: Tensor | None,
        arithmetic: ExactArithmetic,
        iterations: int,
        leaky: bool,
        rounded: bool,
        *weights: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """weights are W [J,J,E,E] and the bias [J,E] or None, layer by layer; rounded as in fused.route."""
        B, J, E = x.shape
        one = {"size": J * E, "N": power(J * E)}
        # The programs know no strides: all of it is contiguous, whatever x is.
        grid, word = (x.new_empty(x.shape, dtype=dtype) for dtype in (torch.int32, torch.int64))
        peak = x.new_empty(x.shape)
        ctx.options, ctx.rounded, ctx.moving = (arithmetic, iterations, leaky), rounded, velocity is not None
        start = x.contiguous()
        moving = start if velocity is None else velocity.contiguous()
        momentum_kernels.enter[(B,)](start, moving, grid, word, peak, **one, MOVING=ctx.moving)
        spilled: dict[int, Tensor] = {}
        parts = groups(arithmetic.stages)
        inputs = x.new_empty((max(map(len, parts)), *x.shape))
        for some in parts:
            n = some.start
            spilled |= arithmetic.spilled(n, State(x, moving, (grid, word)))
            word = shifted(word, arithmetic.stages[n].shift)
            # The tensors of the way back are not touched: any will do.
            state = grid, word, peak, peak
            walk(some, ctx.options, weights, state, state, (peak, inputs, peak, peak), back=0)
        left, lost = (x.new_empty(x.shape), x.new_empty(x.shape)), x.new_empty(B)
        momentum_kernels.leave[(B,)](grid, word, peak, *left, lost, **one, unit=arithmetic.stages[-1].unit)
        ctx.save_for_backward(grid, word, lost, *spilled.values(), *weights)
        ctx.spilling = tuple(spilled)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(peak)
        return *left, peak

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, gx: Tensor | None, gv: Tensor | None, _: None) -> tuple[Any, ...]:
        """Gradients of x, of the velocity and of all weights."""
        grid, word, lost, *kept = ctx.saved_tensors
        count = len(ctx.spilling)
        spilled, weights = dict(zip(ctx.spilling, kept[:count], strict=True)), kept[count:]
        B, J, E = grid.shape
        lost = lost.view(B, 1, 1)
        gradient = [lost.expand(grid.shape) if g is None else g + lost for g in (gx, gv)]
        gradient = [g.contiguous() for g in gradient]
        stages, W = ctx.options[0].stages, weights[0]
        parts = groups(stages)
        # x, c and ds of the layers at hand, for the gradient of their weights.
        held = max(map(len, parts))
        shapes = ((held, *shape) for shape in ((B, J, E), (J, B, J), (B, E, J)))
        x, c, ds = (gradient[0].new_empty(shape) for shape in shapes)
        dW = W.new_empty_strided((len(stages), *W.shape), (W.numel(), *torch.empty_like(W).stride()))
        dbias = dW.new_empty((len(stages), J, E))
        for some in reversed(parts):
            turns = x.new_empty((2, B, J, E))
            before = [torch.empty_like(grid), torch.empty_like(word), turns, torch.empty_like(gradient[1])]
            walk(some, ctx.options, weights, (grid, word, *gradient), before, (x, x, c, ds), back=1)
            layers = slice(some.start, some.stop)
            weight_gradients(x, dW[layers], dbias[layers], c, ds, ctx.rounded)
            grid, word = before[:2]
            gradient = [turns[(len(some) - 1) % 2], before[3]]
            if some.start in spilled:
                word = (word << stages[some.start].shift) + from_bytes(spilled[some.start])
        found = (
            part
            for layer, bias, own in zip(dW, dbias, weights[1::2], strict=True)
            for part in (layer, None if own is None else bias)
        )
        return gradient[0], gradient[1] if ctx.moving else None, *[None] * 4, *found


def groups(stages: Sequence[Stage], most: int = AT_ONCE) -> list[range]:
    """Layers that a program takes at once: none but the first gives up bits before it."""
    starts: list[int] = []
    for n, stage in enumerate(stages):
        if not starts or stage.shift or n - starts[-1] == most:
            starts.append(n)
    return [range(*ends) for ends in pairwise([*starts, len(stages)])]


def walk(
    some: range,
    options: tuple[ExactArithmetic, int, bool],
    weights: Sequence[Tensor | None],
    state: Sequence[Tensor],
    moved_on: Sequence[Tensor],
    beside: Sequence[Tensor],
    back: int,
) -> None:
    """Take the state (grid, word, and two gradients) through some layers, forth or back."""
    arithmetic, iterations, leaky = options
    B, J, E = state[0].shape
    layers = list(reversed(some) if back else some)
    stages = [arithmetic.stages[n] for n in layers]
    gains, units = [stage.gain for stage in stages], [stage.unit for stage in stages]
    W, bias = ([part for n in layers if (part := weights[2 * n + which]) is not None] for which in (0, 1))
    W, bias = [aligned(matrices(part)) for part in W], [aligned(part.contiguous()) for part in bias]
    momentum_kernels.momentum_layers[(B,)](
        *state, filled(W), filled(bias or W), filled(gains), filled(units), *moved_on, *beside,
        B, len(some), 1 / (J + leaky), arithmetic.gamma, back,
        J=J, E=E, JP=power(J), EP=power(E),
        ITERATIONS=iterations, LEAKY=leaky, BIASED=bool(bias), num_warps=8,
    )  # fmt: skip


def aligned(part: Tensor) -> Tensor:
    """The same where every part is aligned alike: for another alignment there would be another program."""
    return part if part.data_ptr() % 16 == 0 else part.clone()


def filled(each: list[Any]) -> tuple[Any, ...]:
    """What each layer has, as if there were as many as can be: another number would be another program."""
    return (*each, *each[-1:] * (AT_ONCE - len(each)))
