"""How depth composes without momentum; with it, see reversible.py. All trunks name their layers alike."""

from collections.abc import Iterable

from torch import Tensor, nn


class PlainTrunk(nn.Module):
    """x_{n+1} = f(x_n)."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The state after the last layer."""
        for f in self.layers:
            x = f(x)
        return x


class ResidualTrunk(nn.Module):
    """x_{n+1} = x_n + f(x_n) (equation 2).

    skip="block" is the paper's figure 2 instead: both layers of a block add to the block's input.
    """

    def __init__(self, layers: Iterable[nn.Module], skip: str = "layer") -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """The state after the last layer."""
        for n, f in enumerate(self.layers):
            if self.skip == "layer" or n % 2 == 0:
                block_input = x
            x = block_input + f(x)
        return x

    def extra_repr(self) -> str:
        """The skip, for print(model)."""
        return f"skip={self.skip!r}"
