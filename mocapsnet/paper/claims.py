"""The ledger as data: what the paper says that can be true or false, with the rule that decides on it."""

from mocapsnet.paper.measured import Bench, Near
from mocapsnet.paper.printed import NAMES, Cell, cells
from mocapsnet.paper.rules import Claim, Equals, Trained
from mocapsnet.paper.sentences import sentences


def number(cell: Cell) -> Claim:
    """The claim that a table's number makes."""
    if cell.table == "table-4":
        says = f"{NAMES[cell.dataset]}, {NAMES[cell.model]}, {cell.blocks} blocks: {cell.value:,.0f} MB"
        return Claim(
            "table 4",
            says,
            Near(Bench("step", "peak_mib", cell.dataset, cell.model), cell.blocks, cell.value),
        )
    options = [NAMES[cell.dataset], NAMES[cell.model]]
    if cell.model in ("rescapsnet", "mocapsnet"):
        options.append(f"{cell.blocks} block{'s' * (cell.blocks > 1)}")
    if cell.table == "table-3":
        options += [cell.optimizer.capitalize(), cell.routing.upper()]
    if cell.table == "table-5":
        options += [f"rate {cell.lr:g}", f"{cell.capsules} capsules", f"batch {cell.batch}"]
    says = f"{', '.join(options)}: {printed_value(cell)} %"
    # What is printed with ≈ is meant to half a point.
    return Claim(
        cell.table.replace("-", " "), says, Equals(trained(cell), cell.value, 0.5 if cell.about else 0.0)
    )


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
