"""Tables of what the paper has none of: controls, what else was planned, other runs, notes."""

from collections.abc import Sequence
from statistics import fmean

from mocapsnet.paper.claims import meant_by
from mocapsnet.paper.evidence import Evidence, Outcome, accuracies, failed, grouped, once, summary
from mocapsnet.paper.layout import COLUMNS, HEAD, Entry, Table, entry
from mocapsnet.paper.plan import PLANNED, TABLES
from mocapsnet.paper.printed import MODELS, NAMES, cells
from mocapsnet.paper.trained import Trained

CONTROLS = {recipe.name: recipe for recipe in TABLES["controls"]}
# The end of a control's name, in words.
CHANGES = {
    "doubledtrue": "the doubled skip",
    "doubledfalse": "no doubled skip",
    "routingbias0.1": "a bias of 0.1",
    "weightstd0.1": "matrices start at 0.1",
    "lr0.001": "learning rate 0.001",
    "skipblock": "the block's input added twice, as in figure 2",
}


def controls(evidence: Evidence) -> Table:
    """What the doubled skip, the start and the bias do to the paper's two networks on CIFAR-100."""
    rows = []
    for model in MODELS:
        released = evidence.select("released", dataset="cifar100", model=model, blocks=8)
        rows.append([Entry(NAMES[model]), Entry("nothing"), entry(released)])
        for name in (name for name, recipe in CONTROLS.items() if recipe.model == model):
            told = ", ".join(CHANGES[change] for change in name.partition("-released-")[2].split("-"))
            rows.append([Entry(NAMES[model]), Entry(told), entry(runs_named(evidence, name))])
    note = (
        "What a row names is changed, all else is `released`, where MoCapsNet has the doubled skip, "
        "ResCapsNet has not, matrices start at 0.01 without a bias and the learning rate is 0.0001."
    )
    title = "Controls: CIFAR-100, 8 blocks, test accuracy in percent"
    return Table("Controls", title, note, ["network", "changed", "ours"], rows)


def runs_named(evidence: Evidence, name: str) -> list[Outcome]:
    """The runs of one recipe, one per seed."""
    return once([run for run in evidence.runs if run.name == name])


def asked(evidence: Evidence) -> dict[tuple[Trained, str], dict[str, list[Outcome]]]:
    """Runs, by recipe, of all that is planned, stands in no cell of the paper's tables and is no control."""
    found: dict[tuple[Trained, str], dict[str, list[Outcome]]] = {}
    placed = {meant_by(cell)[:5] for cell in cells()}
    for name, recipe in PLANNED.items():
        which = Trained(recipe.dataset, recipe.model, recipe.blocks, recipe.routing, recipe.optimizer)
        change = name.partition(f"-{recipe.recipe}-")[2]
        # Of variants, those of table 5 have their cells.
        if name not in CONTROLS and (which[:5] not in placed or change in CHANGES):
            found.setdefault((which, change), {})[recipe.recipe] = runs_named(evidence, name)
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
            *(entry(found[recipe]) if recipe in found else Entry("") for recipe in COLUMNS),
        ]
        for (which, change), found in asked(evidence).items()
    ]
    title = "Not in the paper's tables: test accuracy in percent"
    note = (
        "Systems, routings and depths that the paper mentions without a table, or a reader may ask for. The "
        "seconds of an ensemble are those of all its members, which are runs of their own where a recipe has "
        "them alone."
    )
    return Table("Beyond", title, note, [*HEAD, "optimizer", "routing", *COLUMNS], rows)


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
        for recipe in COLUMNS
        for run in meant_by(cell).runs(evidence, recipe)
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
