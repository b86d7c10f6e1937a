"""A data set of one's own: any uint8 images and labels become a Dataset, and fit() trains on it."""

import sys
import tempfile

import torch
from torch import Tensor

import mocapsnet as mc


def stripes(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures of 20x20 with stripes across (class 0), down (class 1) or aslant (class 2), and noise."""
    labels = torch.randint(3, (count,), generator=generator)
    row, column = torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij")
    waves = torch.stack([row, column, row + column]).float().mul(1.2).sin()[labels]
    noise = 0.5 * torch.randn(count, 20, 20, generator=generator)
    return ((waves + noise).clamp(-2, 2) * 60 + 128).byte()[:, None], labels


def main(epochs: int) -> None:
    """Make the pictures, train, tell."""
    generator = torch.Generator().manual_seed(0)
    train, test = (mc.data.Split(*stripes(count, generator)) for count in (1200, 300))
    dataset = mc.data.Dataset("stripes", train, test, ("across", "down", "aslant"))
    torch.manual_seed(0)
    model = mc.ResCapsNet(dataset.image_shape, dataset.classes, capsules=4, channels=16, kernel_size=5)
    with tempfile.TemporaryDirectory() as folder:
        run = mc.fit(model, dataset, epochs=epochs, batch=16, lr=3e-3, device="cpu", output=folder)
    print(f"test accuracy {run.test_accuracy:.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
