"""What every routing begins with: the votes, and which of them the gradient sees."""

import torch
from torch import Tensor


def votes(u: Tensor, W: Tensor) -> Tensor:
    """û_{j|i} = W_ij u_i: what capsule i thinks capsule j is. u [B,I,D], W [J,I,E,D] -> [B,J,I,E]."""
    # One copy here spares every later sum over i its own.
    return torch.einsum("jied,bid->bjie", W, u).contiguous()


def earlier(gradient: str, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The same tensors as the iterations before the last one see them: constants when gradient is "last"."""
    return tuple(tensor.detach() for tensor in tensors) if gradient == "last" else tensors
