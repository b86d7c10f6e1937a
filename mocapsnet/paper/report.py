"""results/REPORT.md and results/report.html, made from results/ alone and the same byte for byte."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mocapsnet import writing
from mocapsnet.errors import WrongArgument
from mocapsnet.paper.evidence import Evidence, read
from mocapsnet.paper.figures import FIGURES
from mocapsnet.paper.layout import Entry, Table, markdown
from mocapsnet.paper.page import page
from mocapsnet.paper.tables import filled, paper_tables
from mocapsnet.paper.verdicts import JUDGED, VERDICTS, Judgement, Row, by_cell, ledger, parts

TITLE = "Momentum Capsule Networks, run again"
INTRODUCTION = (
    "What the paper (Gugglberger, Peer and Rodríguez-Sánchez, TMLR 2022) prints, beside what we "
    "measured. Every number of ours is from a file under `results/`; `mocapsnet reproduce report` "
    "makes this page from them. CapsNet stacks capsule layers, ResCapsNet adds a shortcut around each, "
    "MoCapsNet carries a velocity along; a block is two layers. RBA (routing by agreement), SDA "
    "(scaled-distance agreement) and EM (expectation maximisation) are how capsules of one layer route to "
    "the next."
)
SMOKE_TOLD = (
    "This is a smoke run: tiny networks, one epoch of a few embedded digits. It shows that the path "
    "works. Its numbers say nothing about the paper."
)
RECIPES_TOLD = {
    "written": "the paper's text: matrices start at a standard deviation of 0.01, RBA has no bias",
    "released": "what the paper's released code ran: doubled skip, its own preprocessing and losses",
    "stable": "the network and epochs of written from a larger start: 0.1, and a bias of 0.1",
    "best": "the same network, everything else free; test images select nothing",
}
RULES = (
    "A number holds when our 95 % interval (Student's t over seeds) contains it, as rounded; a comparison "
    "when its sign agrees at p < 0.05 (Welch's test). A difference that the seeds do not show at that "
    "level does not hold; with few seeds it may still be there, so that this alone never shows that there "
    "is none. Almost the same is within half a point, on MNIST a tenth, where a test at that level "
    "refutes a larger difference; values printed with ≈ are compared to within half a point.",
    "A standard deviation holds when the 95 % interval of ours (chi-square) contains it, as rounded. With "
    "three seeds this interval runs from about half to six times our value; a single seed has no standard "
    "deviation and counts as not run.",
    "A network learns when its accuracy is more than three standard errors of the test set above always "
    "naming the largest class. A run that diverged did not learn: where all runs of a network did, they "
    "count as chance; where some did, what is said of its accuracy is indicative. A run that crashed says "
    "nothing.",
    "`written` decides where it has three seeds, else `stable`. `stable` starts from other weights than "
    "the paper, so only `written` decides on numbers that the paper prints for its own networks. Where "
    "the recipe that decides says no, `released`, with three seeds, says yes and `stable`, where it may "
    "decide, does not, the claim holds only as released. Fewer than three seeds are indicative, and so "
    "are runs of `released` alone. Of a seed that two devices ran, one run counts. Accuracies are those "
    "of the last epoch.",
    "Sizes in MB, times, and how steeply times grow are those of the paper's code on its machine: only "
    "`released`, measured, may decide on them; a slope of times holds when the 95 % interval of the "
    "fitted line contains it. Times over fewer than six depths are indicative, and so is what was "
    "measured on another data set of the same shape. What is measured of `released` is our program of "
    "that network, which computes the same and does not copy its matrices for every image. What the paper "
    "read from nvidia-smi includes the allocator's reserve, which moves in jumps of its own: peaks "
    "allocated stand beside such sizes, their differences (within 5 %) and their slopes as an indication "
    "and judge none. Ratios of sizes and of their slopes are judged by our networks, within the limits "
    "that stand beside them, those of slopes where their 95 % intervals leave no doubt; a ratio or a "
    "difference of times at one depth is indicative.",
    "Any block adds to the peak of a step at least its 131,584 weights, their gradients and Adam's two "
    "moments, 2.0 MiB, however its activations are kept. What reversal saves are bytes that wait for the "
    "backward pass, which count in the peak only where it lies in the trunk.",
    "What the paper's own numbers contradict is called so whatever the runs say.",
    "An empty cell of a table has no such recipe; one that says `not run` has one and waits for its run.",
)
NUMBERS = (
    "The first column judges the number, the second the standard deviation that is printed with it; "
    "tables 3 to 5 print none."
)


def write_report(results: Path) -> tuple[Path, Path]:
    """Write both files and the figures."""
    if not results.is_dir():
        raise WrongArgument(f"output must be a folder with results, got {str(results)!r}")
    evidence = read(results)
    tables, judged = paper_tables(evidence), ledger(evidence)
    figures = {name: (caption, draw(evidence)) for name, (caption, draw) in FIGURES.items()}
    writing.check_writable(results / "figures", "output")
    for name, (_, picture) in figures.items():
        writing.write(results / "figures" / f"{name}.svg", picture.encode())
    smoke = SMOKE_TOLD if evidence.smoke else ""
    told = counts(evidence, tables)
    html = page(TITLE, [INTRODUCTION, smoke], told, RULES, RECIPES_TOLD, tables, figures, judged)
    text = as_markdown([INTRODUCTION, smoke], told, tables, judged)
    paths = results / "REPORT.md", results / "report.html"
    for path, content in zip(paths, (text, html), strict=True):
        writing.write(path, content.encode())
    return paths


def counts(evidence: Evidence, tables: Sequence[Table]) -> dict[str, str]:
    """The report in a few numbers."""
    finished = [run for run in evidence.runs if run.accuracy is not None]
    return {
        "finished runs": str(len(finished)),
        "of them by recipe": str(sum(bool(run.recipe) for run in finished)),
        "failed runs": str(len(evidence.runs) - len(finished)),
        **filled(tables),
    }


def patterns(names: Sequence[str]) -> list[str]:
    """Names of files, those that differ by their seed as one pattern."""
    return list(dict.fromkeys(re.sub(r"-s\d+-", "-s*-", name) for name in names))


def sentences_table(judged: Sequence[Judgement]) -> Table:
    """A row per sentence."""
    rows = [
        [Entry(j.verdict), Entry(says(j)), Entry(j.own.told if j.own else ""), *findings(Row(j))]
        for j in judged
    ]
    return Table("", "", "", ["verdict", "claim", "the paper's own numbers", *JUDGED, "evidence"], rows)


def numbers_table(rows: Sequence[Row]) -> Table:
    """A row per printed number, its standard deviation's verdict beside its own."""
    told = [
        [
            Entry(row.main.verdict),
            Entry(row.spread.verdict if row.spread else ""),
            Entry(says(row.main)),
            *findings(row),
        ]
        for row in rows
    ]
    return Table("", "", "", ["number", "printed ±", "printed", *JUDGED, "evidence"], told)


def says(j: Judgement) -> str:
    """A claim and where it stands."""
    return f"{j.claim.says} ({j.claim.source})"


def findings(row: Row) -> list[Entry]:
    """What each recipe's evidence says, and its files."""
    told = [Entry(row.mark(recipe) if row.main.findings else "") for recipe in JUDGED]
    return [*told, Entry(", ".join(f"`{name}`" for name in patterns(row.main.files())))]


def tally(judged: Sequence[Judgement]) -> Table:
    """How many claims of each kind have which verdict."""
    found = {name: Counter(j.verdict for j in part) for name, part in parts(judged).items()}
    rows = [
        [Entry(verdict), *(Entry(str(counter[verdict])) for counter in found.values())]
        for verdict in VERDICTS
    ]
    rows.append([Entry("in all"), *(Entry(str(counter.total())) for counter in found.values())])
    return Table("", "", "", ["verdict", *found], rows)


def as_markdown(
    opening: Sequence[str], told: dict[str, str], tables: Sequence[Table], judged: Sequence[Judgement]
) -> str:
    """REPORT.md."""
    numbers = ", ".join(f"{value} {name}" for name, value in told.items())
    text = [f"# {TITLE}\n", *(f"{words}\n" for words in opening if words)]
    text += [f"{numbers}.\n", "## Verdicts\n", markdown(tally(judged))]
    text += ["".join(f"- {rule}\n" for rule in RULES), "## Recipes\n"]
    text += ["".join(f"- `{name}`: {words}.\n" for name, words in RECIPES_TOLD.items())]
    for table in tables:
        text += [f"## {table.title}\n", *([f"{table.note}\n"] if table.note else []), markdown(table)]
    text.append("## Figures\n")
    for name, (caption, _) in FIGURES.items():
        text.append(
            f"![{caption}](figures/{name}.svg)\n\n*{name.replace('-', ' ').capitalize()}. {caption}*\n"
        )
    text += ["## What the paper says\n", markdown(sentences_table(parts(judged)["sentences"]))]
    text += [
        "## Every number of its tables\n",
        NUMBERS + "\n",
        markdown(numbers_table(by_cell(judged))),
    ]
    return "\n".join(text)
