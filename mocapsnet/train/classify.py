"""Classifying images, without gradients."""

from contextlib import nullcontext

import torch
from torch import Tensor

from mocapsnet.data import Split
from mocapsnet.data.augment import Normalisation, crop, to_pixels
from mocapsnet.nn.base import Network
from mocapsnet.train.device import float32_products

# How many images are classified at once.
TEST_BATCH = {"cpu": 500, "mps": 500, "cuda": 2000}


def accuracy(
    model: Network, split: Split, offsets: Tensor | None = None, pad: int = 2, precision: str = "fp32"
) -> float:
    """The fraction of images whose longest class capsule is the labelled one; offsets crop them first."""
    lengths = lengths_of(model, split.images, offsets, pad, precision)
    return float((lengths.argmax(1) == split.labels).double().mean())


@torch.no_grad()
def lengths_of(
    model: Network, images: Tensor, offsets: Tensor | None = None, pad: int = 2, precision: str = "fp32"
) -> Tensor:
    """The lengths [N,K] that a model gives to images, uint8 [N,C,H,W], cropped at offsets where given."""
    was_training = model.training
    model.eval()
    normalise = Normalisation(model.preprocessing, images.device)
    if offsets is not None:
        images = crop(images, offsets, pad)
    # What is compiled for training runs eagerly: every other size of batch would be compiled anew.
    stance = torch.compiler.set_stance("force_eager") if model._compiled_call_impl else nullcontext()
    rounded = torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
    with stance, rounded, float32_products(tf32=precision != "fp32"):
        parts = normalise.centre(images).split(min(TEST_BATCH[images.device.type], model.at_once))
        dtype = next(model.parameters()).dtype
        found = [model.lengths(normalise(to_pixels(part)).to(dtype)) for part in parts]
    model.train(was_training)
    return torch.cat(found)
