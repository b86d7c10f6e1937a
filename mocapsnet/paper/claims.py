"""The ledger as data: what the paper says that can be true or false, with the rule that decides on it."""

from mocapsnet.paper.measured import Curve, Read
from mocapsnet.paper.printed import NAMES, Cell, cells, counted
from mocapsnet.paper.rules import Claim
from mocapsnet.paper.sentences import sentences
from mocapsnet.paper.trained import Equals, Spread, Trained


def numbers(cell: Cell) -> list[Claim]:
    """The claims that a table's cell makes: a number, and its standard deviation where one is printed."""
    source, told = cell.table.replace("-", " "), label(cell)
    if cell.table == "table-4":
        read = Read(Curve("step", "peak_mib", cell.dataset, cell.model), cell.blocks)
        return [Claim(source, f"{told}: {printed_value(cell)} MB", read, cell=cell)]
    # What is printed with ≈ is meant to half a point.
    equals = Equals(meant_by(cell), cell.value, 0.5 if cell.about else 0.0)
    found = [Claim(source, f"{told}: {printed_value(cell)} %", equals, cell=cell)]
    if cell.std is not None:
        says = f"{told}: a standard deviation of {cell.std:.2f}"
        found.append(Claim(source, says, Spread(meant_by(cell), cell.std), cell=cell))
    return found


def label(cell: Cell) -> str:
    """What a cell is about, in words."""
    options = [NAMES[cell.dataset], NAMES[cell.model]]
    if cell.blocks:
        options.append(counted(cell.blocks))
    if cell.table == "table-3":
        options += [cell.optimizer.capitalize(), cell.routing.upper()]
    if cell.table == "table-5":
        options += [f"rate {cell.lr:g}", f"{cell.capsules} capsules", f"batch {cell.batch}"]
    return ", ".join(options)


def printed_value(cell: Cell) -> str:
    """A number as the paper prints it."""
    if cell.table == "table-4":
        return f"{cell.value:.0f}"
    return f"{'≈ ' * cell.about}{cell.value:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")


def meant_by(cell: Cell) -> Trained:
    """The runs that a cell is about."""
    return Trained(*(getattr(cell, name) for name in Trained._fields))


def claims() -> list[Claim]:
    """The sentences, then every number of the tables."""
    return [*sentences(), *(claim for cell in cells() for claim in numbers(cell))]
