"""From evidence to a verdict."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mocapsnet.paper.claims import claims
from mocapsnet.paper.evidence import Evidence
from mocapsnet.paper.own import Own
from mocapsnet.paper.rules import ENOUGH, EQUATIONS, Claim, Finding
from mocapsnet.paper.trained import Spread

HOLDS = "holds"
RELEASED = "holds only as released"
FALSE = "does not hold"
CONTRADICTED = "contradicted by the paper's own numbers"
INDICATIVE = "indicative"
NOT_RUN = "not run"
VERDICTS = (HOLDS, RELEASED, FALSE, CONTRADICTED, INDICATIVE, NOT_RUN)
# The recipes whose evidence is told of a claim.
JUDGED = ("written", "released", "stable")


class Judgement(NamedTuple):
    """A claim, its verdict, and what it follows from."""

    claim: Claim
    verdict: str
    own: Own | None
    findings: Mapping[str, Finding]

    def files(self) -> list[str]:
        """The evidence's files, each once."""
        told = (finding for finding in self.findings.values() if finding.told != NOT_RUN)
        return list(dict.fromkeys(name for finding in told for name in finding.files))


class Row(NamedTuple):
    """A line of the ledger: a sentence, or a printed number and its standard deviation's judgement."""

    main: Judgement
    spread: Judgement | None = None

    def mark(self, recipe: str) -> str:
        """What a recipe's evidence says of both."""
        told = self.main.findings[recipe].mark()
        beside = self.spread.findings[recipe] if self.spread else Finding()
        return told if beside.holds is None else f"{told}; std {beside.mark()}"


def judge(claim: Claim, evidence: Evidence) -> Judgement:
    """The verdict that follows from the paper's own numbers, then from runs.

    Networks that follow the equations decide: `written` where it has three seeds, else `stable`, but for
    printed numbers, which are of the paper's start. Only where these say no may `released` say that the claim
    holds as released. It decides on what is said of its code.
    """
    said = claim.own() if claim.own else None
    rule = claim.rule
    findings = {recipe: rule.find(evidence, recipe) for recipe in JUDGED} if rule else {}
    if evidence.smoke:
        # Tiny networks decide on nothing.
        findings = {recipe: found.weaker() for recipe, found in findings.items()}
    return Judgement(claim, verdict(said, findings, rule.decided_by() if rule else ()), said, findings)


def verdict(said: Own | None, findings: Mapping[str, Finding], decided_by: Sequence[str] = EQUATIONS) -> str:
    """One of VERDICTS."""
    if said is not None and not said.agrees:
        return CONTRADICTED
    if not findings:
        return HOLDS if said else NOT_RUN
    judged = {
        recipe: finding.holds
        for recipe, finding in findings.items()
        if finding.holds is not None and finding.n >= ENOUGH
    }
    decides = next((judged[recipe] for recipe in decided_by if recipe in judged), None)
    if decides:
        return HOLDS
    if decides is False:
        stable = "stable" in decided_by and judged.get("stable")
        return RELEASED if judged.get("released") and not stable else FALSE
    return INDICATIVE if any(finding.n for finding in findings.values()) else NOT_RUN


def ledger(evidence: Evidence) -> list[Judgement]:
    """Every claim judged."""
    return [judge(claim, evidence) for claim in claims()]


def parts(judged: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    """The ledger's three parts."""
    numbers = [j for j in judged if j.claim.cell]
    return {
        "sentences": [j for j in judged if not j.claim.cell],
        "numbers": [j for j in numbers if not isinstance(j.claim.rule, Spread)],
        "standard deviations": [j for j in numbers if isinstance(j.claim.rule, Spread)],
    }


def by_cell(judged: Sequence[Judgement]) -> list[Row]:
    """Every printed number, beside it its standard deviation."""
    _, numbers, spreads = parts(judged).values()
    beside = {j.claim.cell: j for j in spreads}
    return [Row(j, beside.get(j.claim.cell)) for j in numbers]
