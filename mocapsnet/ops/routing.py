"""The three routings as the public calls them: arguments checked, backend chosen, v returned."""

from typing import Any

import torch
from torch import Tensor

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import on_one_device, one_of, routable
from mocapsnet.ops.backend import fused_op, runnable
from mocapsnet.ops.em import batched as em_batched
from mocapsnet.ops.em import reference as em_reference
from mocapsnet.ops.order import from_memory, state_dtype
from mocapsnet.ops.rba import batched as rba_batched
from mocapsnet.ops.rba import reference as rba_reference
from mocapsnet.ops.sda import batched as sda_batched
from mocapsnet.ops.sda import reference as sda_reference


def rba(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    backend: str = "auto",
    leaky: bool = False,
    gradient: str = "last",
) -> Tensor:
    """Routing by agreement (Sabour et al. 2017): u [B,I,D], W [J,I,E,D], bias [J,E] -> v [B,J,E].

    gradient="last" differentiates the last iteration alone, its coupling held constant;
    "all" differentiates every iteration. leaky=True lets a capsule route to nobody.

    >>> u, W = torch.randn(2, 6, 8), torch.randn(3, 6, 16, 8)
    >>> rba(u, W).shape
    torch.Size([2, 3, 16])
    """
    routable(u, W, bias, iterations, gradient)
    runnable(backend, "rba")
    if (fused := fused_op("rba", u, W, backend, gradient=(gradient, "last"))) is not None:
        v: Tensor = fused.rba(u, W, bias, iterations, leaky)
        return v
    module = rba_batched if backend == "auto" else rba_reference
    return module.rba(*alike(module is rba_batched, u, W, bias), iterations, leaky, gradient)[0]


def sda(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    scope: str = "sample",
    gradient: str = "all",
    backend: str = "auto",
) -> Tensor:
    """Scaled-distance agreement (Peer et al. 2018): u [B,I,D], W [J,I,E,D], bias [J,E] -> v [B,J,E].

    scope="sample" scales by the mean distance within an image, so that images do not depend on
    each other; "batch" by the mean over the batch, as published.

    >>> u, W = torch.randn(2, 6, 8), torch.randn(3, 6, 16, 8)
    >>> sda(u, W, scope="batch").shape
    torch.Size([2, 3, 16])
    """
    routable(u, W, bias, iterations, gradient)
    runnable(backend, "sda")
    one_of("scope", scope, ("sample", "batch"))
    if (fused := fused_op("sda", u, W, backend, scope=(scope, "sample"))) is not None:
        v: Tensor = fused.sda(u, W, bias, iterations, gradient)
        return v
    module = sda_batched if backend == "auto" and not from_memory(u) else sda_reference
    return module.sda(*alike(module is sda_batched, u, W, bias), iterations, scope, gradient)[0]


def em(
    u: Tensor,
    W: Tensor,
    bias: Tensor | None = None,
    iterations: int = 3,
    beta_a: Tensor | None = None,
    beta_u: Tensor | None = None,
    gradient: str = "all",
    backend: str = "auto",
) -> Tensor:
    """EM routing (after Hinton et al. 2018): u [B,I,D], W [J,I,E,D], bias [J,E] -> v [B,J,E].

    beta_a and beta_u [J] are the learnt costs of activating and of describing a capsule; zeros when None.

    >>> u, W = torch.randn(2, 6, 8), torch.randn(3, 6, 16, 8)
    >>> em(u, W).shape
    torch.Size([2, 3, 16])
    """
    routable(u, W, bias, iterations, gradient)
    runnable(backend, "em")
    for name, beta in (("beta_a", beta_a), ("beta_u", beta_u)):
        if beta is not None and beta.shape != (W.shape[0],):
            raise WrongArgument(f"{name} must be [J={W.shape[0]}] or None, got shape {tuple(beta.shape)}")
    on_one_device(u, beta_a=beta_a, beta_u=beta_u)
    if (fused := fused_op("em", u, W, backend)) is not None:
        v: Tensor = fused.em(u, W, bias, iterations, beta_a, beta_u, gradient)
        return v
    module = em_batched if backend == "auto" and not from_memory(u) else em_reference
    u, W, bias, beta_a, beta_u = alike(module is em_batched, u, W, bias, beta_a, beta_u)
    return module.em(u, W, bias, iterations, beta_a, beta_u, gradient)[0]


def alike(batched: bool, u: Tensor, W: Tensor, *others: Tensor | None) -> list[Any]:
    """u and W in the dtype that holds both; the others in it too, or where batched in that of the state."""
    dtype = torch.promote_types(u.dtype, W.dtype)
    wide = state_dtype(u, W) if batched else dtype
    return [u.to(dtype), W.to(dtype), *(x if x is None else x.to(wide) for x in others)]
