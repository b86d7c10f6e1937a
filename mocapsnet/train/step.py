"""One training step on the device that holds the data, eager or replayed as one CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import crop, standardise, to_pixels
from mocapsnet.errors import NotFinite
from mocapsnet.losses import capsule_loss
from mocapsnet.nn.network import CapsuleNetwork
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.train.culprit import check_finite, culprit, is_finite, range_checked

# As Fabric calls them.
PRECISIONS: dict[str, Any] = {"bf16-mixed": "bf16-mixed", "tf32": "32-true", "fp32": "32-true"}
# Kernels are tuned and compiled before a graph holds them.
WARM_UP = 3


class Outcome(NamedTuple):
    """What a step leaves to be counted, on the device."""

    loss: Tensor
    correct: Tensor


class Step:
    """gather → crop → standardise → forward → backward → update, for the images of given indices.

    A step whose loss or gradient is not finite makes no update. A CPU says so at once. A GPU is not waited
    for: it makes no update from then on, and check() tells.
    """

    def __init__(
        self,
        fabric: Fabric,
        network: nn.Module,
        model: CapsuleNetwork,
        optimizer: Any,
        data: Split,
        reconstruction_weight: float,
    ) -> None:
        self.reconstruction_weight = reconstruction_weight
        self.fabric = fabric
        self.network = network
        self.model = model
        self.optimizer = optimizer
        self.data = data
        # Only a fused optimizer takes it from the device that nothing is to be updated.
        self.waits = not optimizer.defaults.get("fused")
        self.number = torch.zeros((), dtype=torch.int64, device=fabric.device)
        self.first_bad = torch.zeros_like(self.number)
        self.unchecked: dict[int, tuple[Tensor, Tensor]] = {}
        if not self.waits:
            self.stopped = torch.zeros((), device=fabric.device)
            optimizer.optimizer.found_inf = self.stopped

    def __call__(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """Train on these images, cropped at these offsets; steps are numbered from 1."""
        if not self.waits:
            self.number.fill_(number)
            self.unchecked[number] = indices, offsets
        return self.compute(indices, offsets, number)

    def compute(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """The step itself."""
        images, pixels, labels = self.batch(indices, offsets)
        with range_checked(self.model, number, images, labels):
            output = self.network(images, labels)
        loss = capsule_loss(output, labels, pixels, self.reconstruction_weight)
        self.optimizer.zero_grad()
        self.fabric.backward(loss)
        if self.waits:
            check_finite(loss, self.model, number, images, labels)
        else:
            self.note(loss)
        self.optimizer.step()
        return Outcome(loss.detach(), (output.lengths.argmax(1) == labels).sum())

    def batch(self, indices: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Standardised images, their pixels and labels."""
        pixels = to_pixels(crop(self.data.images[indices], offsets))
        return standardise(pixels), pixels, self.data.labels[indices]

    def note(self, loss: Tensor) -> None:
        """Remember the first step that is not finite, and stop all updates from it on; nobody waits."""
        finite = is_finite(loss, self.model)
        self.first_bad.copy_(torch.where(finite | (self.first_bad > 0), self.first_bad, self.number))
        self.stopped.copy_(self.first_bad > 0)

    def check(self) -> None:
        """Refuse to go on after a step that was not finite, and name the culprit; this waits."""
        if number := int(self.first_bad):
            images, pixels, labels = self.batch(*self.unchecked[number])
            with range_checked(self.model, number, images, labels):
                output = self.network(images, labels)
            loss = capsule_loss(output, labels, pixels, self.reconstruction_weight)
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            named = culprit(loss, self.model, images, labels)
            raise NotFinite(f"step {number}: {named}; the update was not made")
        self.unchecked.clear()


class Captured(NamedTuple):
    """A step as a CUDA graph, with what it reads and what it leaves."""

    graph: torch.cuda.CUDAGraph
    indices: Tensor
    offsets: Tensor
    outcome: Outcome


class GraphedStep(Step):
    """The same step, captured for each size of batch after a few eager ones, and then replayed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.eager: dict[int, int] = {}
        self.captured: dict[int, Captured] = {}

    def __call__(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """Train on these images, cropped at these offsets; steps are numbered from 1."""
        size = len(indices)
        done = self.eager.setdefault(size, 0)
        if done < WARM_UP:
            self.eager[size] += 1
            with another_stream():
                return super().__call__(indices, offsets, number)
        if size not in self.captured:
            self.captured[size] = self.capture(indices, offsets)
        step = self.captured[size]
        step.indices.copy_(indices)
        step.offsets.copy_(offsets)
        self.number.fill_(number)
        self.unchecked[number] = indices, offsets
        step.graph.replay()
        return step.outcome

    def capture(self, indices: Tensor, offsets: Tensor) -> Captured:
        """The graph of a step on as many images."""
        graph, indices, offsets = torch.cuda.CUDAGraph(), indices.clone(), offsets.clone()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph):
            outcome = self.compute(indices, offsets, number=0)
        return Captured(graph, indices, offsets, outcome)


@contextmanager
def another_stream() -> Iterator[None]:
    """Beside the default stream, as CUDA asks of what comes before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def make_step(
    fabric: Fabric,
    network: nn.Module,
    model: CapsuleNetwork,
    optimizer: Any,
    data: Split,
    reconstruction_weight: float,
    graphed: bool,
) -> Step:
    """A step, as a graph where that was asked for and can be; on a GPU a reason why not is printed."""
    if fabric.device.type == "cuda":
        for convolution in (model.stem, model.primary):
            convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if graphed and optimizer.defaults.get("capturable"):
        return GraphedStep(fabric, network, model, optimizer, data, reconstruction_weight)
    if graphed and fabric.device.type == "cuda":
        print(f"no CUDA graph: {type(optimizer.optimizer).__name__} cannot be captured")
    return Step(fabric, network, model, optimizer, data, reconstruction_weight)


@contextmanager
def compiled(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Compile a network in place for as long as it trains: each routed layer alone, and all around them.

    A trunk that is reversed calls its layers a second time, which must be the same compiled code.
    """
    if not wanted:
        yield
        return
    modules = [*(module for module in model.modules() if isinstance(module, CapsLayer)), model]
    # Every layer of another size is another version of one function.
    with torch._dynamo.config.patch(recompile_limit=64):
        for module in modules:
            module.compile()
        try:
            yield
        finally:
            for module in modules:
                module._compiled_call_impl = None


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Whether matrix products and convolutions of float32 may round their inputs to tf32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]
