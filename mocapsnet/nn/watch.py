"""Looking inside a network while it runs: everything that needs more than its output comes here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.nn.routing import CapsLayer

# Takes a module's name, the module, its arguments and its result.
See = Callable[[str, nn.Module, tuple[Any, ...], Any], None]


class Intermediate(NamedTuple):
    """A layer of capsules as one forward pass left it."""

    name: str
    """Of the module: primary, caps1, trunk.layers.0, …, caps2."""
    capsules: Tensor
    """[B,J,E]: what the layer gives; f(x_n) in a trunk."""
    coupling: Tensor | None
    """[B,J,I]: how much of each capsule below goes to each one here; None for primary capsules."""
    x: Tensor
    """[B,J,E]: the state after the layer, as the next one is given it."""


@contextmanager
def watching(model: nn.Module, see: See) -> Iterator[None]:
    """Call a function with every module below a model, in the order in which they finish."""

    def watch(name: str, module: nn.Module) -> Any:
        return module.register_forward_hook(lambda _, given, gave: see(name, module, given, gave))

    hooks = [watch(name, module) for name, module in model.named_modules() if name]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def intermediates(model: nn.Module, *inputs: Any) -> tuple[Any, list[Intermediate]]:
    """What a model makes of its inputs, and every layer of capsules on the way."""
    found: list[Intermediate] = []
    states: list[Tensor] = []

    def see(name: str, module: nn.Module, given: tuple[Any, ...], gave: Any) -> None:
        if name == "primary" or isinstance(module, CapsLayer):
            coupling = module.coupling(given[0]) if isinstance(module, CapsLayer) else None
            states.append(given[0])
            found.append(Intermediate(name, gave, coupling, gave))

    with watching(model, see):
        output = model(*inputs)
    # What a layer leaves is what the next one is given: nothing here depends on the kind of the trunk.
    for n, x in enumerate(states[1:]):
        found[n] = found[n]._replace(x=x)
    return output, found


def chosen(found: list[Intermediate], indices: int | list[int] | None) -> list[Intermediate]:
    """All, the last so many, or those at the indices."""
    count = len(found)
    if indices is None:
        return found
    if isinstance(indices, int) and 1 <= indices <= count:
        return found[-indices:]
    if isinstance(indices, int) or not all(-count <= n < count for n in indices):
        raise WrongArgument(
            f"indices must be from 1 to {count}, or a list of some from {-count} to {count - 1}, "
            f"got {indices}"
        )
    return [found[n] for n in indices]
