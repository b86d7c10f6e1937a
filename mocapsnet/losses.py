"""The loss of a capsule network: margin plus reconstruction (equation 1)."""

from typing import Protocol

from torch import Tensor

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.target import target


class Output(Protocol):
    """What a capsule network returns, as far as the loss reads it."""

    @property
    def lengths(self) -> Tensor:
        """[B,K]."""

    @property
    def reconstruction(self) -> Tensor:
        """[B,C,H,W]."""


def margin_loss(
    lengths: Tensor,
    labels: Tensor,
    m_plus: float = 0.9,
    m_minus: float = 0.1,
    lam: float = 0.5,
    reduction: str = "mean",
) -> Tensor:
    """Margin loss of lengths [B,K] (Sabour et al. 2017, equation 4), labels being indices [B] or multi-hot.

    L = Σ_k T_k max(0, m⁺ − ‖v_k‖)² + λ (1 − T_k) max(0, ‖v_k‖ − m⁻)²

    >>> margin_loss(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
    tensor(0.)
    """
    T = target(labels, lengths)
    present = T * (m_plus - lengths).clamp(min=0).square()
    absent = lam * (1 - T) * (lengths - m_minus).clamp(min=0).square()
    return _reduce(present + absent, reduction)


def reconstruction_loss(reconstruction: Tensor, pixels: Tensor, reduction: str = "mean") -> Tensor:
    """Squared error summed over the pixels [B,C,H,W], which are floats in [0,1].

    >>> reconstruction_loss(torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 4))
    tensor(16.)
    """
    if pixels.shape != reconstruction.shape:
        raise WrongArgument(f"pixels must be {tuple(reconstruction.shape)}, got shape {tuple(pixels.shape)}")
    if not pixels.is_floating_point():
        raise WrongArgument(f"pixels must be floats in [0, 1], got {pixels.dtype}; divide by 255 first")
    return _reduce((reconstruction - pixels).square(), reduction)


def capsule_loss(
    output: Output,
    labels: Tensor,
    pixels: Tensor,
    reconstruction_weight: float = 5e-4,
    reduction: str = "mean",
) -> Tensor:
    """L = L_margin + 5e-4 · L_recon (equation 1), for the output of a capsule network.

    reduction="mean" divides the sum over the batch by its size; "sum" does not.
    """
    if getattr(output, "reconstruction", None) is None:
        raise WrongArgument(
            "output has no reconstruction, as its network has no decoder; "
            "use mc.margin_loss(output.lengths, labels)"
        )
    margin = margin_loss(output.lengths, labels, reduction=reduction)
    return margin + reconstruction_weight * reconstruction_loss(output.reconstruction, pixels, reduction)


def _reduce(terms: Tensor, reduction: str) -> Tensor:
    one_of("reduction", reduction, ("mean", "sum"))
    return terms.sum() / terms.shape[0] if reduction == "mean" else terms.sum()
