"""Primary capsules straight to class capsules: the networks of Sabour et al. and of Xi et al."""

from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.base import Network
from mocapsnet.nn.decoder import Decoder, mask
from mocapsnet.nn.network import CapsuleOutput
from mocapsnet.nn.primary import STRIDE, PrimaryCapsules, checked_shape
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.nn.stem import Stem
from mocapsnet.ops import length
from mocapsnet.ops.arguments import at_least


class ShallowOutput(NamedTuple):
    """What a network without a decoder returns."""

    lengths: Tensor
    """[B,K]: how present each class is."""
    capsules: Tensor
    """[B,K,E]: how each class looks."""


class ShallowCapsNet(Network):
    """A stem of one convolution or two, primary capsules, class capsules, and perhaps a decoder.

    second_kernel is the kernel of a second convolution in the stem; types is how many primary capsules there
    are at a place (channels/capsule_dim unless told); same pads so that only strides shrink an image;
    truncated cuts the first weights off at two standard deviations. extra_class adds a class "none of the
    above", which competes in training and is left out of lengths().

    >>> mc.ShallowCapsNet((3, 32, 32), classes=10, second_kernel=5)
    """

    # Every primary capsule votes for every class.
    at_once = 500

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        classes: int,
        routing: str = "rba",
        iterations: int = 3,
        capsule_dim: int = 8,
        class_dim: int = 16,
        channels: int = 256,
        kernel_size: int = 9,
        second_kernel: int | None = None,
        types: int | None = None,
        same: bool = False,
        decoder: bool = True,
        extra_class: bool = False,
        weight_std: float = 0.1,
        truncated: bool = False,
        routing_bias: float | None = 0.1,
        gradient: str | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        C, H, W = image_shape = checked_shape(image_shape)
        sizes = {
            "classes": classes,
            "capsule_dim": capsule_dim,
            "class_dim": class_dim,
            "channels": channels,
            "kernel_size": kernel_size,
        }
        chosen = {"types": types, "second_kernel": second_kernel}
        for name, value in (
            *sizes.items(),
            *((name, value) for name, value in chosen.items() if value is not None),
        ):
            at_least(name, value, 1)
        options: dict[str, Any] = {
            "routing": routing,
            "iterations": iterations,
            "weight_std": weight_std,
            "routing_bias": routing_bias,
            "gradient": gradient,
            "backend": backend,
        }
        self.image_shape = image_shape
        self.decodes = decoder
        self.same = same
        self.config = {
            "model": "ShallowCapsNet",
            "image_shape": [C, H, W],
            **sizes,
            **options,
            **chosen,
            "same": same,
            "decoder": decoder,
            "extra_class": extra_class,
            "truncated": truncated,
        }
        types = max(channels // capsule_dim, 1) if types is None else types
        kernels = [kernel_size] if second_kernel is None else [kernel_size, second_kernel]
        self.stems = nn.ModuleList(
            Stem(C if n == 0 else channels, channels, kernel) for n, kernel in enumerate(kernels)
        )
        self.primary = PrimaryCapsules(channels, capsule_dim, kernel_size, types)
        places = 1
        for side in (H, W):
            left = (
                -(-side // STRIDE)
                if same
                else (side - sum(kernels) + len(kernels) - kernel_size) // STRIDE + 1
            )
            if left < 1:
                raise WrongArgument(
                    f"image_shape {image_shape} is too small for convolutions of {[*kernels, kernel_size]}; "
                    "enlarge the images, lower kernel_size, or use same=True"
                )
            places *= left
        self.caps = CapsLayer(types * places, capsule_dim, classes + int(extra_class), class_dim, **options)
        if truncated:
            nn.init.trunc_normal_(self.caps.W, std=weight_std, a=-2 * weight_std, b=2 * weight_std)
        self.decoder = Decoder(classes + int(extra_class), class_dim, image_shape) if decoder else None

    def forward(self, images: Tensor, labels: Tensor | None = None) -> CapsuleOutput | ShallowOutput:
        """Classify images [B,C,H,W]; lengths count the extra class, where there is one."""
        capsules = self.encode(images)
        lengths = length(capsules)
        if self.decoder is None:
            return ShallowOutput(lengths, capsules)
        return CapsuleOutput(lengths, capsules, self.decoder(mask(capsules, lengths, labels)))

    def encode(self, images: Tensor) -> Tensor:
        """The class capsules [B,K,E] of images [B,C,H,W], the extra class's last."""
        self.check_images(images)
        x = images
        for stem in self.stems:
            x = stem(self.padded(x, stem.conv))
        capsules: Tensor = self.caps(self.primary(self.padded(x, self.primary.conv)))
        return capsules

    def lengths(self, images: Tensor) -> Tensor:
        """How present each class [B,K] is, the extra one left out."""
        return length(self.encode(images))[:, : self.config["classes"]]

    def padded(self, x: Tensor, convolution: Any) -> Tensor:
        """With zeros around, more of them at the end, so that a convolution shrinks by its stride alone."""
        if not self.same:
            return x
        widths: list[int] = []
        for side in (x.shape[3], x.shape[2]):
            stride, kernel = convolution.stride[0], convolution.kernel_size[0]
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            widths += [total // 2, total - total // 2]
        return F.pad(x, widths)
