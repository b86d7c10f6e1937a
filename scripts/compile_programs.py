"""Compile what the ops launch for GPUs that are not there, and tell what each program asks of them.

    python scripts/compile_programs.py '[80,89,90]' --sizes all --output programs.csv

The ops run as they are, on tensors in main memory whose numbers nobody computes: Triton compiles every launch
for a compute capability, and the launch itself does nothing.
"""

import csv
import io
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

# Triton reads it once, and an interpreter compiles nothing.
os.environ.pop("TRITON_INTERPRET", None)

import torch
import triton
from jsonargparse import auto_cli
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

import mocapsnet as mc
from mocapsnet import writing
from mocapsnet.errors import CannotRun
from mocapsnet.measure.report import aligned
from mocapsnet.nn.routing import ROUTINGS, CapsLayer
from mocapsnet.ops import backend, order
from mocapsnet.ops.adam import fused as adam
from mocapsnet.ops.conv import fused as conv
from mocapsnet.ops.stem import fused as stem
from mocapsnet.train.device import in_fast_order

# Bytes on chip that one program may have, by compute capability, as NVIDIA's programming guide has them.
ON_CHIP = {75: 65536, 80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
BATCH = 128


class Program(NamedTuple):
    """A compiled program: registers and bytes of stack of a thread, and shared memory in bytes."""

    capability: int
    precision: str
    what: str
    program: str
    warps: int
    registers: int
    stack: int
    shared: int
    limit: int


class Compiler(DriverBase):
    """A driver of Triton's that has no GPU: it keeps what is compiled and launches nothing."""

    def __init__(self, capability: int) -> None:
        self.capability, self.chip = capability, backend.Chip(capability // 10, ON_CHIP[capability])
        self.utils = self
        self.found: list[tuple[str, int, int, int, int]] = []

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def get_current_device(self) -> int:
        # Triton keeps what it compiled by this number.
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        # What is too large is told here, not refused.
        return {"max_shared_mem": 2**31}

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        self.warps = metadata.num_warps
        return lambda *_, **__: None

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            told = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True).stdout
        registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", told).groups())
        self.found.append((name, self.warps, registers, stack, shared))
        return 1, 1, registers, stack, 1024


def rounds(u: torch.Tensor) -> bool:
    return order.autocasting("cpu")


@contextmanager
def compiling(capability: int) -> Iterator[Compiler]:
    """Nothing is computed in here; every program that is launched is compiled."""
    compiler = Compiler(capability)
    driver.set_active(compiler)
    with (
        # Tensors in main memory pass for a GPU's.
        mock.patch.object(backend, "INTERPRETED", True),
        mock.patch.object(backend, "H200", compiler.chip),
        mock.patch.object(adam, "INTERPRETED", True),
        mock.patch.object(order, "rounds", rounds),
        mock.patch.object(backend, "rounds", rounds),
        mock.patch.object(mc.MomentumSequence, "watch_range"),
    ):
        yield compiler


def primary() -> None:
    """The two convolutions, which are made for bfloat16 alone."""
    images, w, bias = torch.empty(BATCH, 3, 32, 32), torch.empty(256, 3, 9, 9), torch.empty(256)
    if stem.suits(images, w, torch.bfloat16):
        features = stem.stem(images, w.requires_grad_(), bias.requires_grad_(), torch.bfloat16)
    else:
        features = torch.empty(BATCH, 256, 24, 24, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.empty(256, 256, 9, 9, requires_grad=True)
    conv.conv(features, weight, bias, 2).sum().backward()


def layer(routing: str, I: int, D: int, J: int, E: int) -> Callable[[], None]:  # noqa: E741
    """A capsule layer, forth and back."""

    def run() -> None:
        u, routed = (
            torch.empty(BATCH, I, D, requires_grad=True),
            CapsLayer(I, D, J, E, routing, backend="fused"),
        )
        if large := backend.too_large(routing.removeprefix("leaky-"), u, routed.W, "fused"):
            raise CannotRun(large)
        in_fast_order(routed, torch.device("cuda"))
        routed(u).sum().backward()

    return run


def trunk() -> None:
    """Sixteen layers with momentum, forth and back."""
    layers = [CapsLayer(32, 8, 32, 8, backend="fused") for _ in range(16)]
    sequence = mc.MomentumSequence(layers)
    in_fast_order(sequence, torch.device("cuda"))
    sequence(torch.zeros(BATCH, 32, 8, requires_grad=True)).sum().backward()


def update() -> None:
    """The check of gradients and Adam's update."""
    weights = [torch.zeros(n, requires_grad=True) for n in (4, 1000, 100_000)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    number = torch.zeros((), dtype=torch.int64)
    adam.note(weights, torch.zeros(()), number, number.clone(), torch.zeros(()))
    adam.Adam(weights).step()


# The layers of the networks on CIFAR-10's images, I D -> J E.
USUAL = {"CapsLayer 1": (2048, 8, 32, 8), "a layer": (32, 8, 32, 8), "ten classes": (32, 8, 10, 16)}
MORE = {
    "a hundred classes": (32, 8, 100, 16),
    "64 capsules": (2048, 8, 64, 8),
    "a layer of 64": (64, 8, 64, 8),
    "64 capsules of 16": (2048, 8, 64, 16),
    "a layer of 16": (32, 16, 32, 16),
    "a layer of 64 of 16": (64, 16, 64, 16),
    "capsules of 32": (256, 32, 32, 32),
    "thousand classes": (32, 8, 1000, 16),
    "odd sizes": (100, 7, 13, 11),
    "one dimension": (1152, 1, 10, 1),
    "Sabour's": (9216, 8, 10, 16),
}


def programs(capability: int, sizes: dict[str, tuple[int, ...]]) -> Iterator[Program]:
    """All programs of a training step, by what launches them."""
    parts: dict[str, Callable[[], None]] = {"stem and primary": primary, "trunk": trunk, "Adam": update}
    parts |= {f"{routing}, {name}": layer(routing, *s) for routing in ROUTINGS for name, s in sizes.items()}
    for precision in ("bf16", "float32"):
        for what, run in parts.items():
            if precision == "float32" and run in (primary, update):
                continue
            with (
                compiling(capability) as compiler,
                torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"),
            ):
                try:
                    run()
                except CannotRun as error:
                    print(f"{capability}  {precision}  {what}: {error}")
            yield from (
                Program(capability, precision, what, *row, compiler.chip.memory) for row in compiler.found
            )


def main(capabilities: list[int], sizes: Literal["usual", "all"] = "usual", output: str = "") -> None:
    rows = [row for c in capabilities for row in programs(c, USUAL | (MORE if sizes == "all" else {}))]
    print(aligned([Program._fields, *(tuple(map(str, row)) for row in rows)], words=4))
    if output:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow([*Program._fields, "triton", "torch"])
        writer.writerows((*row, triton.__version__, torch.__version__.split("+")[0]) for row in rows)
        writing.write(Path(output), text.getvalue().encode())


if __name__ == "__main__":
    auto_cli(main)
