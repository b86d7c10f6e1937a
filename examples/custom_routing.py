"""A routing of one's own: votes are weighted by how well they agree with their mean, once, without a loop.

A routed layer is any module from capsules [B,I,D] to capsules [B,J,E]; a trunk takes any that keep the shape.
"""

import sys

import torch
from torch import Tensor, nn

import mocapsnet as mc
from mocapsnet.data.augment import standardise, to_pixels
from mocapsnet.ops import length, squash


class MeanAgreement(nn.Module):
    """c_ij = softmax over j of the cosine between the vote û_j|i and the mean vote of j."""

    def __init__(self, in_capsules: int, in_dim: int, capsules: int, dim: int) -> None:
        super().__init__()
        self.W = nn.Parameter(0.1 * torch.randn(capsules, in_capsules, dim, in_dim))

    def forward(self, u: Tensor) -> Tensor:
        """Route u [B,I,D] to v [B,J,E]."""
        votes = torch.einsum("jied,bid->bjie", self.W, u)
        c = torch.cosine_similarity(votes, votes.mean(2, keepdim=True), dim=-1).softmax(1)
        return squash(torch.einsum("bji,bjie->bje", c, votes))


def main(steps: int) -> None:
    """Put it into every routed layer of a momentum network, and train that."""
    torch.manual_seed(0)
    digits = mc.data.load("mnist6k")
    model = mc.MoCapsNet(digits.image_shape, digits.classes, blocks=1, capsules=8, channels=32)
    model.caps1 = MeanAgreement(model.caps1.W.shape[1], 8, 8, 8)
    model.trunk = mc.MomentumSequence([MeanAgreement(8, 8, 8, 8) for _ in range(2)])
    model.caps2 = MeanAgreement(8, 8, 10, 16)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    pixels, labels = to_pixels(digits.train.images), digits.train.labels
    for _ in range(steps):
        chosen = torch.randint(len(labels), (32,))
        output = model(standardise(pixels[chosen]), labels[chosen])
        adam.zero_grad()
        mc.capsule_loss(output, labels[chosen], pixels[chosen]).backward()
        adam.step()
    with torch.no_grad():
        lengths = length(model.encode(standardise(to_pixels(digits.test.images))))
    print(f"test accuracy {(lengths.argmax(1) == digits.test.labels).float().mean():.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
