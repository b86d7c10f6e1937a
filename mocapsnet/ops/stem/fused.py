"""The stem as one op for autograd and torch.compile, around the Triton programs of kernels.py."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.ops.conv.fused import LAST, precision
from mocapsnet.ops.rba.fused import PROGRAMS, shared
from mocapsnet.ops.stem import kernels

# Places and numbers of a patch at a time, forth and back.
FORTH = {"BM": 64, "BK": 64, "num_warps": 8, "num_stages": 1}
BACK = {"BM": 64, "BN": 128, "num_warps": 8, "num_stages": 1}


def suits(images: Tensor, w: Tensor, dtype: torch.dtype) -> bool:
    """Whether the programs of the stem take these images [B,C,H,W], and are made for such a w [N,C,K,K]."""
    made_for = len(w) in (64, 128, 256) and w[0].numel() <= 2 * len(w) and dtype == torch.bfloat16
    # Their places are counted in 32 bits.
    return made_for and not images.requires_grad and 0 < images.numel() < 2**31


@torch.library.custom_op("mocapsnet::stem", mutates_args=())
def stem(images: Tensor, w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """relu(conv(images)) in a dtype, channels last, no patch in memory; images have no gradient."""
    x, sizes = room(images, w, dtype), sizes_of(images, w)
    matrix = w.new_zeros((sizes["KP"], sizes["CO"]), dtype=dtype)
    matrix[: sizes["PATCH"]] = w.permute(1, 2, 3, 0).flatten(0, 2)
    matrix[sizes["PATCH"]] = bias
    rows, (ib, *_, ih, iw) = x[:, 0].numel(), images.stride()
    kernels.stem[(-(-rows // FORTH["BM"]),)](
        images, taps(images, w), matrix, x, rows, ib, ih, iw, **sizes, **FORTH, PRECISION=precision(x)
    )
    return x


@torch.library.custom_op("mocapsnet::stem_backward", mutates_args=())
def stem_backward(dx: Tensor, images: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """∂W [N,C,K,K] and ∂bias [N] in float32."""
    sizes, rows, (ib, *_, ih, iw) = sizes_of(images, w), x[:, 0].numel(), images.stride()
    blocks = sizes["KP"] // BACK["BN"]
    steps, parts = shared(-(-rows // BACK["BM"]), blocks, PROGRAMS)
    dw = x.new_empty((parts, sizes["CO"], sizes["KP"]), dtype=torch.float32)
    kernels.stem_backward[(parts, blocks)](
        images, taps(images, w), x, dx.contiguous(memory_format=LAST), dw, rows, steps * BACK["BM"],
        ib, ih, iw, **sizes, **BACK, PRECISION=precision(x),
    )  # fmt: skip
    dw, patch = dw.sum(0), sizes["PATCH"]
    return dw[:, :patch].contiguous().view(w.shape), dw[:, patch].contiguous()


def room(images: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for what the stem gives."""
    (B, _, H, W), (CO, _, K, _) = images.shape, w.shape
    return images.new_empty((B, H - K + 1, W - K + 1, CO), dtype=dtype).movedim(-1, 1)


def sizes_of(images: Tensor, w: Tensor) -> dict[str, int]:
    """What the programs of the stem know of their sizes; a patch and the bias are padded to whole blocks."""
    (CO, _, K, _), (H, W), patch = w.shape, images.shape[2:], w[0].numel()
    padded = (patch // BACK["BN"] + 1) * BACK["BN"]
    return {"OH": H - K + 1, "OW": W - K + 1, "CO": CO, "PATCH": patch, "KP": padded}


def taps(images: Tensor, w: Tensor) -> Tensor:
    """How far from its corner each number of a patch of these images lies, padded."""
    return offsets(*w.shape[1:3], images.stride()[1:], sizes_of(images, w)["KP"], images.device)


@cache
def offsets(C: int, K: int, strides: tuple[int, ...], padded: int, device: torch.device) -> Tensor:
    """The same, once: a step finds it on its device."""
    axes = [torch.arange(count) * stride for count, stride in zip((C, K, K), strides, strict=True)]
    channels, rows, columns = torch.meshgrid(*axes, indexing="ij")
    found = (channels + rows + columns).flatten()
    return F.pad(found, (0, padded - len(found))).int().to(device)


@stem.register_fake
def _(images: Tensor, w: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    return room(images, w, dtype)


@stem_backward.register_fake
def _(dx: Tensor, images: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(w.shape, dtype=torch.float32), w.new_empty(len(w), dtype=torch.float32)


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """The images, and x, which tells where the ReLU was open."""
    images, w, _, _ = inputs
    ctx.save_for_backward(images, output, w)


def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of w and of the bias."""
    images, x, w = ctx.saved_tensors
    dw, dbias = stem_backward(dx, images, x, w)
    return None, dw.to(w.dtype), dbias.to(w.dtype), None


stem.register_autograd(backward, setup_context=keep)
