"""How long something takes: device events or the processor's clock, medians, things timed in turn."""

import gc
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from tqdm import tqdm

from mocapsnet.errors import Irreproducible, WrongArgument
from mocapsnet.train.graph import WARM_UP, another_stream, side_stream

# What is short, such as a GPU's step, is timed as it runs in training: many in a row, without waiting.
SHORT, IN_A_ROW = 0.02, 10
T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


class Times(NamedTuple):
    """The median and the 20th and 80th percentile, in seconds."""

    seconds: float
    p20: float
    p80: float


def seconds_of(function: Callable[[], T], device: torch.device, times: int = 1) -> tuple[float, T]:
    """Seconds of one call out of so many in a row, and what the last one gave."""
    synchronize = torch.get_device_module(device).synchronize
    synchronize()
    start, end = (
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        if device.type == "cuda"
        else (None, None)
    )
    begun = time.perf_counter()
    if start:
        start.record()
    for _ in range(times):
        given = function()
    if end:
        end.record()
    synchronize()
    seconds = start.elapsed_time(end) / 1000 if start and end else time.perf_counter() - begun
    return seconds / times, given


def times_of(seconds: list[float]) -> Times:
    """The median and percentiles of many measurements."""
    p20, median, p80 = np.percentile(seconds, (20, 50, 80)).tolist()
    return Times(median, p20, p80)


def cells(times: Times | None) -> tuple[float | None, float | None, float | None]:
    """Times as a row holds them, where there are some."""
    return times or (None, None, None)


def in_turn(
    functions: Mapping[Name, Callable[[], Any]],
    device: torch.device,
    repeats: int,
    advance: Callable[[], object],
    seen: Callable[[Name, Any], object] = lambda *_: None,
) -> dict[Name, Times]:
    """Time warm functions in turn, so that a busy machine slows all alike; seen is told what each gave."""
    found: dict[Name, list[float]] = {name: [] for name in functions}
    times = {name: in_a_row(function, device) for name, function in functions.items()}
    for _ in range(repeats):
        for name, function in functions.items():
            seconds, given = seconds_of(function, device, times[name])
            found[name].append(seconds)
            seen(name, given)
            advance()
    return {name: times_of(seconds) for name, seconds in found.items()}


def in_a_row(function: Callable[[], Any], device: torch.device) -> int:
    """How many calls of a warm function make a measurement."""
    return IN_A_ROW if device.type == "cuda" and seconds_of(function, device)[0] < SHORT else 1


def replayed(graph: torch.cuda.CUDAGraph, given: T, function: Callable[[], T]) -> T:
    """What a function gave, computed anew; whoever holds this holds the function, and all that it reads."""
    graph.replay()
    return given


def warm(function: Callable[[], T], device: torch.device, graphed: bool) -> Callable[[], T]:
    """The function after a few calls, compiled if it is to be; as a CUDA graph where that is wanted."""
    if not graphed:
        for _ in range(WARM_UP - 1):
            function()
        return function
    with another_stream():
        for _ in range(WARM_UP):
            function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side_stream()):
        given = function()
    return partial(replayed, graph, given, function)


class Peak:
    """Bytes allocated on a GPU beyond those at the start; None elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = 0
        if device.type == "cuda":
            # What is freed only later would count as if it were not there.
            gc.collect()
            self.before = torch.cuda.memory_allocated(device)

    def of(self, function: Callable[[], object]) -> int | None:
        """The most that is allocated while a function runs."""
        if self.device.type != "cuda":
            function()
            return None
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        function()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - self.before


def attempt(function: Callable[[], T]) -> T | None:
    """What a function gives; None where memory does not suffice for it."""
    try:
        return function()
    except (torch.OutOfMemoryError, MemoryError):
        pass
    except RuntimeError as error:
        # A CPU's allocator has no error of its own.
        if "alloc_cpu" not in str(error):
            raise
    gc.collect()
    torch.cuda.empty_cache()
    return None


@contextmanager
def sized(what: str) -> Iterator[None]:
    """Turn torch's failure to make something so large into a WrongArgument."""
    try:
        yield
    except WrongArgument:
        raise
    except (RuntimeError, TypeError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WrongArgument(f"torch cannot make {what}, lower the sizes: {reason}") from error


def agree(what: str, error: float, allowed: float) -> float:
    """The error, if it is no larger than allowed; nothing is timed that is not right."""
    if not error <= allowed:
        raise Irreproducible(f"{what} before anything is timed: {error:.2g} is more than {allowed:.1g}")
    return error


def progress(total: int) -> Any:
    """A bar on a terminal."""
    return tqdm(
        total=total,
        bar_format="{desc} |{bar}| {remaining} left",
        dynamic_ncols=True,
        leave=False,
        disable=not sys.stderr.isatty(),
    )
