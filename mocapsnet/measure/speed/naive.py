"""The networks straight from the equations, with broadcasting: a first version, to compare with.

Axes are B J I E 1 all over, as a product of W [1,J,I,E,D] and u [B,1,I,D,1] has them.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from mocapsnet.nn.base import Network
from mocapsnet.nn.decoder import mask
from mocapsnet.nn.network import CapsNet, CapsuleNetwork, CapsuleOutput, ResCapsNet
from mocapsnet.nn.routing import CapsLayer


def squash(s: Tensor) -> Tensor:
    """s · ‖s‖ / (1 + ‖s‖²), vectors in the axis before the last."""
    n = s.norm(dim=-2, keepdim=True)
    return s * n / (1 + n**2)


def rba(u_hat: Tensor, u: Tensor, layer: CapsLayer, bias: Tensor | float) -> Tensor:
    """Routing by agreement, its gradient through the last iteration alone; leaky or not."""
    early = u_hat.detach() if layer.gradient == "last" else u_hat
    early_bias = bias.detach() if isinstance(bias, Tensor) and layer.gradient == "last" else bias
    b = torch.zeros_like(u_hat[..., :1, :])
    for iteration in range(layer.iterations):
        if layer.routing == "leaky-rba":
            c = torch.cat([torch.zeros_like(b[:, :1]), b], dim=1).softmax(1)[:, 1:]
        else:
            c = b.softmax(1)
        if iteration == layer.iterations - 1:
            break
        v = squash((c * early).sum(2, keepdim=True) + early_bias)
        b = b + (early * v).sum(-2, keepdim=True)
    return squash((c * u_hat).sum(2, keepdim=True) + bias)


def sda(u_hat: Tensor, u: Tensor, layer: CapsLayer, bias: Tensor | float) -> Tensor:
    """Scaled-distance agreement, the mean distance taken in each image."""
    long, limit = u_hat.norm(dim=-2, keepdim=True), u.norm(dim=-2, keepdim=True)
    u_hat = u_hat / long * torch.minimum(long, limit)
    J, p = u_hat.shape[1], 0.9
    b = torch.zeros_like(u_hat[..., :1, :])
    for iteration in range(layer.iterations):
        v = squash((b.softmax(1) * u_hat).sum(2, keepdim=True) + bias)
        if iteration < layer.iterations - 1:
            d = (v - u_hat).norm(dim=-2, keepdim=True)
            d_o = d.mean((1, 2), keepdim=True)
            b = (math.log(p * (J - 1)) - math.log(1 - p)) / (d_o / 2 - d_o) * d
    return v


def em(u_hat: Tensor, u: Tensor, layer: CapsLayer, bias: Tensor | float) -> Tensor:
    """EM routing: a Gaussian for each j, fitted to votes that are weighted by R_ij ‖u_i‖."""
    V, a_i = u_hat + bias, u.norm(dim=-2, keepdim=True)
    beta_a, beta_u = (beta[:, None, None, None] for beta in (layer.beta_a, layer.beta_u))
    R = torch.full_like(V[..., :1, :], 1 / V.shape[1])
    for iteration in range(layer.iterations):
        r = R * a_i
        total = r.sum(2, keepdim=True)
        mu = (r * V).sum(2, keepdim=True) / total
        var = (r * (V - mu) ** 2).sum(2, keepdim=True) / total + 1e-4
        cost = (beta_u + var.log()).sum(-2, keepdim=True) * total
        a = torch.sigmoid(0.01 * (1 - 0.95 ** (iteration + 1)) * (beta_a - cost))
        if iteration < layer.iterations - 1:
            density = -0.5 * ((V - mu) ** 2 / var + (2 * math.pi * var).log()).sum(-2, keepdim=True)
            R = (a.log() + density).softmax(1)
    return a * mu / mu.norm(dim=-2, keepdim=True)


ROUTINGS: dict[str, Any] = {"rba": rba, "leaky-rba": rba, "sda": sda, "em": em}


class Naive(Network):
    """A network with a copy of another one's weights; its state is stepped in floats and all is stored."""

    def __init__(self, model: CapsuleNetwork) -> None:
        super().__init__()
        twin = copy.deepcopy(model)
        self.stem, self.primary, self.decoder = twin.stem.conv, twin.primary.conv, twin.decoder
        # Layers hold weights here and are never called.
        self.caps1, self.trunk, self.caps2 = twin.caps1, twin.trunk.get_submodule("layers"), twin.caps2
        self.kind = type(model)
        self.capsule_dim = model.config["capsule_dim"]
        self.gamma = model.config.get("gamma", 0.0)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput:
        """What the network gives."""
        capsules = self.encode(images)
        lengths = capsules.norm(dim=-1)
        return CapsuleOutput(lengths, capsules, self.decoder(mask(capsules, lengths, labels)))

    def encode(self, images: Tensor) -> Tensor:
        """The class capsules [B,K,E] of images [B,C,H,W]."""
        maps = self.primary(self.stem(images).relu())
        B, _, H, W = maps.shape
        maps = maps.view(B, -1, self.capsule_dim, H, W).permute(0, 1, 3, 4, 2)
        x = squash(maps.reshape(B, -1, self.capsule_dim, 1)).squeeze(-1)
        x = route(self.caps1, x)
        velocity = torch.zeros_like(x)
        for layer in self.trunk.children():
            f = route(layer, x)
            if self.kind is CapsNet:
                x = f
            elif self.kind is ResCapsNet:
                x = x + f
            else:
                velocity = self.gamma * velocity + (1 - self.gamma) * f
                x = x + velocity
        return route(self.caps2, x)


def route(layer: Any, u: Tensor) -> Tensor:
    """u [B,I,D] -> v [B,J,E] with a layer's weights."""
    u = u[:, None, :, :, None]
    u_hat = layer.W[None] @ u
    bias = 0.0 if layer.bias is None else layer.bias[:, None, :, None]
    v: Tensor = ROUTINGS[layer.routing](u_hat, u, layer, bias)
    return v[:, :, 0, :, 0]
