"""Routed layers with momentum in exact arithmetic as one function, a Triton program per layer and direction.

It computes what the driver in nn/reversible.py computes with memory="reverse", which stays the specification.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mocapsnet.ops.momentum import ExactArithmetic, State, from_bytes, shifted
from mocapsnet.ops.order import power
from mocapsnet.ops.rba import kernels
from mocapsnet.ops.rba.fused import weight_gradients

# Layers whose weights' gradients are one program's: until then each keeps its coupling.
AT_ONCE = 8


class Momentum(torch.autograd.Function):
    """x, the velocity and max |x| after all layers; the way back undoes a layer as it differentiates it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        velocity: Tensor,
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
        peak = x.new_empty(B)
        kernels.enter[(B,)](x.contiguous(), velocity.contiguous(), grid, word, peak, **one)
        ctx.options, ctx.rounded = (arithmetic, iterations, leaky), rounded
        spilled: dict[int, Tensor] = {}
        for n, stage in enumerate(arithmetic.stages):
            spilled |= arithmetic.spilled(n, State(x, velocity, (grid, word)))
            word = shifted(word, stage.shift)
            after = torch.empty_like(grid), torch.empty_like(word)
            # The tensors of the way back are not touched: any will do.
            walk(
                n, ctx.options, weights, (grid, word, *[peak] * 2), (*after, *[peak] * 2), [peak] * 4, back=0
            )
            grid, word = after
        ctx.save_for_backward(grid, word, *spilled.values(), *weights)
        ctx.spilling = tuple(spilled)
        ctx.set_materialize_grads(False)
        reached, left = peak.amax(), (x.new_empty(x.shape), x.new_empty(x.shape))
        ctx.mark_non_differentiable(reached)
        kernels.leave[(B,)](grid, word, *left, **one, unit=arithmetic.stages[-1].unit)
        return *left, reached

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gx: Tensor | None, gv: Tensor | None, _: None) -> tuple[Any, ...]:
        """Gradients of x, of the velocity and of all weights."""
        grid, word, *kept = ctx.saved_tensors
        count = len(ctx.spilling)
        spilled, weights = dict(zip(ctx.spilling, kept[:count], strict=True)), kept[count:]
        B, J, E = grid.shape
        gradient = [
            torch.zeros_like(grid, dtype=torch.float32) if g is None else g.contiguous() for g in (gx, gv)
        ]
        stages, W = ctx.options[0].stages, weights[0]
        # x, c and ds of the layers at hand, for the gradient of their weights.
        held = min(AT_ONCE, len(stages))
        shapes = ((held, *shape) for shape in ((B, J, E), (J, B, J), (B, E, J)))
        x, c, ds = (gradient[0].new_empty(shape) for shape in shapes)
        dW = W.new_empty_strided((len(stages), *W.shape), (W.numel(), *torch.empty_like(W).stride()))
        dbias = dW.new_empty((len(stages), J, E))
        for n in reversed(range(len(stages))):
            before, k = [torch.empty_like(part) for part in (grid, word, *gradient)], n % AT_ONCE
            walk(n, ctx.options, weights, (grid, word, *gradient), before, [x[k], x[k], c[k], ds[k]], back=1)
            if k == 0:
                some = slice(n, n + AT_ONCE)
                weight_gradients(x, dW[some], dbias[some], c, ds, ctx.rounded)
            grid, word, *gradient = before
            if n in spilled:
                word = (word << stages[n].shift) + from_bytes(spilled[n])
        found = (
            part
            for layer, bias, own in zip(dW, dbias, weights[1::2], strict=True)
            for part in (layer, None if own is None else bias)
        )
        return *gradient, *[None] * 4, *found


def walk(
    n: int,
    options: tuple[ExactArithmetic, int, bool],
    weights: Sequence[Tensor | None],
    state: Sequence[Tensor],
    moved_on: Sequence[Tensor],
    beside: Sequence[Tensor],
    back: int,
) -> None:
    """Take the state (grid, word, and their gradients) through layer n, forth or back."""
    arithmetic, iterations, leaky = options
    W, bias = weights[2 * n : 2 * n + 2]
    assert W is not None
    B, J, E = state[0].shape
    grid, word, gx, gv = state
    stage = arithmetic.stages[n]
    kernels.momentum_layer[(B,)](
        grid, word, W, W if bias is None else bias.contiguous(), gx, gv, *moved_on, *beside,
        B, J, E, *W.stride(), 1 / (J + leaky), stage.gain, stage.unit, arithmetic.gamma, back,
        D=E, EP=power(E), JP=power(J), ITERATIONS=iterations, LEAKY=leaky, BIASED=bias is not None,
        num_warps=4,
    )  # fmt: skip
