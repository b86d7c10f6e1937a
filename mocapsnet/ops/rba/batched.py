"""Routing by agreement in a better order: votes by one batched matmul over i, tile by tile, never kept."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from mocapsnet.ops import order
from mocapsnet.ops.rba import reference
from mocapsnet.ops.squash import squash


def rba(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    leaky: bool = False,
    gradient: str = "last",
) -> tuple[Tensor, Tensor]:
    """What reference.rba gives: capsules v [B,J,E] and the last coupling c [B,J,I]."""
    # Last knows no forward mode: torch.compile takes no function that does.
    if gradient == "last" and forward_ad._current_level >= 0:
        return reference.rba(u, W, bias, iterations, leaky, gradient)
    out = order.output_dtype(u, W)
    arguments = (u, W, bias, iterations, leaky, order.votes_dtype(u, W))
    with order.as_written(u.device.type):
        # One iteration has nothing to hold constant, and its coupling is uniform.
        if gradient == "all" or iterations == 1:
            s, c = route(*arguments, keep=True)
        else:
            s, c = Last.apply(*arguments)  # type: ignore[no-untyped-call]
        v = squash(s if bias is None else s + bias.T, -2)
        return v.mT.to(out), c.permute(1, 2, 0).to(out)


def route(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None,
    iterations: int,
    leaky: bool,
    dtype: torch.dtype,
    keep: bool = False,
) -> tuple[Tensor, Tensor]:
    """The last iteration's sum s [B,E,J], without the bias, and its coupling c [I,B,J].

    b_ij = û_{j|i} · (all v_j so far, summed): a pass finishes logits, softmax and sum within a tile.
    keep=True holds the votes from pass to pass: the gradient through every iteration needs them all.
    """
    (B, I, _), (J, _, E, _), state = u.shape, W.shape, order.state_dtype(u, W)  # noqa: E741
    X = order.matrices(W).flatten(2)
    # The first coupling is uniform.
    share = 1 / (J + leaky)
    s = share * order.plain_sum(u.to(state), X.to(state)).view(B, E, J)
    if iterations == 1:
        return s, s.new_full((I, B, J), share)
    size = order.tile(u, X, dtype)
    parts = list(zip(u.transpose(0, 1).to(dtype).split(size), X.to(dtype).split(size), strict=True))
    kept = [torch.bmm(*part) for part in parts] if keep or len(parts) == 1 else []
    v = s.new_zeros(())
    for _ in range(iterations - 1):
        v = v + squash(s if bias is None else s + bias.T, -2)
        sums, shares = [], []
        for n, part in enumerate(parts):
            u_hat = (kept[n] if kept else torch.bmm(*part)).view(len(part[0]), B, E, J)
            shares.append(couple((u_hat * v).sum(2), leaky))
            sums.append((u_hat * shares[-1].unsqueeze(2)).sum(0))
        s = sums[0] if len(sums) == 1 else torch.stack(sums).sum(0)
    return s, shares[0] if len(shares) == 1 else torch.cat(shares)


def couple(b: Tensor, leaky: bool) -> Tensor:
    """c = softmax of the logits b [I,B,J] over J; leaky: a zero logit joins in and its share is dropped."""
    return F.pad(b, (1, 0)).softmax(-1)[..., 1:] if leaky else b.softmax(-1)


class Last(torch.autograd.Function):
    """The routed sum, differentiated in its last iteration: keeps u, W and c, and forms c ⊗ ds by tiles."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, W: Tensor, bias: Tensor | None, iterations: int, leaky: bool, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """s [B,E,J] and c [I,B,J]."""
        # torch.compile takes the first of *arguments for a context.
        return route(u, W, bias, iterations, leaky, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """c is a constant."""
        u, W, *_, dtype = inputs
        ctx.save_for_backward(u, W, output[1])
        ctx.mark_non_differentiable(output[1])
        # No zeros are made for the gradient of c, which nobody asks for.
        ctx.set_materialize_grads(False)
        ctx.dtype = dtype

    @staticmethod
    def backward(ctx: Any, ds: Tensor, dc: None) -> tuple[Tensor | None, ...]:
        """∂û_{j|i} = c_ij ds_j, thence ∂W_ij = ∂û_{j|i} u_iᵀ and ∂u_i = Σ_j W_ijᵀ ∂û_{j|i}."""
        u, W, c = ctx.saved_tensors
        B, (J, _, E, D) = len(u), W.shape
        X, ds = order.matrices(W).flatten(2), ds.contiguous()
        size = order.tile(u, X, ctx.dtype)
        du, dW = [], []
        with order.as_written(u.device.type):
            u_rows, X_rows = u.transpose(0, 1).to(ctx.dtype).split(size), X.to(ctx.dtype).split(size)
            for c_i, u_i, X_i in zip(c.split(size), u_rows, X_rows, strict=True):
                g = (c_i.unsqueeze(2) * ds).to(ctx.dtype).reshape(len(c_i), B, E * J)
                # This way round, both products have a long side.
                du.append(torch.bmm(X_i, g.mT))
                dW.append(torch.bmm(u_i.mT, g).view(-1, D, E, J))
            # Back to the order of W here, and not when the gradient is accumulated.
            if W.permute(1, 3, 2, 0).is_contiguous():
                gradient = torch.cat(dW).permute(3, 0, 2, 1)
            else:
                gradient = torch.cat([part.permute(3, 0, 2, 1) for part in dW], 1)
            return torch.cat(du).permute(2, 0, 1).to(u.dtype), gradient.to(W.dtype), *[None] * 4
