"""Rows of cells that a page or a README can show."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from mocapsnet.paper.evidence import Outcome, accuracies, failed, summary

# The recipes that have a column, in their order.
COLUMNS = ("written", "released", "stable", "best")
HEAD = ("data set", "network", "blocks")


class Entry(NamedTuple):
    """A cell: what it says, and in small what that rests on."""

    text: str
    small: str = ""
    again: bool = False
    """The same measurement stands in another cell, where it is counted."""


class Table(NamedTuple):
    """A table, a short name for links, and what should be known of it."""

    link: str
    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]


def entry(runs: Sequence[Outcome]) -> Entry:
    """Mean ± standard deviation in percent, n, seconds and device; an empty one says so."""
    found = accuracies(runs)
    if not found:
        return Entry(failed(runs), runs[0].device if runs else "")
    finished = [run for run in runs if run.accuracy is not None]
    devices = ", ".join(dict.fromkeys(run.device for run in finished))
    wrong = f", {len(runs) - len(finished)} failed" if len(finished) < len(runs) else ""
    seconds = fmean(run.seconds for run in finished)
    return Entry(summary(found), f"n {len(found)}{wrong}, {seconds:.0f} s, {devices.replace('NVIDIA ', '')}")


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(table.head)} |", "|" + "---|" * len(table.head)]
    for row in table.rows:
        told = [f"{cell.text} ({cell.small})" if cell.small else cell.text for cell in row]
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in told)} |")
    return "\n".join(lines) + "\n"
