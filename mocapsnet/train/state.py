"""All that a run needs to go on where it stopped."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import at_least
from mocapsnet.train.average import Average

LARGEST_SEED = 2**32 - 1


def check_seed(seed: int) -> None:
    """Refuse a seed that a generator cannot take, times epochs."""
    at_least("seed", seed, 0)
    if seed > LARGEST_SEED:
        raise WrongArgument(f"seed must be <= {LARGEST_SEED}, got {seed}")


class Row(NamedTuple):
    """One epoch, a line of metrics.csv. Accuracies are fractions."""

    epoch: int
    lr: float
    train_loss: float
    train_accuracy: float
    validation_accuracy: float | None
    test_accuracy: float | None
    """None where the test set was not read."""
    seconds: float
    images_per_second: float


@dataclass
class State:
    """A run in progress: weights, their average, optimizer, schedule, generators, the place in the epoch."""

    config: dict[str, Any]
    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler | None
    average: Average | None = None
    epoch: int = 0
    step: int = 0
    seen: int = 0
    loss_sum: Tensor | float = 0.0
    correct: Tensor | int = 0
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)

    def count(self, loss: Tensor, correct: Tensor, images: int) -> None:
        """Add a step to the epoch's sums, which stay on the device."""
        self.step += 1
        self.seen += images
        self.loss_sum = self.loss_sum + loss.detach() * images
        self.correct = self.correct + correct

    def finish_epoch(
        self, validation_accuracy: float | None, test_accuracy: float | None, seconds: float
    ) -> Row:
        """Turn the epoch's sums into a row and start the next one."""
        row = Row(
            epoch=self.epoch + 1,
            lr=self.learning_rate(),
            train_loss=float(self.loss_sum) / self.seen,
            train_accuracy=float(self.correct) / self.seen,
            validation_accuracy=validation_accuracy,
            test_accuracy=test_accuracy,
            seconds=seconds,
            images_per_second=self.seen / seconds,
        )
        if self.schedule is not None:
            self.schedule.step()
        self.rows.append(row)
        self.epoch, self.step, self.seen = self.epoch + 1, 0, 0
        self.loss_sum, self.correct, self.seconds = 0.0, 0, 0.0
        return row

    def learning_rate(self) -> float:
        """The rate of the last step; Ranger21 keeps its own."""
        return float(getattr(self.optimizer, "current_lr", self.optimizer.param_groups[0]["lr"]))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, as a checkpoint holds them."""
        return {
            "config": self.config,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
            "average": None if self.average is None else self.average.sums,
            "generators": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "epoch": self.epoch,
            "step": self.step,
            "seen": self.seen,
            "loss_sum": float(self.loss_sum),
            "correct": int(self.correct),
            "seconds": self.seconds,
            "rows": [tuple(row) for row in self.rows],
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on where a checkpoint was written."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"] = group["lr"].to(group["params"][0].device)
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["schedule"])
        if self.average is not None:
            self.average.load(saved["average"], self.average.sums)
        cpu, *cuda = saved["generators"]
        torch.set_rng_state(cpu)
        if len(cuda) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(cuda)
        for name in ("epoch", "step", "seen", "loss_sum", "correct", "seconds"):
            setattr(self, name, saved[name])
        self.rows = [Row(*row) for row in saved["rows"]]
