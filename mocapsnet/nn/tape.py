"""The backward pass of a sequence: each layer is computed again, from an input kept or reconstructed."""

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from mocapsnet.errors import Irreproducible, WrongArgument
from mocapsnet.nn.circumstances import Circumstances, checksums, generators, modes, set_generators, sharded
from mocapsnet.ops.momentum import Arithmetic, State


class Tape:
    """One forward's way back.

    Each layer runs in a non-reentrant checkpoint, which calls it once more when its gradient is due, from the
    last layer to the first. With memory="checkpoint" its input was kept. With "reverse" it is reconstructed
    from the state after it; f, which is then at hand, takes the velocity one layer back.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        arithmetic: Arithmetic,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        reverse: bool,
        check: bool = False,
    ) -> None:
        self.layers = layers
        self.arithmetic = arithmetic
        self.args = args
        self.kwargs = kwargs
        self.reverse = reverse
        self.check = check
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        self.arguments = [(tensor, tensor._version) for tensor in given if not tensor.is_inference()]
        self.circumstances: list[Circumstances] = []
        # What the state gives up on its way, by layer; once the forward is over, End keeps it.
        self.spilled: dict[int, Tensor] = {}
        self.spilling: tuple[int, ...] = ()
        # Where the walk back stands: the state before layer `position`, while there is one.
        self.position = 0
        self.kept: Sequence[Tensor] = ()
        # The first layer that has a gradient: the walk ends before it.
        self.lowest = len(layers)
        self.end: Callable[[], Sequence[Tensor]] = tuple

    def call(self, n: int, state: State) -> Tensor:
        """Layer n of the state's x, to be computed again when its gradient is due."""
        held = [state.x]
        if self.reverse:
            self.spilled |= self.arithmetic.spilled(n, state)

        def run(x: Tensor) -> Tensor:
            if n == len(self.circumstances):
                f = self.first(n, held[0])
                held.clear()
                return f
            # A layer that differentiates itself is computed again while it still runs.
            if held:
                return self.again(n, held[0])
            return self.back(n) if self.reverse else self.again(n, x)

        result: Tensor = checkpoint(
            run,
            state.x.new_empty(0) if self.reverse else state.x,
            use_reentrant=False,
            early_stop=False,
            preserve_rng_state=False,
        )
        return result

    def finish(self, state: State) -> tuple[Tensor, Tensor]:
        """x and the velocity after the last layer, where the way back begins."""
        self.spilling = tuple(self.spilled)
        kept = (*state.kept, *self.spilled.values())
        self.spilled = {}
        ends: tuple[Tensor, Tensor] = End.apply(state.x, state.velocity, self, *kept)  # type: ignore[no-untyped-call]
        return ends

    def first(self, n: int, x: Tensor) -> Tensor:
        """Layer n of x, its circumstances noted."""
        layer = self.layers[n]
        parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
        before = {name: buffer.clone() for name, buffer in buffers.items()}
        then = Circumstances(
            x.requires_grad,
            modes(layer),
            parameters,
            before,
            {name: tensor._version for name, tensor in (parameters | before).items()},
            generators(x.device),
            None,
        )
        self.circumstances.append(then)
        versions = {name: buffer._version for name, buffer in buffers.items()}
        f = answer(layer, n, x, self.args, self.kwargs)
        unwritten = {name: buffer for name, buffer in buffers.items() if buffer._version == versions[name]}
        drew = not all(map(torch.equal, then.random, generators(x.device)))
        self.circumstances[n] = then._replace(
            buffers=before | unwritten,
            versions=then.versions | {name: versions[name] for name in unwritten},
            random=then.random if drew else (),
            sums=checksums(x, f) if self.check else None,
        )
        if f.requires_grad:
            self.lowest = min(self.lowest, n)
        return f

    def again(self, n: int, x: Tensor) -> Tensor:
        """Layer n of x once more, in the circumstances of the first time."""
        layer, then = self.layers[n], self.circumstances[n]
        self.check_unchanged(n)
        # Copies: torch's batch_norm writes its averages, and does not even count that as a new version.
        lent = {name: buffer.clone() for name, buffer in then.buffers.items()}
        if not sharded(layer):
            now = dict(layer.named_parameters())
            lent |= {name: was for name, was in then.parameters.items() if now.get(name) is not was}
        x = x.detach().requires_grad_(then.needs_grad)
        devices = [] if x.device.type == "cpu" else [x.device]
        with torch.random.fork_rng(devices, enabled=bool(then.random), device_type=x.device.type):
            set_generators(x.device, then.random)
            arguments = (x, *self.args)
            f: Tensor = (
                functional_call(layer, lent, arguments, self.kwargs)
                if lent
                else layer(*arguments, **self.kwargs)
            )
        if then.sums is not None and not torch.equal(then.sums, checksums(x, f)):
            raise Irreproducible(
                f"layer {n} gave another result on the way back: it is not deterministic, or what it reads "
                "was changed between forward and backward"
            )
        return f

    def check_unchanged(self, n: int) -> None:
        """Refuse to compute a layer again that is no longer what it was."""
        layer, then = self.layers[n], self.circumstances[n]
        why = None if modes(layer) == then.modes else "its mode was switched by train() or eval()"
        for name, tensor in (then.parameters | then.buffers).items():
            # FSDP writes to parameters while it gathers them.
            if tensor._version != then.versions[name] and not sharded(layer):
                why = f"{name} was written to"
        for tensor, version in self.arguments:
            if tensor._version != version:
                why = "a further argument was written to"
        if why:
            raise Irreproducible(
                f"layer {n} cannot be computed again: {why} between forward and backward; "
                "wait with that, or try memory='store'"
            )

    def start(self, saved: Sequence[Tensor]) -> None:
        """Stand behind the last layer, with what End kept."""
        self.kept = saved[:2]
        self.spilled = dict(zip(self.spilling, saved[2:], strict=True))
        self.position = len(self.layers)

    def back(self, n: int) -> Tensor:
        """Layer n of the x that is reconstructed."""
        if self.position <= n:
            self.start(self.end())
        # A layer whose gradient needs no tensor was not asked for; the checkpoint at work must not see it.
        while self.position > n + 1:
            with saved_tensors_hooks(lambda x: x, lambda x: x):
                self.undo(self.position - 1)
        return self.undo(n)

    def undo(self, n: int) -> Tensor:
        """Walk from after layer n to before it, and give the result of that layer."""
        found = []

        def f(x: Tensor) -> Tensor:
            with torch.enable_grad():
                found.append(self.again(n, x))
            return found[0]

        with torch.no_grad():
            self.kept = self.arithmetic.unstep(n, self.kept, self.spilled.pop(n, None), f)
        self.position = n
        if n <= self.lowest:
            self.kept, self.spilled = (), {}
        return found[0]


class End(torch.autograd.Function):
    """The end of a taped sequence: autograd keeps its last state, and frees it, like any saved tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, velocity: Tensor, tape: Tape, *kept: Tensor) -> tuple[Tensor, Tensor]:
        """x and the velocity as tensors of their own, so that writing to them harms nothing."""
        ctx.save_for_backward(*kept)
        # What has no gradient is left out, as it is without a tape: sums then have the same order.
        ctx.set_materialize_grads(False)
        ctx.tape = tape
        # A weak reference: with a strong one, node and tape would keep each other alive.
        node: Callable[[], Any] = ref(ctx)
        tape.end = lambda: node().saved_tensors
        return x.clone(), velocity.clone()

    @staticmethod
    def backward(ctx: Any, x: Tensor | None, velocity: Tensor | None) -> tuple[Tensor | None, ...]:
        """The way back begins."""
        kept = ctx.saved_tensors
        ctx.tape.start(kept)
        # A gradient that is to be differentiated outlives this node.
        if torch.is_grad_enabled():
            ctx.tape.end = lambda: kept
        return x, velocity, None, *[None] * len(kept)

    @staticmethod
    def jvp(ctx: Any, x: Tensor, velocity: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Forward mode needs no way back."""
        return x, velocity


def answer(layer: nn.Module, n: int, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Layer n of x; one that changes the shape, or x itself, is refused."""
    counted = not (torch.compiler.is_compiling() or x.is_inference())
    version = x._version if counted else 0
    f = layer(x, *args, **kwargs)
    if not isinstance(f, Tensor) or f.shape != x.shape or f.is_complex():
        made = tuple(f.shape) if isinstance(f, Tensor) else f"a {type(f).__name__}"
        raise WrongArgument(
            f"layers must keep their input's shape and be real, but layer {n} makes {made} "
            f"of {tuple(x.shape)}"
        )
    if counted and x._version != version:
        raise WrongArgument(f"layers must leave their input as it is, but layer {n} writes to it")
    return f
