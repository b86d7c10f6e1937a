"""One training step on the device that holds the data."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import Augmentation, Normalisation, mixed
from mocapsnet.errors import NotFinite
from mocapsnet.nn.base import Network
from mocapsnet.ops import backend
from mocapsnet.train.average import Average
from mocapsnet.train.culprit import check_finite, culprit, is_finite, range_checked
from mocapsnet.train.device import cannot_compile
from mocapsnet.train.objective import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Outcome(NamedTuple):
    """What a step leaves to be counted, on the device."""

    loss: Tensor
    correct: Tensor


class Step:
    """gather → augment → normalise → forward → backward → update, for the images of given indices.

    A step whose loss or gradient is not finite makes no update. A CPU says so at once. A GPU is not waited
    for: it makes no update from then on, and check() tells.
    """

    def __init__(
        self,
        fabric: "Fabric",
        network: nn.Module,
        model: Network,
        optimizer: Any,
        data: Split,
        augmentation: Augmentation | None = None,
        objective: Objective | None = None,
        average: Average | None = None,
    ) -> None:
        self.fabric = fabric
        self.network = network
        self.model = model
        self.optimizer = optimizer
        self.data = data
        self.augmentation = augmentation or Augmentation()
        self.objective = objective or Objective()
        self.average = average
        self.normalise = Normalisation(model.preprocessing, fabric.device)
        self.loss: Callable[..., Tensor] = self.objective
        self.correct = correct
        self.compiled = False
        # Only a fused optimizer takes it from the device that nothing is to be updated.
        self.waits = not optimizer.defaults.get("fused")
        self.number = torch.zeros((), dtype=torch.int64, device=fabric.device)
        self.first_bad = torch.zeros_like(self.number)
        self.unchecked: dict[int, tuple[Tensor, Tensor]] = {}
        self.programs = None
        if not self.waits:
            self.stopped = torch.zeros((), device=fabric.device)
            optimizer.optimizer.found_inf = self.stopped
            self.programs = backend.adam(model.parameters())

    def __call__(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """Train on these images, augmented by the chance in offsets; steps are numbered from 1."""
        if not self.waits:
            self.remember(indices, offsets, number)
        try:
            try:
                return self.compute(indices, offsets, number)
            except RuntimeError as error:
                if not cannot_compile(error):
                    raise
                self.uncompile(error)
                return self.compute(indices, offsets, number)
        except NotFinite:
            # What a GPU answers late belongs to an earlier step.
            if not self.waits:
                self.check()
            raise

    def uncompile(self, error: RuntimeError) -> None:
        """Go on as written where torch.compile fails, which it does before any update, and say why."""
        print(f"not compiled: {str(error).strip().splitlines()[0]}")
        for module in self.model.modules():
            module._compiled_call_impl = None
        vars(self).pop("batch", None)
        self.loss, self.correct = self.objective, correct
        self.compiled = False

    def remember(self, indices: Tensor, offsets: Tensor, number: int) -> None:
        """Tell the device which step this is, and keep what check() may have to compute again."""
        self.number.fill_(number)
        self.unchecked[number] = indices, offsets

    def compute(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """The step itself."""
        images, pixels, labels, share = self.batch(indices, offsets)
        with range_checked(self.model, number, images, labels):
            output = self.network(images, self.objective.shown(labels))
        loss = self.loss(output, labels, pixels, share)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if self.waits:
            check_finite(loss, self.model, number, images, labels)
        else:
            self.note(loss)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        loss = self.objective.per_image(loss.detach(), len(labels))
        return Outcome(loss, self.correct(output.lengths.detach(), labels))

    def batch(self, indices: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Normalised images, what the decoder should make of them, labels, and what was mixed."""
        pixels, seen = self.augmentation.pixels(self.data.images[indices], offsets)
        images = self.normalise(seen)
        target = images if self.objective.target == "image" else pixels
        share = self.augmentation.share(offsets)
        images = mixed(self.augmentation.holes(images, offsets), share)
        return images, target, self.data.labels[indices], share

    def note(self, loss: Tensor) -> None:
        """Remember the first step that is not finite, and stop all updates from it on; nobody waits."""
        if self.programs:
            weights = self.model.parameters()
            self.programs.note(weights, loss, self.number, self.first_bad, self.stopped)
            return
        finite = is_finite(loss, self.model)
        self.first_bad.copy_(torch.where(finite | (self.first_bad > 0), self.first_bad, self.number))
        self.stopped.copy_(self.first_bad > 0)

    def check(self) -> None:
        """Refuse to go on after a step that was not finite, and name the culprit; this waits."""
        if number := int(self.first_bad):
            images, pixels, labels, share = self.batch(*self.unchecked[number])
            with range_checked(self.model, number, images, labels):
                output = self.network(images, self.objective.shown(labels))
                loss = self.loss(output, labels, pixels, share)
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            named = culprit(loss, self.model, images, labels)
            raise NotFinite(f"step {number}: {named}; the update was not made")
        self.unchecked.clear()


def correct(lengths: Tensor, labels: Tensor) -> Tensor:
    """How many images have the longest capsule of their class."""
    return (lengths.argmax(1) == labels).sum()
