"""One training step on the device that holds the data, eager or replayed as one CUDA graph."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import Augmentation, Normalisation, mixed
from mocapsnet.errors import NotFinite
from mocapsnet.nn.base import Network
from mocapsnet.nn.released import ReleasedLayer
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import backend
from mocapsnet.ops.order import laid_out
from mocapsnet.train.average import Average
from mocapsnet.train.culprit import check_finite, culprit, is_finite, range_checked
from mocapsnet.train.objective import Objective

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# As Fabric calls them.
PRECISIONS: dict[str, Any] = {"bf16-mixed": "bf16-mixed", "tf32": "32-true", "fp32": "32-true"}
# Kernels are compiled before a graph holds them.
WARM_UP = 3


def make_fabric(device: torch.device, precision: str) -> "Fabric":
    """Lightning's engine on one device, without what it says of itself."""
    # It takes seconds to import: those who only look at a network do not wait for it.
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    return Fabric(accelerator=device.type, devices=1, precision=PRECISIONS[precision])


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


class Captured(NamedTuple):
    """A step as a CUDA graph, with what it reads and what it leaves."""

    graph: torch.cuda.CUDAGraph
    indices: Tensor
    offsets: Tensor
    outcome: Outcome


class GraphedStep(Step):
    """The same step, captured for each size of batch after a few eager ones, and then replayed.

    Where that fails, the reason is printed and all steps stay eager.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.eager: dict[int, int] = {}
        self.captured: dict[int, Captured] = {}
        self.capturable = True
        self.why: Exception | None = None

    def __call__(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """Train on these images, augmented by the chance in offsets; steps are numbered from 1."""
        size = len(indices)
        done = self.eager.setdefault(size, 0)
        if done >= WARM_UP and self.capturable and size not in self.captured:
            stream = torch.cuda.current_stream()
            try:
                self.captured[size] = self.capture(indices, offsets)
            except RuntimeError as error:
                # That a capture ended is raised after what ended it, and leaves its stream behind.
                torch.cuda.set_stream(stream)
                first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
                self.capturable, self.why = False, first
                # A graph needs memory of its own, which eager steps can do without.
                torch.cuda.empty_cache()
                print(f"no CUDA graph: {str(first).strip().splitlines()[0]}")
        if size not in self.captured:
            self.eager[size] += 1
            with another_stream():
                return super().__call__(indices, offsets, number)
        step = self.captured[size]
        step.indices.copy_(indices)
        step.offsets.copy_(offsets)
        self.remember(indices, offsets, number)
        step.graph.replay()
        return step.outcome

    def capture(self, indices: Tensor, offsets: Tensor) -> Captured:
        """The graph of a step on as many images."""
        graph, indices, offsets = torch.cuda.CUDAGraph(), indices.clone(), offsets.clone()
        self.optimizer.zero_grad()
        with torch.cuda.graph(graph, stream=side_stream()):
            outcome = self.compute(indices, offsets, number=0)
        return Captured(graph, indices, offsets, outcome)


@cache
def side_stream() -> torch.cuda.Stream:
    """One for all captures and what comes before them: cuBLAS keeps room of its own for every stream."""
    return torch.cuda.Stream()


@contextmanager
def another_stream() -> Iterator[None]:
    """Beside the default stream, as CUDA asks of what comes before a capture."""
    stream = side_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


def make_step(
    fabric: "Fabric",
    network: nn.Module,
    model: Network,
    optimizer: Any,
    data: Split,
    graphed: bool,
    augmentation: Augmentation | None = None,
    objective: Objective | None = None,
    average: Average | None = None,
    compile: bool = False,
) -> Step:
    """A step, as a graph where that was asked for and can be.

    compile is for what lies around the network, which compiled() is for.
    """
    in_fast_order(model, fabric.device)
    kind = GraphedStep if graphed and optimizer.defaults.get("capturable") else Step
    step = kind(fabric, network, model, optimizer, data, augmentation, objective, average)
    if compile:
        # A size of batch is compiled for itself: a graph holds nothing else.
        step.batch = torch.compile(step.batch, dynamic=False)  # type: ignore[method-assign]
        step.loss = torch.compile(step.objective.__call__, dynamic=False)
        step.correct = torch.compile(correct, dynamic=False)
        step.compiled = True
    return step


@torch.no_grad()
def in_fast_order(model: nn.Module, device: torch.device) -> None:
    """Lay weights out as a device reads them fastest: W as I D E J, and convolutions on CUDA."""
    cuda = device.type == "cuda"
    for module in model.modules():
        if isinstance(module, nn.Conv2d) and cuda:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # On a CPU, only RBA's batched order reads W so.
        batched = (
            isinstance(module, CapsLayer) and module.routing.endswith("rba") and module.backend == "auto"
        )
        if isinstance(module, CapsLayer | ReleasedLayer) and (cuda or batched):
            module.W.data = laid_out(module.W.data)


def cannot_compile(error: RuntimeError) -> bool:
    """Whether torch.compile failed at something."""
    # It takes seconds to import: only what fails waits for it.
    from torch._dynamo.exc import BackendCompilerFailed

    return isinstance(error, BackendCompilerFailed)


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
    with (
        torch._dynamo.config.patch(recompile_limit=64),
        torch.compiler.config.patch(  # type: ignore[attr-defined]
            cache_key_tag=torch.compiler.config.cache_key_tag + backend.sources()
        ),
    ):
        for module in modules:
            module.compile(dynamic=False)
        try:
            yield
        finally:
            for module in modules:
                module._compiled_call_impl = None


@contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Whether matrix products and convolutions of float32 may round their inputs to tf32."""
    cudnn, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        with cudnn.flags(cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=tf32):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
