"""report.html: one file that asks for nothing outside, for a phone and a screen, light and dark."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from mocapsnet.paper.layout import Entry, Table
from mocapsnet.paper.printed import counted
from mocapsnet.paper.verdicts import VERDICTS, Judgement, Row, by_cell, parts


def page(
    title: str,
    opening: Sequence[str],
    told: Mapping[str, str],
    rules: Sequence[str],
    recipes: Mapping[str, str],
    tables: Sequence[Table],
    figures: Mapping[str, tuple[str, str]],
    judged: Sequence[Judgement],
) -> str:
    """The whole page."""
    introduction, smoke = opening
    chips = "".join(f"<li><b>{escape(value)}</b> {escape(name)}</li>" for name, value in told.items())
    sentences, numbers, spreads = parts(judged).values()
    terms = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in recipes.items())
    links = {"claims": "Claims"} | {slug(table): table.link for table in tables}
    links |= {"figures": "Figures", "numbers": "Numbers"}
    menu = "".join(f'<a href="#{name}">{escape(words)}</a>' for name, words in links.items())
    drawn = "".join(picture(*item) for item in figures.items())
    text = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>{(files('mocapsnet.paper') / 'report.css').read_text()}</style></head><body>",
        f"<header><h1>{escape(title)}</h1><p>{in_html(introduction)}</p>",
        f'<p class="smoke">{escape(smoke)}</p>' if smoke else "",
        f'<ul class="chips">{chips}</ul></header>',
        f"<nav>{menu}</nav><main>",
        f'<section id="claims"><h2>What the paper says</h2>{tally(sentences)}',
        "<details><summary>How a verdict is found, and what the recipes are</summary>",
        f'<ul class="rules">{"".join(f"<li>{in_html(rule)}</li>" for rule in rules)}</ul>',
        f"<dl>{terms}</dl></details>{cards([*map(Row, sentences)])}</section>",
        *(section(table) for table in tables),
        f'<section id="figures"><h2>Figures</h2>{drawn}</section>',
        f'<section id="numbers"><h2>Every number of its tables</h2><p>Numbers:</p>{tally(numbers)}',
        f"<p>Standard deviations:</p>{tally(spreads)}",
        f"<details><summary>All {len(numbers)} numbers</summary>{cards(by_cell(judged))}</details></section>",
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in text if part)


def tally(judged: Sequence[Judgement]) -> str:
    """How many claims have which verdict, and a bar of them."""
    found = Counter(j.verdict for j in judged)
    items = "".join(
        f'<li class="v{n}"><b>{found[verdict]}</b> {escape(verdict)}</li>'
        for n, verdict in enumerate(VERDICTS)
    )
    bar = "".join(
        f'<i class="v{n}" style="flex:{found[verdict]}"></i>'
        for n, verdict in enumerate(VERDICTS)
        if found[verdict]
    )
    return f'<div class="bar">{bar}</div><ul class="chips">{items}</ul>'


def cards(rows: Sequence[Row]) -> str:
    """A card per claim, by verdict, in the paper's order."""
    groups = [(verdict, [row for row in rows if row.main.verdict == verdict]) for verdict in VERDICTS]
    return "".join(
        f"<h3>{escape(verdict.capitalize())}</h3><div class='cards'>{''.join(map(card, group))}</div>\n"
        for verdict, group in groups
        if group
    )


def card(row: Row) -> str:
    """One claim: what it says, what the paper's numbers and our runs say, and the files."""
    j = row.main
    lines = [("its own numbers", j.own.told)] if j.own else []
    lines += [(name, row.mark(name)) for name, found in j.findings.items() if found.told != "not run"]
    lines += [("printed ±", row.spread.verdict)] if row.spread else []
    told = "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in lines)
    names = "".join(f"<li>{escape(name)}</li>" for name in j.files())
    evidence = (
        f"<details><summary>{counted(len(j.files()), 'file')}</summary><ul>{names}</ul></details>"
        if names
        else ""
    )
    return (
        f'<article class="v{VERDICTS.index(j.verdict)}"><p>{escape(j.claim.says)} '
        f"<small>{escape(j.claim.source)}</small></p>{f'<dl>{told}</dl>' if told else ''}{evidence}</article>"
    )


def section(table: Table) -> str:
    """A table with its heading."""
    note = f"<p>{in_html(table.note)}</p>" if table.note else ""
    return f'<section id="{slug(table)}"><h2>{in_html(table.title)}</h2>{note}{html_table(table)}</section>'


def picture(name: str, figure: tuple[str, str]) -> str:
    """A figure with its caption."""
    caption, drawn = figure
    words = f"<b>{name.replace('-', ' ').capitalize()}.</b> {escape(caption)}"
    return f'<figure id="{name}"><div class="scroll">{drawn}</div><figcaption>{words}</figcaption></figure>'


def slug(table: Table) -> str:
    """A table's name in links."""
    return table.link.lower().replace(" ", "-")


def in_html(words: str) -> str:
    """Plain words, code between backticks."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(words))


def html_table(table: Table) -> str:
    """A table that scrolls sideways by itself on a narrow screen."""
    head = "".join(f"<th>{escape(name)}</th>" for name in table.head)
    body = "\n".join(f"<tr>{''.join(map(html_cell, row))}</tr>" for row in table.rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def html_cell(cell: Entry) -> str:
    """A cell; what was not run is grey, and what stands elsewhere too."""
    small = f"<small>{escape(cell.small)}</small>" if cell.small else ""
    kind = "none" if cell.text == "not run" else "number" if re.match(r"[\d≈]", cell.text) else "words"
    again = " again" if cell.again else ""
    return f'<td class="{kind}{again}">{escape(cell.text)}{small}</td>'
