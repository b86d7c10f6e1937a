"""The paper's tables beside ours, as rows that a page or a README can show."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from mocapsnet.paper.claims import printed_value, trained
from mocapsnet.paper.evidence import Evidence, Outcome, accuracies, grouped, once, summary
from mocapsnet.paper.plan import TABLES
from mocapsnet.paper.printed import ACCURACY, DEPTHS, MEMORY, MODELS, NAMES, Cell, cells
from mocapsnet.paper.rules import Trained, failed
from mocapsnet.paper.subjects import BEST_DEPTH

RECIPES = ("written", "released", "stable", "best")
IN_TABLE_2 = {trained(cell) for cell in cells() if cell.table == "table-2"}
CONTROLS = {recipe.name: recipe for recipe in TABLES["controls"]}
PLANNED = {recipe.name: recipe for table in TABLES.values() for recipe in table}
TRAINED = {(r.recipe, r.dataset, r.model, r.blocks, r.routing, r.optimizer) for r in PLANNED.values()}
# The end of a control's name, in words.
CHANGES = {
    "doubledtrue": "the doubled skip",
    "doubledfalse": "no doubled skip",
    "routingbias0.1": "a bias of 0.1",
    "weightstd0.1": "matrices start at 0.1",
    "lr0.001": "learning rate 0.001",
    "skipblock": "the block's input added twice, as in figure 2",
}
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


def planned(cell: Cell, recipe: str) -> bool:
    """Whether a recipe trains what a cell is about."""
    return (recipe, *trained(cell)[:5]) in TRAINED


def beside(cell: Cell, evidence: Evidence) -> list[Entry]:
    """A printed accuracy and ours; nothing where there is no recipe."""
    ours = [
        entry(trained(cell).runs(evidence, recipe)) if planned(cell, recipe) else Entry("")
        for recipe in RECIPES
    ]
    again = cell.table == "table-3" and trained(cell) in IN_TABLE_2
    return [Entry(printed_value(cell)), *(found._replace(again=again) for found in ours)]


def accuracy_table(table: str, dataset: str, evidence: Evidence) -> Table:
    """Table 1 or 2, one data set."""
    found = [cell for cell in cells() if (cell.table, cell.dataset) == (table, dataset)]
    rows = [
        [Entry(str(cell.blocks)), Entry(NAMES[cell.model]), *beside(cell, evidence)]
        for cell in sorted(found, key=lambda cell: cell.blocks)
    ]
    title = f"Table {table[-1]}: {NAMES[dataset]}, test accuracy in percent"
    return Table(NAMES[dataset], title, "", ["blocks", "network", "paper", *RECIPES], rows)


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
    head = ["network", "blocks", "optimizer", "routing", "paper", *RECIPES]
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
        for which in ("capsnet", "rescapsnet") if model == "rescapsnet" else (model,):
            rows.append(memory_row(evidence, dataset, which, "step", "peak_mib", "ours, peak MiB"))
        if model == "mocapsnet":
            rows += [
                memory_row(evidence, dataset, which, "memory", "kept_mib", "ours, kept MiB")
                for which in (model, "mocapsnet-stored")
            ]
    note = (
        "The paper read nvidia-smi, which counts what the allocator keeps in reserve. Our peak is the most "
        "that a whole training step has allocated at any moment, batch 128. What is kept are the bytes that "
        "wait for the backward pass: in MoCapsNet, and in the same network when it stores every activation. "
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
    head = ["network", "learning rate", "capsules", "batch", "paper", *RECIPES]
    return Table("Table 5", "Table 5: CIFAR-10, test accuracy in percent", note, head, rows)


def controls(evidence: Evidence) -> Table:
    """What the doubled skip, the start and the bias do to the paper's two networks on CIFAR-100."""
    rows = []
    for model in MODELS:
        released = evidence.select("released", dataset="cifar100", model=model, blocks=8)
        rows.append([Entry(NAMES[model]), Entry("nothing"), entry(released)])
        for name in (name for name, recipe in CONTROLS.items() if recipe.model == model):
            told = ", ".join(CHANGES[change] for change in name.partition("-released-")[2].split("-"))
            rows.append([Entry(NAMES[model]), Entry(told), entry(named(evidence, name))])
    note = (
        "What a row names is changed, all else is `released`, where MoCapsNet has the doubled skip, "
        "ResCapsNet has not, matrices start at 0.01 without a bias and the learning rate is 0.0001."
    )
    title = "Controls: CIFAR-100, 8 blocks, test accuracy in percent"
    return Table("Controls", title, note, ["network", "changed", "ours"], rows)


def named(evidence: Evidence, name: str) -> list[Outcome]:
    """The runs of one recipe, one per seed."""
    return once([run for run in evidence.runs if run.name == name])


def asked(evidence: Evidence) -> dict[tuple[Trained, str], dict[str, list[Outcome]]]:
    """Runs, by recipe, of all that is planned, stands in no cell of the paper's tables and is no control."""
    found: dict[tuple[Trained, str], dict[str, list[Outcome]]] = {}
    placed = {trained(cell)[:5] for cell in cells()}
    for name, recipe in PLANNED.items():
        which = Trained(recipe.dataset, recipe.model, recipe.blocks, recipe.routing, recipe.optimizer)
        change = name.partition(f"-{recipe.recipe}-")[2]
        # Of variants, those of table 5 have their cells.
        if name not in CONTROLS and (which[:5] not in placed or change in CHANGES):
            found.setdefault((which, change), {})[recipe.recipe] = named(evidence, name)
    return {key: found[key] for key in sorted(found, key=lambda key: order(*key))}


def order(which: Trained, change: str) -> tuple[int | str, ...]:
    """By data set, network, routing and optimizer, then by depth."""
    dataset, model = ([*NAMES].index(name) for name in (which.dataset, which.model))
    return dataset, model, which.routing, which.optimizer, which.blocks, change


def not_in_the_paper(evidence: Evidence) -> Table:
    """What is trained beside the paper's tables."""
    rows = [
        [
            Entry(NAMES[which.dataset]),
            Entry(
                ", ".join(filter(None, [NAMES[which.model], CHANGES.get(change)])),
                size([run for runs in found.values() for run in runs]),
            ),
            Entry(str(which.blocks)),
            Entry(which.optimizer.capitalize()),
            Entry(in_words(which.routing)),
            *(entry(found[recipe]) if recipe in found else Entry("") for recipe in RECIPES),
        ]
        for (which, change), found in asked(evidence).items()
    ]
    title = "Not in the paper's tables: test accuracy in percent"
    note = "Other systems, routings and depths, which sentences of the paper or a reader ask for."
    return Table("Beyond", title, note, [*HEAD, "optimizer", "routing", *RECIPES], rows)


def size(runs: Sequence[Outcome]) -> str:
    """The parameters of a network, where a run tells them."""
    most = max((run.parameters for run in runs), default=0)
    return f"{most / 1e6:.2f} M" if most else ""


def in_words(routing: str) -> str:
    """A routing's name."""
    return routing if routing == "none" else routing.upper().replace("LEAKY-", "leaky ")


def other_runs(evidence: Evidence) -> Table:
    """Every run that was not planned and stands in no cell."""
    placed = {
        run.name
        for cell in cells()
        if cell.table != "table-4"
        for recipe in RECIPES
        for run in trained(cell).runs(evidence, recipe)
    }
    return runs_table([run for run in evidence.runs if run.name not in {*placed, *PLANNED}])


def runs_table(runs: Sequence[Outcome]) -> Table:
    """A row for every recipe, or for every network where there was no recipe."""
    rows = []
    for group in grouped(runs, lambda run: run.name).values():
        first = group[0]
        found, finished = accuracies(group), [run for run in group if run.accuracy is not None]
        rows.append(
            [
                Entry(NAMES.get(first.dataset, first.dataset)),
                Entry(NAMES.get(first.model, first.model)),
                Entry(str(first.blocks)),
                Entry(in_words(first.routing)),
                Entry(first.name if first.recipe else "none"),
                Entry(size(group)),
                Entry(f"{summary(found)} %" if found else failed(group)),
                Entry(str(len(found))),
                Entry(f"{fmean(run.seconds for run in finished):.0f}" if finished else ""),
                Entry(first.device),
            ]
        )
    head = [*HEAD, "routing", "recipe", "parameters", "test accuracy", "n", "seconds", "on"]
    return Table("Other runs", "Other runs", "Runs that no table above has.", head, rows)


def notes(evidence: Evidence) -> Table:
    """What the records of runs add in words, and whose."""
    groups = grouped([run for run in evidence.runs if run.note], lambda run: (run.note, run.dataset))
    rows = [
        [
            Entry(note[:1].upper() + note[1:].rstrip(".") + "."),
            Entry(NAMES.get(dataset, dataset)),
            Entry(str(len(group))),
        ]
        for (note, dataset), group in groups.items()
    ]
    return Table("Notes", "Notes on runs", "", ["note", "data set", "runs"], rows)


def headline(evidence: Evidence) -> Table:
    """What the paper's introduction compares, where anything of it was run."""
    found = [
        cell
        for cell in cells()
        if cell.table in ("table-1", "table-2") and BEST_DEPTH[cell.dataset] == cell.blocks
    ]
    rows = [
        [
            Entry(NAMES[cell.dataset]),
            Entry(NAMES[cell.model]),
            Entry(str(cell.blocks)),
            *beside(cell, evidence),
        ]
        for cell in found
        if any(trained(cell).runs(evidence, recipe) for recipe in RECIPES)
    ]
    title = "In short: test accuracy in percent at the depths that the paper's introduction compares"
    return Table("In short", title, "", [*HEAD, "paper", *RECIPES], rows)


def paper_tables(evidence: Evidence) -> list[Table]:
    """The shortest first, then all five, and what else was run."""
    places = dict.fromkeys((table, dataset) for table, dataset, _ in ACCURACY)
    tables = [accuracy_table(table, dataset, evidence) for table, dataset in places]
    short = headline(evidence)
    tables += [table_3(evidence), table_4(evidence), table_5(evidence)]
    beyond = [controls(evidence), not_in_the_paper(evidence), other_runs(evidence), notes(evidence)]
    return [table for table in (short, *tables, *beyond) if table.rows]


def filled(tables: Sequence[Table]) -> tuple[int, int, int]:
    """Of our cells in the paper's tables: how many say something, of how many, and how many say it again."""
    ours = [
        cell
        for table in tables
        if table.title.startswith("Table")
        for row in table.rows
        for name, cell in zip(table.head, row, strict=True)
        if (name in RECIPES and cell.text) or (name.isdigit() and row[2].text.startswith("ours"))
    ]
    there = [cell.again for cell in ours if cell.text != "not run"]
    return there.count(False), sum(not cell.again for cell in ours), there.count(True)


def markdown(table: Table) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(table.head)} |", "|" + "---|" * len(table.head)]
    for row in table.rows:
        told = [f"{cell.text} ({cell.small})" if cell.small else cell.text for cell in row]
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in told)} |")
    return "\n".join(lines) + "\n"
