"""What a step minimises, and what it shows to the decoder."""

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from mocapsnet.data.augment import mixed
from mocapsnet.losses import margin_loss, reconstruction_loss
from mocapsnet.ops.target import target

CHOICES = {
    "mask": ("label", "guess"),
    "target": ("pixels", "image"),
    "reduction": ("mean", "sum"),
    "loss": ("margin", "cross-entropy"),
}


@dataclass(frozen=True)
class Objective:
    """Margin loss (or cross entropy) of mixed and smoothed labels, plus the weighted reconstruction error.

    mask says whose capsule is decoded, the label's or the guess's; target what should come out, the pixels or
    the normalised image.
    """

    loss: str = "margin"
    mask: str = "label"
    target: str = "pixels"
    reduction: str = "mean"
    reconstruction_weight: float = 5e-4
    smoothing: float = 0.0

    def shown(self, labels: Tensor) -> Tensor | None:
        """The labels as far as the network sees them."""
        return labels if self.mask == "label" else None

    def __call__(self, output: Any, labels: Tensor, pixels: Tensor, share: Tensor | None = None) -> Tensor:
        """The loss of a network's output; where images were mixed, labels are, and what is drawn is not."""
        truth = self.truth(labels, output.lengths, share)
        if self.loss == "cross-entropy":
            loss = F.cross_entropy(output.logits, truth, reduction=self.reduction)
        else:
            loss = margin_loss(output.lengths, truth, reduction=self.reduction)
        if self.reconstruction_weight:
            error = reconstruction_loss(output.reconstruction, pixels, self.reduction)
            loss = loss + self.reconstruction_weight * error
        return loss

    def truth(self, labels: Tensor, lengths: Tensor, share: Tensor | None) -> Tensor:
        """Labels as they are, or T_k mixed as the images are and moved towards 1/K."""
        if not self.smoothing and share is None:
            return labels
        return (
            mixed(target(labels, lengths), share) * (1 - self.smoothing) + self.smoothing / lengths.shape[1]
        )

    def per_image(self, loss: Tensor, images: int) -> Tensor:
        """The loss as a mean over images, however it was reduced."""
        return loss / images if self.reduction == "sum" else loss
