"""Where the fused programs run, and why not where they do not."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from mocapsnet.errors import CannotRun
from mocapsnet.ops.arguments import one_of
from mocapsnet.ops.interpreter import prepare
from mocapsnet.ops.order import INTERPRETED, one_image, power, rounds

if INTERPRETED:
    prepare()

FUSED = ("rba", "leaky-rba", "sda", "em")
# Columns (j,e) of a tile of votes that the registers of a program hold, where it takes all j at once; and
# so many that "auto" takes, because more were not timed yet.
TILE_COLUMNS, TIMED = {"rba": 2048, "sda": 2048}, {"rba": 1024}
# Elements of a matrix W_ij for which a program that is written out for each still compiles in minutes.
MATRIX = {"sda": 256}
# Components of a vote that one thread holds.
LONGEST = {"em": 256}


class Chip(NamedTuple):
    """A GPU's generation, the first number of its compute capability, and bytes on chip for a program."""

    major: int
    memory: int

    @property
    def unread(self) -> int:
        """Turns of a loop on their way that need no room: products of Hopper and B200 read theirs there."""
        return 0 if self.major in (9, 10) else 1


# The GPU that the programs were made on; whoever only interprets them passes for one.
H200 = Chip(9, 232448)
# The first generation that Triton supports and that multiplies bfloat16.
FIRST = 8


def chip(device: torch.device) -> Chip:
    """What programs find on a device."""
    if device.type != "cuda":
        return H200
    if torch.version.hip:
        return Chip(0, 0)
    found: Any = torch.cuda.get_device_properties(device)
    return Chip(found.major, found.shared_memory_per_block_optin)


# What torch.compiler.assume_constant_result does, which takes seconds to import the compiler first.
chip._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def sources() -> str:
    """A digest of all that is written here: torch.compile knows ops on disk by their names alone."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def runnable(backend: str, op: str) -> None:
    """Refuse a backend that is unknown or cannot run here at all."""
    one_of("backend", backend, ("auto", "reference", "fused"))
    if backend != "fused":
        return
    if op not in FUSED:
        refuse(f"this version has no fused kernel for {op}")
    if not (torch.cuda.is_available() or INTERPRETED):
        refuse("it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment")
    if isinstance(found := programs(op.removeprefix("leaky-")), str):
        refuse(found)


def refuse(why: str) -> None:
    """Say why a fused program cannot run, and the way out."""
    raise CannotRun(f"backend='fused' cannot run: {why}; use backend='auto' or 'reference'")


def on_its_gpu(op: Callable[..., Any]) -> Callable[..., Any]:
    """What launches programs, on the GPU that holds what it is given: Triton takes the current one."""

    @wraps(op)
    def wrapped(*given: Any, **named: Any) -> Any:
        device = next(x.device for x in (*given, *named.values()) if isinstance(x, Tensor))
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return op(*given, **named)

    return wrapped


def once(what: str = "routing", instead: str = "use backend='reference'") -> Callable[..., None]:
    """What refuses a gradient of a fused op's gradients, which torch would refuse in its own words."""

    def refused(*_: Any) -> None:
        raise CannotRun(f"the gradients of a fused {what} have no gradients; {instead}")

    return refused


class Once(torch.autograd.Function):
    """Gradients as they are, which have none."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand them on."""
        return gradients

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> None:
        """Refuse."""
        once()()


def differentiable_once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward pass of a fused routing whose gradients are refused one of their own, in words."""

    @wraps(backward)
    def wrapped(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        if any(g is not None and torch._C._functorch.is_legacy_batchedtensor(g) for g in gradients):
            raise CannotRun("a fused sequence takes one gradient at a time; use backend='reference'")
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        leaves = (g if g is None else g.detach().requires_grad_() for g in found)
        given: tuple[Any, ...] = Once.apply(*leaves)  # type: ignore[no-untyped-call]
        return given

    return wrapped


def programs(op: str) -> ModuleType | str:
    """The module of a fused op, or why there is none."""
    try:
        from mocapsnet.ops.em import fused as em
        from mocapsnet.ops.rba import fused as rba
        from mocapsnet.ops.sda import fused as sda
    except ImportError:
        return "Triton cannot be imported"
    return {"rba": rba, "sda": sda, "em": em}[op]


def transformed() -> bool:
    """Whether forward mode or a transform of torch.func must see every operation."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def stem(images: Tensor, w: Tensor, dtype: torch.dtype) -> ModuleType | None:
    """The programs of a stem that computes in a dtype on CUDA, where they take it."""
    try:
        from mocapsnet.ops.stem import fused
    except ImportError:
        return None
    return fused if suitable(images) and fused.suits(images, w, dtype) else None


def suitable(x: Tensor) -> bool:
    """Whether programs can run where x is, in bfloat16 too, and nothing must see each of their operations."""
    return chip(x.device).major >= FIRST and not transformed() and not (x.is_cuda and INTERPRETED)


def convolution(x: Tensor, channels: int) -> ModuleType | None:
    """The programs of a convolution of x to so many channels on CUDA, where they are faster than cuDNN."""
    try:
        from mocapsnet.ops.conv import fused
    except ImportError:
        return None
    return fused if suitable(x) and fused.suits(x, channels) else None


def adam(weights: Iterable[Tensor]) -> ModuleType | None:
    """The programs of Adam and of the check of gradients on CUDA, where they take these weights."""
    try:
        from mocapsnet.ops.adam import fused
    except ImportError:
        return None
    weights = list(weights)
    old = any(chip(weight.device).major < FIRST for weight in weights)
    return fused if fused.suits(weights) and not old else None


def fused_op(op: str, u: Tensor, W: Tensor, backend: str, **options: tuple[str, str]) -> ModuleType | None:
    """The module of a fused op, where it is wanted and can run; an error where it is asked for and cannot.

    Of each option, the value and the only one that the op can do.
    """
    if backend == "reference" or (backend == "auto" and not u.is_cuda):
        return None
    why, wrong = None, [name for name, (value, able) in options.items() if value != able]
    if not (u.is_cuda or (u.device.type == "cpu" and INTERPRETED)):
        why = f"u is on {u.device.type}, and it needs a CUDA GPU, or TRITON_INTERPRET=1 in the environment"
    elif chip(u.device).major < FIRST:
        why = f"it needs an NVIDIA GPU of compute capability {FIRST}.0 or newer"
    elif wrong:
        value, able = options[wrong[0]]
        why = f"{wrong[0]} must be {able!r}, got {value!r}"
    elif torch.promote_types(u.dtype, W.dtype) not in (torch.float32, torch.bfloat16, torch.float16):
        why = f"it computes in float32, and u and W are {u.dtype} and {W.dtype}"
    elif u.is_cuda and (large := too_large(op, u, W, backend)):
        why = large
    elif transformed():
        why = "forward mode and torch.func's transforms cannot look into it"
    elif isinstance(found := programs(op), ModuleType):
        return found
    else:
        why = found
    if backend == "fused":
        refuse(why)
    return None


def too_large(op: str, u: Tensor, W: Tensor, backend: str) -> str | None:
    """What of a size a GPU's program cannot hold; an interpreter's holds anything."""
    (_, I, D), (J, _, E, _) = u.shape, W.shape  # noqa: E741
    if (most := MATRIX.get(op, D * E)) < D * E:
        return f"D times E must be at most {most}, got {D} and {E}"
    if (most := LONGEST.get(op, E)) < E:
        return f"E must be at most {most}, got {E}"
    if one_image(I, J, E) or op not in TILE_COLUMNS:
        return None
    columns = max(16, power(J)) * power(E)
    if (most := TIMED[op] if backend == "auto" and op in TIMED else TILE_COLUMNS[op]) < columns:
        return f"J, at least 16, times E, as powers of two, must make at most {most}, got {J} and {E}"
    # All W_ij of one i, and some sums.
    matrices = max(16, power(D)) * columns * (2 if rounds(u) else 4) + 1024
    if (memory := chip(u.device).memory) < matrices:
        return f"W of one i takes {matrices:,} bytes on chip, of {memory:,}; lower J, E or D"
    return None
