"""The device and precision of a network, the order of its weights in memory, and whether it is compiled."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mocapsnet.errors import CannotRun
from mocapsnet.nn.released import ReleasedLayer
from mocapsnet.nn.routing import CapsLayer
from mocapsnet.ops import backend
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.order import laid_out

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AVAILABLE: dict[str, Callable[[], bool]] = {
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
    "cpu": lambda: True,
}
# As Fabric calls them.
PRECISIONS: dict[str, Any] = {"bf16-mixed": "bf16-mixed", "tf32": "32-true", "fp32": "32-true"}


class How(NamedTuple):
    """The precision a device computes in, whether in graphs ("auto") or not ("off"), and compiled or not."""

    precision: str
    graph: str
    compile: bool


def pick_device(name: str) -> torch.device:
    """The device of that name, the best there is for auto; one that is not here is refused."""
    one_of("device", name, ("auto", *AVAILABLE))
    if name == "auto":
        name = next(name for name, available in AVAILABLE.items() if available())
    elif not AVAILABLE[name]():
        raise CannotRun(f"device={name!r} cannot be used: torch finds none here; use 'auto' or 'cpu'")
    return torch.device(name)


def choose(precision: str, graph: str, compile: bool | None, device: torch.device) -> How:
    """How a device computes: as was asked, and where that is left open, as suits it."""
    one_of("precision", precision, ("auto", *PRECISIONS))
    one_of("graph", graph, ("auto", "off"))
    cuda = device.type == "cuda"
    if precision == "auto":
        # A GPU older than compute capability 8.0 would only emulate bfloat16, slowly.
        has_bf16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if has_bf16 else "fp32"
    return How(precision, graph if cuda else "off", cuda if compile is None else compile)


def make_fabric(device: torch.device, precision: str) -> "Fabric":
    """Lightning's engine on one device, without what it says of itself."""
    # It takes seconds to import: those who only look at a network do not wait for it.
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    return Fabric(accelerator=device.type, devices=1, precision=PRECISIONS[precision])


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


def cannot_compile(error: RuntimeError) -> bool:
    """Whether torch.compile failed at something."""
    # It takes seconds to import: only what fails waits for it.
    from torch._dynamo.exc import BackendCompilerFailed

    return isinstance(error, BackendCompilerFailed)
