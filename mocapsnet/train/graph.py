"""A training step as one CUDA graph, where that was asked for and can be."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from mocapsnet.data import Split
from mocapsnet.data.augment import Augmentation
from mocapsnet.nn.base import Network
from mocapsnet.train.average import Average
from mocapsnet.train.device import in_fast_order
from mocapsnet.train.objective import Objective
from mocapsnet.train.step import Outcome, Step, correct

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Kernels are compiled before a graph holds them.
WARM_UP = 3


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
        self.failed: Exception | None = None
        """Why no graph could be captured, once that was tried in vain."""

    def __call__(self, indices: Tensor, offsets: Tensor, number: int) -> Outcome:
        """Train on these images, augmented by the chance in offsets; steps are numbered from 1."""
        size = len(indices)
        done = self.eager.setdefault(size, 0)
        if done >= WARM_UP and self.failed is None and size not in self.captured:
            stream = torch.cuda.current_stream()
            try:
                self.captured[size] = self.capture(indices, offsets)
            except RuntimeError as error:
                # That a capture ended is raised after what ended it, and leaves its stream behind.
                torch.cuda.set_stream(stream)
                first = error.__context__ if isinstance(error.__context__, RuntimeError) else error
                self.failed = first
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
