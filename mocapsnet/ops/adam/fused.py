"""Adam and the check of gradients by the Triton programs of kernels.py, which share all weights evenly."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.adam import kernels
from mocapsnet.ops.backend import on_its_gpu
from mocapsnet.ops.order import INTERPRETED

# Tensors that a program chooses from.
AT_ONCE = 64
# Numbers of a program that checks gradients, and of one that updates weights.
CHECK = {"BLOCK": 4096, "num_warps": 4}
UPDATE = {"BLOCK": 1024, "num_warps": 4}
# Sums that are added up at a time.
CHUNK = 4096


def suits(weights: Iterable[Tensor]) -> bool:
    """Whether the programs take these weights: float32 without holes, on one device that runs them."""
    weights = list(weights)
    kinds = {(weight.dtype, weight.device) for weight in weights}
    here = all(weight.is_cuda or (weight.is_cpu and INTERPRETED) for weight in weights)
    return here and len(kinds) == 1 and kinds.pop()[0] == torch.float32 and all(map(dense, weights))


def dense(weight: Tensor) -> bool:
    """Whether a weight fills its memory, in whatever order."""
    order = sorted(
        (stride, size) for size, stride in zip(weight.shape, weight.stride(), strict=True) if size > 1
    )
    whole = accumulate((size for _, size in order), mul, initial=1)
    return all(stride == filled for (stride, _), filled in zip(order, whole, strict=False))


@torch.no_grad()
@on_its_gpu
def note(weights: Iterable[Tensor], loss: Tensor, number: Tensor, first_bad: Tensor, stopped: Tensor) -> None:
    """Write a step's number to first_bad if it is the first whose loss or gradients are not finite.

    From it on, stopped is 1.
    """
    weights = list(weights)
    for weight in weights:
        if not dense(weight):
            raise WrongArgument(f"a weight must have no holes, got the strides {weight.stride()}")
    gradients = gradients_of(weights)
    launches = list(groups(gradients, CHECK["BLOCK"]))
    parts = loss.new_empty(sum(launch.blocks for launch in launches), dtype=torch.float32)
    for launch in launches:
        kernels.squares[(launch.blocks,)](
            launch.of(gradients), parts[launch.first :], **launch.sizes, **CHECK
        )
    kernels.judge[(1,)](parts, loss, number, first_bad, stopped, len(parts), CHUNK=CHUNK, num_warps=8)


class Adam(torch.optim.Adam):
    """torch's fused Adam, its learning rate on the device; what state_dict() gives is the same."""

    found_inf: Tensor | None = None
    """Not 0 where no update is to be made, on the device."""

    def __init__(self, parameters: Any, lr: float | Tensor = 1e-3, **options: Any) -> None:
        super().__init__(parameters, lr, **{**options, "fused": True, "capturable": True})
        # It looks at no scale of gradients.
        self._step_supports_amp_scaling = False

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Take more weights, or refuse them."""
        super().add_param_group(group)
        check(self.param_groups[-1])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state, or refuse its options."""
        super().load_state_dict(state)
        for group in self.param_groups:
            check(group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all weights that have a gradient; nobody waits."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            if weights := [weight for weight in group["params"] if weight.grad is not None]:
                device = weights[0].device
                # A captured step reads it from the device, wherever it was saved.
                group["lr"] = torch.as_tensor(group["lr"], device=device)
                if self.found_inf is None:
                    self.found_inf = torch.zeros((), device=device)
                states = [self.moments(weight) for weight in weights]
                update(weights, states, group, self.found_inf)
        return loss

    def moments(self, weight: Tensor) -> dict[str, Tensor]:
        """The state of a weight: on its device, in its order of memory, at first zero."""
        state: dict[str, Tensor] = self.state[weight]
        if not state:
            state["step"] = weight.new_zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] = state["step"].to(weight)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = in_order(weight, state[name])
        return state


def check(group: dict[str, Any]) -> None:
    """Refuse options and weights that the programs do not know."""
    for name in ("amsgrad", "maximize"):
        if group[name]:
            raise WrongArgument(f"{name} must be False; torch.optim.Adam has it")
    weights = [weight for weight in group["params"] if weight.requires_grad]
    if weights and not suits(weights):
        raise WrongArgument(
            "weights must be float32 without holes, on one GPU or interpreted; torch.optim.Adam takes others"
        )


@on_its_gpu
def update(
    weights: list[Tensor], states: list[dict[str, Tensor]], group: dict[str, Any], stopped: Tensor
) -> None:
    """Adam's update of weights that have gradients, by the options of their group."""
    steps, means, squares = ([state[name] for state in states] for name in ("step", "exp_avg", "exp_avg_sq"))
    gradients, (beta1, beta2), lr = gradients_of(weights), group["betas"], group["lr"]
    for launch in groups(weights, UPDATE["BLOCK"]):
        some = launch.of(steps)
        factors = lr.new_empty((len(some), 2), dtype=torch.float32)
        kernels.advance[(len(some),)](
            some, factors, lr, stopped, LOG1=logarithm(beta1), LOG2=logarithm(beta2), num_warps=1
        )
        kernels.update[(launch.blocks,)](
            *map(launch.of, (weights, gradients, means, squares)), factors, lr, stopped, **launch.sizes,
            BETA1=beta1, BETA2=beta2, EPS=group["eps"], DECAY=group["weight_decay"],
            DECOUPLED=group["decoupled_weight_decay"], **UPDATE,
        )  # fmt: skip
    # As every operation in place does: a backward pass that still needs the old weights says so.
    torch.autograd.graph.increment_version(weights)


def logarithm(beta: float) -> float:
    """The logarithm of 0 too."""
    return math.log(beta) if beta else -math.inf


def gradients_of(weights: Iterable[Tensor]) -> list[Tensor]:
    """Those that there are."""
    return [in_order(weight, weight.grad) for weight in weights if weight.grad is not None]


def in_order(weight: Tensor, other: Tensor) -> Tensor:
    """A tensor of the weight's shape in the weight's order of memory, itself or a copy."""
    if other.is_sparse:
        raise WrongArgument("gradients must be dense; torch.optim.SparseAdam takes others")
    if alike(weight, other):
        return other
    return torch.empty_like(weight).copy_(other)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape lie in the same order; an axis of length 1 has none."""
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size == 1 or mine == its for size, mine, its in pairs)


class Launch(NamedTuple):
    """What one program goes over: some tensors, from a first block on."""

    tensors: slice
    first: int
    blocks: int
    sizes: dict[str, tuple[int, ...]]

    def of(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        """Its part of a list."""
        return tuple(tensors[self.tensors])


def groups(tensors: list[Tensor], block: int) -> Iterator[Launch]:
    """The launches that go over all of them, block by block."""
    first = 0
    for some in range(0, len(tensors), AT_ONCE):
        launch = slice(some, some + AT_ONCE)
        sizes = tuple(tensor.numel() for tensor in tensors[launch])
        *starts, blocks = accumulate((-(-size // block) for size in sizes), initial=0)
        yield Launch(launch, first, blocks, {"STARTS": tuple(starts), "SIZES": sizes})
        first += blocks
