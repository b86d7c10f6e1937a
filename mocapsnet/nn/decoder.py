"""The reconstruction network: class capsules, all but the chosen ones masked out, to an image."""

from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from mocapsnet.ops.target import target


class Decoder(nn.Module):
    """Three linear layers, masked capsules [B,K,E] -> width -> 2·width -> pixels [B,C,H,W] in (0,1)."""

    def __init__(
        self, classes: int, class_dim: int, image_shape: tuple[int, int, int], width: int = 512
    ) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.layers = nn.Sequential(
            nn.Linear(classes * class_dim, width),
            nn.ReLU(),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, prod(image_shape)),
            nn.Sigmoid(),
        )

    def forward(self, capsules: Tensor) -> Tensor:
        """The picture these capsules describe."""
        return self.layers(capsules.flatten(1)).unflatten(1, self.image_shape)


def mask(capsules: Tensor, lengths: Tensor, labels: Tensor | None) -> Tensor:
    """Zero every class capsule [B,K,E] but the labelled ones; without labels, all but the longest."""
    if labels is None:
        chosen = F.one_hot(lengths.argmax(1), lengths.shape[1]).to(capsules.dtype)
    else:
        chosen = target(labels, lengths)
    return capsules * chosen.unsqueeze(-1)
