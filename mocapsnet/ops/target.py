"""Labels as the loss and the decoder's mask read them."""

import torch
from torch import Tensor

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.backend import transformed

# By which labels that were mixed in bfloat16 may leave 0..1.
ROUNDING = 1e-2


def target(labels: Tensor, lengths: Tensor) -> Tensor:
    """T_k for lengths [B,K], in their dtype: 1 where class k is present, from indices [B] or multi-hot [B,K].

    >>> target(torch.tensor([2, 0]), torch.zeros(2, 3))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    if not isinstance(labels, Tensor):
        raise WrongArgument(f"labels must be a tensor, got {type(labels).__name__}; use torch.tensor(labels)")
    if lengths.dim() != 2:
        raise WrongArgument(f"lengths must be [B, K], got shape {tuple(lengths.shape)}")
    B, K = lengths.shape
    hot = labels.shape == (B, K)
    if not hot and (labels.shape != (B,) or labels.is_floating_point() or labels.dtype == torch.bool):
        raise WrongArgument(
            f"labels must be class indices [B={B}] or multi-hot [B={B}, K={K}], "
            f"got {str(labels.dtype).removeprefix('torch.')} of shape {tuple(labels.shape)}"
        )
    # Reading the values would make a GPU wait, and a transform of torch.func has none to read.
    seen = labels.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()
    if seen and labels.numel():
        numbers = labels if labels.is_floating_point() else labels.long()
        low, high = (value.item() for value in numbers.aminmax())
        if hot and not -ROUNDING <= low <= high <= 1 + ROUNDING:
            wrong = high if low >= -ROUNDING else low
            raise WrongArgument(f"labels must be within 0..1 where they are multi-hot, got {wrong:g}")
        if not hot and (low < 0 or high >= K):
            raise WrongArgument(
                f"labels must be in 0..{K - 1}, got {low if low < 0 else high}; is classes right?"
            )
    if hot:
        return labels.to(lengths.dtype)
    return (labels.unsqueeze(1) == torch.arange(K, device=labels.device)).to(lengths.dtype)
