"""Who speaks for a class: from its capsule down to the picture, layer by layer."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.nn.reversible import MomentumSequence
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.trunk import PlainTrunk, ResidualTrunk
from mocapsnet.nn.watch import Intermediate
from mocapsnet.ops.squash import direction
from mocapsnet.ops.votes import votes


class Support(NamedTuple):
    """Shares that sum to one over the capsules below, of one image."""

    flows: list[Tensor]
    """[J,I] for each routed layer: whose votes make each capsule of the state after it."""
    shares: list[Tensor]
    """[K,J] for primary capsules and every state above: who speaks for each class there."""


@torch.no_grad()
def support(model: CapsuleNetwork, layers: list[Intermediate], image: int = 0) -> Support:
    """Follow the class capsules of one image down to the primary ones; layers are forward_intermediates'.

    A vote counts with what it adds along the capsule it makes, c_ij ⟨û_j|i, v_j⟩/‖v_j‖; votes against it
    count nothing. A trunk's state counts with what it keeps of the capsule and with what each f adds to it.
    """
    primary, *routed = [of_image(layer, image) for layer in layers]
    states = [layer.x for layer in routed[:-1]]
    own = [
        sent(below, model.get_submodule(layer.name), layer)
        for below, layer in zip([primary.x, *states], routed, strict=True)
    ]
    f = [layer.capsules for layer in routed[1:-1]]
    trunk = [step(model.trunk, n, states, f, own[1:-1]) for n in range(1, len(states))]
    flows = [own[0], *trunk, own[-1]]
    shares = [torch.eye(len(own[-1]), dtype=own[-1].dtype, device=own[-1].device)]
    for flow in reversed(flows):
        shares.insert(0, shares[0] @ flow)
    return Support(flows, shares)


def of_image(layer: Intermediate, n: int) -> Intermediate:
    """A layer without its batch."""
    c = layer.coupling
    return Intermediate(layer.name, layer.capsules[n], None if c is None else c[n], layer.x[n])


def sent(u: Tensor, layer: nn.Module, above: Intermediate) -> Tensor:
    """What each capsule below adds to each one here, along it, [J,I]."""
    assert isinstance(layer, CapsLayer)
    assert above.coupling is not None
    u_hat = votes(u[None], layer.W)[0]
    along = torch.einsum("jie,je->ji", u_hat, direction(above.capsules))
    return to_shares(above.coupling * along)


def step(trunk: nn.Module, n: int, states: list[Tensor], f: list[Tensor], own: list[Tensor]) -> Tensor:
    """The flow [J,J] into state x_n of a trunk: its capsule before, and the votes for what f added."""
    before, weights = mixture(trunk, n)
    parts = [states[before], *(weight * f[m] for m, weight in weights.items())]
    if isinstance(trunk, PlainTrunk):
        parts[0] = torch.zeros_like(parts[0])
    along = torch.stack([(part * direction(states[n])).sum(-1) for part in parts], 1)
    shares = to_shares(along)
    return torch.diag(shares[:, 0]) + sum(
        shares[:, place, None] * own[m] for place, m in enumerate(weights, 1)
    )


def mixture(trunk: nn.Module, n: int) -> tuple[int, dict[int, float]]:
    """What x_n is made of: the number of the state that it adds to, and the weight of each f."""
    if isinstance(trunk, MomentumSequence):
        # v_n = Σ (1 − γ) γ^(n−1−m) f_m, equation 3 written out.
        return n - 1, {m: (1 - trunk.gamma) * trunk.gamma ** (n - 1 - m) for m in range(n)}
    to_block = isinstance(trunk, ResidualTrunk) and trunk.skip == "block" and n % 2 == 0
    return n - 2 if to_block else n - 1, {n - 1: 1.0}


def to_shares(parts: Tensor) -> Tensor:
    """Rows [J,I] of what is positive, summing to one; a row of nothing is shared by all alike."""
    kept = parts.clamp(min=0)
    total = kept.sum(1, keepdim=True)
    return torch.where(total > 0, kept / total.clamp(min=torch.finfo(kept.dtype).tiny), 1 / parts.shape[1])
