"""The reconstruction network: class capsules, all but the chosen ones masked out, to an image."""

from math import prod

import torch.nn.functional as F
from torch import Tensor, nn

from mocapsnet.ops.target import target


class Decoder(nn.Module):
    """Three linear layers, masked capsules [B,K,E] -> pixels [B,C,H,W] in (0,1)."""

    def __init__(self, classes: int, class_dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.image_shape = image_shape
        self.layers = nn.Sequential(
            nn.Linear(classes * class_dim, 512),
            nn.ReLU(),
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Linear(1024, prod(image_shape)),
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
