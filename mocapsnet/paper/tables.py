"""The paper's tables beside ours, as rows that a page or a README can show."""

from collections.abc import Sequence

from mocapsnet.paper.beyond import controls, not_in_the_paper, notes, other_runs
from mocapsnet.paper.claims import meant_by, printed_value
from mocapsnet.paper.evidence import Evidence
from mocapsnet.paper.layout import COLUMNS, HEAD, Entry, Table, entry
from mocapsnet.paper.plan import PLANNED
from mocapsnet.paper.printed import ACCURACY, DEPTHS, MEMORY, NAMES, Cell, cells
from mocapsnet.paper.subjects import BEST_DEPTH

IN_TABLE_2 = {meant_by(cell) for cell in cells() if cell.table == "table-2"}
TRAINED = {(r.recipe, r.dataset, r.model, r.blocks, r.routing, r.optimizer) for r in PLANNED.values()}


def planned(cell: Cell, recipe: str) -> bool:
    """Whether a recipe trains what a cell is about."""
    return (recipe, *meant_by(cell)[:5]) in TRAINED


def beside(cell: Cell, evidence: Evidence) -> list[Entry]:
    """A printed accuracy and ours; nothing where there is no recipe."""
    ours = [
        entry(meant_by(cell).runs(evidence, recipe)) if planned(cell, recipe) else Entry("")
        for recipe in COLUMNS
    ]
    again = cell.table == "table-3" and meant_by(cell) in IN_TABLE_2
    return [Entry(printed_value(cell)), *(found._replace(again=again) for found in ours)]


def accuracy_table(table: str, dataset: str, evidence: Evidence) -> Table:
    """Table 1 or 2, one data set."""
    found = [cell for cell in cells() if (cell.table, cell.dataset) == (table, dataset)]
    rows = [
        [Entry(str(cell.blocks)), Entry(NAMES[cell.model]), *beside(cell, evidence)]
        for cell in sorted(found, key=lambda cell: cell.blocks)
    ]
    title = f"Table {table[-1]}: {NAMES[dataset]}, test accuracy in percent"
    return Table(NAMES[dataset], title, "", ["blocks", "network", "paper", *COLUMNS], rows)


def table_3(evidence: Evidence) -> Table:
    """CIFAR-10 with other optimizers and routings."""
    rows = [
        [
            Entry(NAMES[cell.model]),
            Entry(str(cell.blocks) if cell.blocks else "none"),
            Entry(cell.optimizer.capitalize()),
            Entry(cell.routing.upper()),
            *beside(cell, evidence),
        ]
        for cell in cells()
        if cell.table == "table-3"
    ]
    note = (
        "The paper took the first three from Xi et al. Their widths are not public; the recipes state ours. "
        "Rows with blocks, Adam and RBA are the runs of table 2 again."
    )
    head = ["network", "blocks", "optimizer", "routing", "paper", *COLUMNS]
    return Table("Table 3", "Table 3: CIFAR-10, test accuracy in percent", note, head, rows)


def table_4(evidence: Evidence) -> Table:
    """Memory against depth."""
    rows = []
    for dataset, model in MEMORY:
        name = "(Res)CapsNet" if model == "rescapsnet" else NAMES[model]
        rows.append(
            [
                Entry(NAMES[dataset]),
                Entry(name),
                Entry("paper, MB"),
                *map(Entry, map(str, MEMORY[dataset, model])),
            ]
        )
        whose = ("capsnet", "rescapsnet") if model == "rescapsnet" else (model,)
        stored = ("mocapsnet-stored",) if model == "mocapsnet" else ()
        peak, kept = ("step", "peak_mib", "ours, peak MiB"), ("memory", "kept_mib", "ours, kept MiB")
        rows += [memory_row(evidence, dataset, which, *peak) for which in whose]
        rows += [memory_row(evidence, dataset, which, *kept) for which in (*whose, *stored)]
    note = (
        "The paper read nvidia-smi, which counts what the allocator keeps in reserve. Our peak is the most "
        "that a whole training step has allocated at any moment, batch 128. What is kept are the bytes that "
        "wait for the backward pass; for MoCapsNet also when it stores every activation. "
        "SVHN's images have CIFAR-10's shape and classes: where it was not measured itself, its rows repeat "
        "what was measured with CIFAR-10, and say so."
    )
    head = ["data set", "network", "", *(f"{blocks}" for blocks in DEPTHS)]
    return Table("Memory", "Table 4: memory in training, by blocks", note, head, rows)


def memory_row(
    evidence: Evidence, dataset: str, model: str, what: str, metric: str, told: str
) -> list[Entry]:
    """What was measured at 1 to 8 blocks, and on which device."""
    rows = evidence.steps(what, dataset=dataset, model=model, routing="rba", capsules=32)
    found = {row.blocks: f"{value:.0f}" for row in rows if (value := getattr(row, metric)) is not None}
    like = rows[0].like if found else ""
    where = rows[0].device.replace("NVIDIA ", "") if found else ""
    where += f", measured on {NAMES[like]}" if like else ""
    ours = [Entry(found.get(blocks, "not run"), again=bool(like)) for blocks in DEPTHS]
    return [Entry(NAMES[dataset]), Entry(NAMES[model]), Entry(told, where), *ours]


def table_5(evidence: Evidence) -> Table:
    """Learning rate, capsules and batch size."""
    rows = [
        [
            Entry(NAMES[cell.model]),
            Entry(f"{cell.lr:g}"),
            Entry(str(cell.capsules)),
            Entry(str(cell.batch)),
            *beside(cell, evidence),
        ]
        for cell in cells()
        if cell.table == "table-5"
    ]
    note = "Two blocks, RBA, Ranger21, 100 epochs."
    head = ["network", "learning rate", "capsules", "batch", "paper", *COLUMNS]
    return Table("Table 5", "Table 5: CIFAR-10, test accuracy in percent", note, head, rows)


def headline(evidence: Evidence) -> Table:
    """What the paper's introduction compares, where anything of it was run, and what `best` was run on."""
    rows = [
        [
            Entry(NAMES[cell.dataset]),
            Entry(NAMES[cell.model]),
            Entry(str(cell.blocks)),
            *beside(cell, evidence),
        ]
        for cell in cells()
        if cell.table in ("table-1", "table-2")
        if (ran := [recipe for recipe in COLUMNS if meant_by(cell).runs(evidence, recipe)])
        and ("best" in ran or BEST_DEPTH[cell.dataset] == cell.blocks)
    ]
    title = "In short: test accuracy in percent at the depths of the paper's introduction, and of `best`"
    return Table("In short", title, "", [*HEAD, "paper", *COLUMNS], rows)


def paper_tables(evidence: Evidence) -> list[Table]:
    """The shortest first, then all five, and what else was run."""
    places = dict.fromkeys((table, dataset) for table, dataset, _ in ACCURACY)
    tables = [accuracy_table(table, dataset, evidence) for table, dataset in places]
    short = headline(evidence)
    tables += [table_3(evidence), table_4(evidence), table_5(evidence)]
    beyond = [controls(evidence), not_in_the_paper(evidence), other_runs(evidence), notes(evidence)]
    return [table for table in (short, *tables, *beyond) if table.rows]


def filled(tables: Sequence[Table]) -> dict[str, str]:
    """Of our cells in the paper's tables, accuracies and sizes apart, how many say something of their own."""
    accuracies, sizes = [], []
    for table in tables:
        if table.title.startswith("Table"):
            for row in table.rows:
                for name, cell in zip(table.head, row, strict=True):
                    if name in COLUMNS and cell.text:
                        accuracies.append(cell)
                    elif name.isdigit() and row[2].text.startswith("ours"):
                        sizes.append(cell)
    # A row that stands in two tables counts once; a size that was measured in place of another does not.
    accuracies = [cell for cell in accuracies if not cell.again]
    return {
        f"{what} filled": f"{sum(c.text != 'not run' and not c.again for c in cells)} of {len(cells)}"
        for what, cells in (("accuracies", accuracies), ("sizes", sizes))
    }
