"""Ranger21 whose step waits for nobody: what changes from one to the next lies on the device.

The update is that of pytorch-optimizer, which reads numbers back in every step, so that no graph can hold it.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytorch_optimizer
import torch
from pytorch_optimizer.optimizer.utils import unit_norm
from torch import Tensor, nn
from torch.nn.functional import softplus

from mocapsnet.train.device import cannot_compile


class Ranger21(pytorch_optimizer.Ranger21):
    """pytorch-optimizer's, whose state and state_dict() it shares; a CUDA graph can hold its step.

    A state is loaded before a step is captured. All weights are one group.

    >>> weight = nn.Parameter(torch.ones(3))
    >>> optimizer = Ranger21([weight], steps=100, lr=0.01)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> int(optimizer.state_dict()["param_groups"][0]["step"])
    1
    """

    found_inf: Tensor | None = None
    """Not 0 where no update is to be made, on the device."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], steps: int, lr: float, compile: bool = False
    ) -> None:
        super().__init__(parameters, num_iterations=steps, lr=lr)
        # As torch's optimizers say that they read what they need from the device.
        self.defaults |= {"fused": True, "capturable": True}
        functions = (prepare, pace, move) if compile else ()
        self.compiled = {function: torch.compile(function, dynamic=False) for function in functions}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all weights that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        (group,) = self.param_groups
        self.init_group(group)
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return loss
        device = weights[0].device
        if self.found_inf is None:
            self.found_inf = torch.zeros((), device=device)
        goes_on = self.found_inf == 0
        # What was loaded, or is a number at first.
        step = group["step"] = torch.as_tensor(group["step"], dtype=torch.float64, device=device)
        rate = torch.as_tensor(self.current_lr, dtype=torch.float64, device=device)
        self.current_lr = rate  # type: ignore[assignment]
        step += goes_on
        how, states = self.constants(group), [self.state[weight] for weight in weights]
        ready = [
            self.run(prepare, weight, weight.grad, state["variance_ma"], step, goes_on, how)
            for weight, state in zip(weights, states, strict=True)
        ]
        size, sums = sum(weight.numel() for weight in weights), torch.stack([total for _, total in ready])
        now = self.run(pace, step, sums, size, how)
        rate.copy_(now.lr)
        for weight, (gradient, _), state in zip(weights, ready, states, strict=True):
            self.run(move, weight, gradient, state, now, goes_on, how)
        return loss

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function gives, compiled if that was asked for and can be."""
        if function in self.compiled:
            try:
                return self.compiled[function](*arguments)
            except RuntimeError as error:
                # It fails before any update of this weight.
                if not cannot_compile(error):
                    raise
                print(f"not compiled: {str(error).strip().splitlines()[0]}")
                self.compiled.clear()
        return function(*arguments)

    def constants(self, group: dict[str, Any]) -> "Constants":
        """What never changes in a run."""
        beta1, beta2 = group["betas"]
        return Constants(
            lr=group["lr"],
            least=self.min_lr,
            warm_up=self.num_warm_up_iterations,
            warm_down=(self.start_warm_down, self.num_warm_down_iterations),
            clip=(self.agc_eps, self.agc_clipping_value),
            betas=(self.beta0, beta1, beta2),
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            norm_loss=self.norm_loss_factor,
            softplus=self.beta_softplus,
            merge=(self.lookahead_merge_time, 1 - self.lookahead_blending_alpha),
        )

    def state_dict(self) -> dict[str, Any]:
        """What pytorch-optimizer's gives."""
        state = super().state_dict()
        (group,) = state["param_groups"]
        group["step"] = int(group.get("step", 0))
        return state | {
            "lookahead_step": group["step"] % self.lookahead_merge_time,
            "current_lr": float(self.current_lr),
        }


class Constants(NamedTuple):
    """The settings of an update, as pytorch-optimizer has them."""

    lr: float
    least: float
    warm_up: int
    warm_down: tuple[int, int]
    clip: tuple[float, float]
    betas: tuple[float, float, float]
    eps: float
    weight_decay: float
    norm_loss: float
    softplus: float
    merge: tuple[int, float]


class Now(NamedTuple):
    """What all weights have in common in one step, on the device."""

    lr: Tensor
    pull: Tensor
    rate: Tensor
    shrink: Tensor
    scale: Tensor
    odd: Tensor
    merges: Tensor


def prepare(
    weight: Tensor, gradient: Tensor, variance: Tensor, step: Tensor, goes_on: Tensor, how: Constants
) -> tuple[Tensor, Tensor]:
    """The gradient clipped, centred and scaled, and the sum of its variance, which it moves."""
    least, most = how.clip
    gradient = standard(pytorch_optimizer.agc(weight, gradient, least, most))
    _, _, beta2 = how.betas
    moved = variance * beta2 + (1 - beta2) * gradient * gradient
    put(variance, moved, goes_on)
    return gradient, (moved / (1 - beta2**step).float()).sum()


def standard(gradient: Tensor) -> Tensor:
    """Each row's mean taken off, and all of it divided by its standard deviation."""
    if gradient.ndim > 1:
        gradient = gradient - gradient.mean(dim=tuple(range(1, gradient.ndim)), keepdim=True)
    return gradient / (gradient.std() + 1e-8) if gradient.numel() > 2 else gradient


def pace(step: Tensor, sums: Tensor, size: int, how: Constants) -> Now:
    """The learning rate of a step, and what follows from it."""
    (_, beta1, beta2), (first, count), (every, _) = how.betas, how.warm_down, how.merge
    up = how.lr * (step / how.warm_up).clamp(max=1)
    share = ((step + 1 - first).clamp(min=1) / (count + 1)).clamp(max=1)
    down = (how.lr - (how.lr - how.least) * share).clamp(min=how.least)
    lr = torch.where(step < first, up, down)
    spread = ((1 + sums.double().sum()) / size).sqrt()
    return Now(
        lr=lr,
        pull=(2 * how.norm_loss * lr).float(),
        rate=(lr / (1 - beta1**step)).float(),
        shrink=(1 - how.weight_decay * lr / spread).float(),
        scale=(1 - beta2**step).sqrt().float(),
        odd=step % 2 == 1,
        merges=step % every == 0,
    )


def move(
    weight: Tensor, gradient: Tensor, state: dict[str, Tensor], now: Now, goes_on: Tensor, how: Constants
) -> None:
    """Weight and state after a step, whose two momenta take turns."""
    (beta0, beta1, _), (_, back) = how.betas, how.merge
    x = weight * now.shrink
    x = x * (1 - now.pull * (1 - 1 / (unit_norm(x) + how.eps)))
    largest = torch.maximum(state["max_variance_ma"], state["variance_ma"])
    spread = softplus(largest.sqrt() / now.scale + how.eps, beta=how.softplus)
    first, second = state["grad_ma"], state["neg_grad_ma"]
    mine = torch.where(now.odd, first, second).lerp(standard(gradient), 1 - beta1**2)
    other = torch.where(now.odd, second, first)
    x = x - now.rate * ((1 + beta0) * mine - beta0 * other) / (math.hypot(1 + beta0, beta0) * spread)
    slow = state["lookahead_params"]
    x = torch.where(now.merges, x.lerp(slow, back), x)
    put(slow, torch.where(now.merges, x, slow), goes_on)
    put(weight, x, goes_on)
    put(state["max_variance_ma"], largest, goes_on)
    put(first, torch.where(now.odd, mine, other), goes_on)
    put(second, torch.where(now.odd, other, mine), goes_on)


def put(tensor: Tensor, value: Tensor, goes_on: Tensor) -> None:
    """Write a value unless all is to stay as it is."""
    tensor.copy_(torch.where(goes_on, value, tensor))
