"""The ledger as data: what the paper says that can be true or false, with the rule that decides on it."""

from mocapsnet.paper.measured import Bench, Near
from mocapsnet.paper.printed import NAMES, Cell, cells, counted
from mocapsnet.paper.rules import Claim, Equals, Trained
from mocapsnet.paper.sentences import sentences


def number(cell: Cell) -> Claim:
    """The claim that a table's number makes."""
    source = cell.table.replace("-", " ")
    options = [NAMES[cell.dataset], NAMES[cell.model]]
    if cell.blocks:
        options.append(counted(cell.blocks))
    if cell.table == "table-4":
        rule = Near(Bench("step", "peak_mib", cell.dataset, cell.model), cell.blocks, cell.value)
        return Claim(source, f"{', '.join(options)}: {printed_value(cell)} MB", rule, printed=True)
    if cell.table == "table-3":
        options += [cell.optimizer.capitalize(), cell.routing.upper()]
    if cell.table == "table-5":
        options += [f"rate {cell.lr:g}", f"{cell.capsules} capsules", f"batch {cell.batch}"]
    # What is printed with ≈ is meant to half a point.
    equals = Equals(trained(cell), cell.value, 0.5 if cell.about else 0.0)
    return Claim(source, f"{', '.join(options)}: {printed_value(cell)} %", equals, printed=True)


def printed_value(cell: Cell) -> str:
    """A number as the paper prints it."""
    if cell.table == "table-4":
        return f"{cell.value:.0f}"
    return f"{'≈ ' * cell.about}{cell.value:.2f}" + (f" ± {cell.std:.2f}" if cell.std is not None else "")


def trained(cell: Cell) -> Trained:
    """The runs that a cell is about."""
    return Trained(*(getattr(cell, name) for name in Trained._fields))


def claims() -> list[Claim]:
    """The sentences, then every number of the tables."""
    return [*sentences(), *map(number, cells())]
