"""What the paper's released code computes, kept apart because the paper's tables came from it.

It differs from the paper, and from the networks beside this file, in six ways:
1. its momentum block returns x + Momentum(x), and Momentum(x) contains x already: the state doubles;
2. the velocity starts at zero in every block of two layers;
3. W starts at N(0, 0.01²), and only SDA has a bias;
4. a primary capsule is 8 consecutive values of the [C,H,W] map, not 8 channels at one place;
5. SDA's scale divides only one of its two logarithms by the distance;
6. the mean of that distance is over the batch, so that an image's routing depends on the others.
Both routings differentiate the last iteration alone, and the squash has no gradient at zero.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.decoder import Decoder, mask
from mocapsnet.nn.network import CapsuleOutput
from mocapsnet.nn.primary import STRIDE, checked_shape, convolve, primary_count
from mocapsnet.nn.reversible import MomentumSequence
from mocapsnet.nn.stem import Stem
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk
from mocapsnet.ops import rba
from mocapsnet.ops.arguments import at_least, one_of, positive
from mocapsnet.ops.backend import fused_op
from mocapsnet.ops.rba.reference import couple, weighted_sum
from mocapsnet.ops.votes import votes

EPSILON = 1e-8
# Input capsules, as CapsLayer 1 has them, whose sums are far longer than that: the released squash and ours
# agree there, and the votes need not be in memory.
MANY = 512


def released_squash(s: Tensor) -> Tensor:
    """|s|²/(1 + |s|²) · s/(|s| + 1e-8): its gradient at zero is NaN."""
    squared = s.square().sum(-1, keepdim=True)
    return squared / (1 + squared) * s / (squared.sqrt() + EPSILON)


class ReleasedPrimary(nn.Module):
    """Primary capsules as a raw view of the convolution's output."""

    def __init__(self, channels: int, capsule_dim: int, kernel_size: int) -> None:
        super().__init__()
        self.capsule_dim = capsule_dim
        self.conv = nn.Conv2d(channels, channels, kernel_size, STRIDE)

    def forward(self, features: Tensor) -> Tensor:
        """Eight consecutive values a capsule."""
        maps = convolve(features, self.conv)
        # The routing is float32, whatever autocast makes of convolutions.
        maps = maps.to(torch.promote_types(maps.dtype, self.conv.weight.dtype))
        return released_squash(maps.reshape(len(maps), -1, self.capsule_dim))


class ReleasedLayer(nn.Module):
    """A routed layer with RBA or SDA; bias is its first value, None for none."""

    bias: nn.Parameter | None

    def __init__(
        self,
        in_capsules: int,
        in_dim: int,
        capsules: int,
        dim: int,
        routing: str,
        iterations: int,
        weight_std: float = 0.01,
        bias: float | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.backend = backend
        self.routing = routing
        self.iterations = iterations
        self.W = nn.Parameter(weight_std * torch.randn(capsules, in_capsules, dim, in_dim))
        self.register_parameter(
            "bias", None if bias is None else nn.Parameter(torch.full((capsules, dim), float(bias)))
        )

    def forward(self, u: Tensor) -> Tensor:
        """Route u [B,I,D] to v [B,J,E]."""
        with torch.autocast(u.device.type, enabled=False):
            return self.route(u)

    def route(self, u: Tensor) -> Tensor:
        """The routing itself, in the precision of u."""
        if self.routing == "rba" and self.backend == "auto":
            if (fused := fused_op("rba", u, self.W, "auto")) is not None:
                v: Tensor = fused.rba(u, self.W, self.bias, self.iterations, epsilon=EPSILON)
                return v
            if u.shape[1] >= MANY:
                return rba(u, self.W, self.bias, self.iterations)
        u_hat = votes(u, self.W)
        if self.routing == "sda":
            before = u_hat.norm(dim=-1, keepdim=True)
            u_hat = u_hat / before * torch.minimum(before, u.norm(dim=-1)[:, None, :, None])
        offset = u_hat.new_zeros(()) if self.bias is None else self.bias
        constant, constant_offset = u_hat.detach(), offset.detach()
        b = u_hat.new_zeros(u_hat.shape[:3])
        for _ in range(self.iterations - 1):
            v = released_squash(weighted_sum(couple(b), constant) + constant_offset)
            if self.routing == "rba":
                b = b + torch.einsum("bjie,bje->bji", constant, v)
            else:
                d = (v.unsqueeze(2) - constant).norm(dim=-1)
                b = released_scale(d) * d
        return released_squash(weighted_sum(couple(b), u_hat) + offset)


def released_scale(d: Tensor) -> Tensor:
    """SDA's t with its misplaced bracket, over the batch: log(p(J−1)) − log(1−p)/(d_p − d_o)."""
    d_o = d.mean()
    # One parent alone: the released code takes the logarithm of zero, and its lengths are NaN.
    if d.shape[1] == 1:
        return d.new_full((), -math.inf)
    return math.log(0.9 * (d.shape[1] - 1)) - math.log(1 - 0.9) / (d_o / 2 - d_o + 1e-12)


class ReleasedMomentumBlock(nn.Module):
    """Momentum around two layers, its velocity starting at zero; doubled adds x again: x + Momentum(x)."""

    def __init__(
        self, first: nn.Module, second: nn.Module, gamma: float, doubled: bool = True, memory: str = "store"
    ) -> None:
        super().__init__()
        self.momentum = MomentumSequence([first, second], gamma, memory, arithmetic="float")
        self.doubled = doubled

    def forward(self, x: Tensor) -> Tensor:
        """2x + v_1 + v_2, or x + v_1 + v_2."""
        return x + self.momentum(x) if self.doubled else self.momentum(x)


class DoubledResidualTrunk(ResidualTrunk):
    """x + Residual(x) in every block of two layers: what the released code does not do, for comparison."""

    def forward(self, x: Tensor) -> Tensor:
        """2x + f_1 + f_2, block by block."""
        for first, second in zip(self.layers[::2], self.layers[1::2], strict=True):
            middle = x + first(x)
            x = x + middle + second(middle)
        return x


class ReleasedNetwork(Network):
    """The released network; trunk is "plain", "residual" or "momentum", routing "rba" or "sda".

    doubled, weight_std and routing_bias change one thing at a time: "released" doubles the skip of momentum
    alone and gives SDA alone a bias, of 0.1. backend="reference" takes memory as that code does: it keeps all
    votes, and inverts momentum blocks in floats.
    """

    # SDA's mean distance is over the batch, which was 128, and all its votes are in memory.
    at_once = 128

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int,
        blocks: int = 1,
        trunk: str = "momentum",
        routing: str = "rba",
        iterations: int = 3,
        capsules: int = 32,
        capsule_dim: int = 8,
        class_dim: int = 16,
        channels: int = 256,
        kernel_size: int = 9,
        gamma: float = 0.9,
        doubled: bool | str = "released",
        weight_std: float = 0.01,
        routing_bias: float | str | None = "released",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        image_shape = checked_shape(image_shape)
        one_of("backend", backend, ("auto", "reference"))
        one_of("trunk", trunk, ("plain", "residual", "momentum"))
        one_of("routing", routing, ("rba", "sda"))
        at_least("blocks", blocks, 0)
        at_least("iterations", iterations, 1)
        positive("weight_std", weight_std)
        primary = primary_count(image_shape, channels, capsule_dim, kernel_size)
        doubled = trunk == "momentum" if doubled == "released" else bool(doubled)
        if doubled and trunk == "plain":
            raise WrongArgument("a plain trunk has no skip to double; use trunk='residual' or 'momentum'")
        if isinstance(routing_bias, str):
            one_of("routing_bias", routing_bias, ("released",))
            routing_bias = 0.1 if routing == "sda" else None
        self.image_shape = image_shape
        sizes: dict[str, Any] = {
            "image_shape": list(image_shape),
            "classes": classes,
            "blocks": blocks,
            "iterations": iterations,
            "capsules": capsules,
            "capsule_dim": capsule_dim,
            "class_dim": class_dim,
            "channels": channels,
            "kernel_size": kernel_size,
        }
        self.config = {
            "model": "ReleasedNetwork",
            **sizes,
            "trunk": trunk,
            "routing": routing,
            "gamma": gamma,
            "doubled": doubled,
            "weight_std": weight_std,
            "routing_bias": routing_bias,
            "backend": backend,
        }

        def layer(in_capsules: int, out_capsules: int, dim: int) -> ReleasedLayer:
            sizes = in_capsules, capsule_dim, out_capsules, dim
            return ReleasedLayer(*sizes, routing, iterations, weight_std, routing_bias, backend)

        self.stem = Stem(image_shape[0], channels, kernel_size)
        self.primary = ReleasedPrimary(channels, capsule_dim, kernel_size)
        self.caps1 = layer(primary, capsules, capsule_dim)
        layers = [layer(capsules, capsules, capsule_dim) for _ in range(2 * blocks)]
        self.trunk: nn.Module
        if trunk == "momentum":
            pairs = zip(layers[::2], layers[1::2], strict=True)
            memory = "reverse" if backend == "reference" else "store"
            self.trunk = PlainTrunk(ReleasedMomentumBlock(*pair, gamma, doubled, memory) for pair in pairs)
        elif trunk == "residual":
            self.trunk = DoubledResidualTrunk(layers) if doubled else ResidualTrunk(layers)
        else:
            self.trunk = PlainTrunk(layers)
        self.caps2 = layer(capsules, classes, class_dim)
        self.decoder = Decoder(classes, class_dim, image_shape)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput:
        """Classify images [B,C,H,W]; the released training gives no labels, so that its guess is decoded."""
        capsules = self.encode(images)
        lengths = capsules.norm(dim=-1)
        return CapsuleOutput(lengths, capsules, self.decoder(mask(capsules, lengths, labels)))

    def lengths(self, images: Tensor) -> Tensor:
        """The released length, which has no ε under its root."""
        return self.encode(images).norm(dim=-1)

    def encode(self, images: Tensor) -> Tensor:
        """The class capsules [B,K,E] of images [B,C,H,W]; nothing is reconstructed."""
        self.check_images(images)
        capsules: Tensor = self.caps2(self.trunk(self.caps1(self.primary(self.stem(images)))))
        return capsules
