"""The order that the batched routings compute in: W as one matrix per input capsule, votes [I,B,E,J]."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

# Whether Triton interprets programs, as it reads it, once.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# Votes of one image that the registers of a GPU's program hold.
IMAGE_VOTES = 16384
# Bytes of votes that are formed at once: what a core's cache holds, and on an accelerator what is no burden.
CPU_BYTES = 2 * 2**20
ACCELERATOR_BYTES = 2**30
# Products that a CPU's dense matmul adds up: more, or one matmul after the other, round worse than votes do.
DENSE = 256


def matrices(W: Tensor) -> Tensor:
    """W [J,I,E,D] as [I,D,E,J]: a view where its memory has that order, else a copy.

    With j last, sums over e and i run along rows of neighbouring numbers, and so does the softmax over j.
    """
    return W.permute(1, 3, 2, 0).contiguous()


def power(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def one_image(I: int, J: int, E: int) -> bool:  # noqa: E741
    """Whether a fused program holds all votes of an image."""
    return power(I) * power(J) * power(E) <= IMAGE_VOTES


def laid_out(W: Tensor) -> Tensor:
    """The same W [J,I,E,D] in the order of memory I D E J: matrices(W) is then a view."""
    return matrices(W).permute(3, 0, 2, 1)


def plain_sum(u: Tensor, X: Tensor) -> Tensor:
    """Σ_i û_{j|i} [B,E·J]: one dense matmul over d and i, on a CPU many over d and some i in one batch."""
    if not u.is_cpu:
        return u.flatten(1) @ X.flatten(0, 1)
    size = min(len(X), max(1, DENSE // u.shape[2]))
    count, rest = divmod(len(X), size)
    u_some, u_rest = u.split((len(X) - rest, rest), 1)
    X_some, X_rest = X.split((len(X) - rest, rest))
    rows = u_some.unflatten(1, (count, size)).flatten(2).transpose(0, 1)
    total = torch.bmm(rows, X_some.unflatten(0, (count, size)).flatten(1, 2)).sum(0)
    return total + u_rest.flatten(1) @ X_rest.flatten(0, 1) if rest else total


def tile(u: Tensor, X: Tensor, dtype: torch.dtype) -> int:
    """How many input capsules' votes are formed at once, for u [B,I,D] and X [I,D,E·J]."""
    limit = CPU_BYTES if u.device.type == "cpu" else ACCELERATOR_BYTES
    return max(1, limit // max(1, u.shape[0] * X.shape[2] * dtype.itemsize))


def votes_dtype(u: Tensor, W: Tensor) -> torch.dtype:
    """What the votes are computed in: autocast's dtype where autocast is on, else that of u and W."""
    dtype, device = torch.promote_types(u.dtype, W.dtype), u.device.type
    if dtype != torch.float64 and autocasting(device):
        return torch.get_autocast_dtype(device)
    return dtype


def state_dtype(u: Tensor, W: Tensor) -> torch.dtype:
    """What logits, coupling, sums and squash are computed in: float32 at least."""
    return torch.promote_types(torch.promote_types(u.dtype, W.dtype), torch.float32)


def output_dtype(u: Tensor, W: Tensor) -> torch.dtype:
    """What v comes out in: the state's dtype under autocast, else that of u and W."""
    return state_dtype(u, W) if autocasting(u.device.type) else torch.promote_types(u.dtype, W.dtype)


def autocasting(device: str) -> bool:
    """Whether autocast is on; meta has none, and torch.compile cannot ask which devices do."""
    return device != "meta" and torch.is_autocast_enabled(device)


def rounds(u: Tensor) -> bool:
    """Whether a fused op may round its products to bfloat16: under such an autocast.

    Triton's interpreter has no bfloat16 to trust, and float16 is finer: there products are float32.
    """
    rounding = u.is_cuda and autocasting("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    return rounding and not INTERPRETED


def from_memory(u: Tensor) -> bool:
    """Whether a gradient through every iteration waits for memory in any order: a CPU without autocast."""
    return u.device.type == "cpu" and not autocasting("cpu")


def as_written(device: str) -> AbstractContextManager[object]:
    """Here nothing is cast but where the code says so."""
    return torch.autocast(device, enabled=False) if autocasting(device) else nullcontext()


def votes(u: Tensor, W: Tensor, dtype: torch.dtype) -> Tensor:
    """û_{j|i} = W_ij u_i as one batched matmul over i: u [B,I,D], W [J,I,E,D] -> [I,B,E,J]."""
    u_hat = torch.bmm(u.transpose(0, 1).to(dtype), matrices(W).flatten(2).to(dtype))
    return u_hat.view(*u_hat.shape[:2], W.shape[2], W.shape[0])
