"""A fully connected capsule layer: transformation matrices and a routing."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet import ops
from mocapsnet.errors import WrongArgument
from mocapsnet.nn.reversible import Fusible, Through
from mocapsnet.ops import order
from mocapsnet.ops.arguments import at_least, one_of, positive
from mocapsnet.ops.backend import fused_op, runnable
from mocapsnet.ops.em.reference import em
from mocapsnet.ops.rba.reference import rba
from mocapsnet.ops.sda.reference import sda


class Routing(NamedTuple):
    """A routing as layers know it by name: its op, its reference, their options, its default gradient."""

    op: Callable[..., Tensor]
    reference: Callable[..., tuple[Tensor, Tensor]]
    options: dict[str, Any]
    gradient: str


ROUTINGS = {
    "rba": Routing(ops.rba, rba, {}, "last"),
    "leaky-rba": Routing(ops.rba, rba, {"leaky": True}, "last"),
    "sda": Routing(ops.sda, sda, {}, "all"),
    "em": Routing(ops.em, em, {}, "all"),
}


class CapsLayer(Fusible):
    """Capsules u [B,I,D] -> v [B,J,E], every i connected to every j by W_ij and routed.

    W is drawn from N(0, weight_std²); routing_bias is the bias's first value, None for no bias.

    >>> CapsLayer(1152, 8, 32, 8, routing="sda")(torch.randn(2, 1152, 8)).shape
    torch.Size([2, 32, 8])
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        capsules: int,
        dim: int,
        routing: str = "rba",
        iterations: int = 3,
        weight_std: float = 0.1,
        routing_bias: float | None = 0.1,
        gradient: str | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        one_of("routing", routing, ROUTINGS)
        at_least("iterations", iterations, 1)
        if gradient is not None:
            one_of("gradient", gradient, ("last", "all"))
        positive("weight_std", weight_std)
        if routing_bias is not None and not (
            isinstance(routing_bias, int | float) and math.isfinite(routing_bias)
        ):
            raise WrongArgument(f"routing_bias must be a finite number or None, got {routing_bias!r}")
        runnable(backend, routing)
        self.routing = routing
        self.iterations = iterations
        self.gradient = gradient or ROUTINGS[routing].gradient
        self.backend = backend
        self.W = nn.Parameter(weight_std * torch.randn(capsules, in_capsules, dim, in_dim))
        self.register_parameter(
            "bias",
            None if routing_bias is None else nn.Parameter(torch.full((capsules, dim), float(routing_bias))),
        )
        if routing == "em":
            self.beta_a = nn.Parameter(torch.zeros(capsules))
            self.beta_u = nn.Parameter(torch.zeros(capsules))

    def arguments(self) -> dict[str, Any]:
        """What the routing is called with, beside u and the backend."""
        betas = {"beta_a": self.beta_a, "beta_u": self.beta_u} if self.routing == "em" else {}
        return {
            "W": self.W,
            "bias": self.bias,
            "iterations": self.iterations,
            "gradient": self.gradient,
            **betas,
            **ROUTINGS[self.routing].options,
        }

    def forward(self, u: Tensor) -> Tensor:
        """Route u [B,I,D] to v [B,J,E]."""
        return ROUTINGS[self.routing].op(u, **self.arguments(), backend=self.backend)

    def through(self, layers: Sequence[nn.Module], x: Tensor) -> Through | None:
        """Layers like this one in one fused function, where that can run."""
        J, I, E, D = self.W.shape  # noqa: E741
        # Anything else is for the layers themselves to compute, or to refuse.
        if self.routing not in ("rba", "leaky-rba") or x.shape[1:] != (I, D) or (I, D) != (J, E):
            return None
        if {x.dtype, self.W.dtype} != {torch.float32} or not order.one_image(I, J, E) or not len(x):
            return None
        if fused_op("rba", x, self.W, self.backend, gradient=(self.gradient, "last")) is None:
            return None
        alike = [layer for layer in layers if isinstance(layer, CapsLayer) and layer.kind() == self.kind()]
        if len(alike) < len(layers):
            return None
        from mocapsnet.ops.rba.momentum import Momentum

        options = self.iterations, self.routing == "leaky-rba", order.rounds(x)
        weights = [weight for layer in alike for weight in (layer.W, layer.bias)]
        return lambda *state: Momentum.apply(*state, *options, *weights)  # type: ignore[no-untyped-call]

    def kind(self) -> tuple[Any, ...]:
        """What layers have in common that one program can run."""
        W = self.W
        told = self.routing, self.iterations, self.gradient, self.backend
        return type(self), W.shape, W.dtype, W.device, self.bias is None, *told

    @torch.no_grad()
    def coupling(self, u: Tensor) -> Tensor:
        """The last coupling c [B,J,I] that u [B,I,D] is routed with, by the routing's reference."""
        return ROUTINGS[self.routing].reference(u, **self.arguments())[1]

    def extra_repr(self) -> str:
        """Sizes and routing, for print(model)."""
        J, I, E, D = self.W.shape  # noqa: E741
        return f"{I}x{D} -> {J}x{E}, {self.routing}, iterations={self.iterations}, gradient={self.gradient!r}"
