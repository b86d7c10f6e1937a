"""What decides on a claim: a rule finds something in the evidence, several are joined to one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mocapsnet.paper.benches import Measured
from mocapsnet.paper.evidence import Evidence, Outcome
from mocapsnet.paper.own import Check
from mocapsnet.paper.printed import Cell

# Seeds, or depths of a line, below which a finding is only indicative.
ENOUGH = 3
# The recipes whose networks follow the equations.
EQUATIONS = ("written", "stable")


class Finding(NamedTuple):
    """What the evidence of one recipe says; holds is None where there is none, or too little to say."""

    holds: bool | None = None
    n: int = 0
    told: str = "not run"
    files: tuple[str, ...] = ()

    def mark(self) -> str:
        """What it says, in a few words."""
        return self.told if self.holds is None else f"{'yes' if self.holds else 'no'}, {self.told}"

    def weaker(self) -> "Finding":
        """The same, which decides nothing."""
        return self._replace(n=min(self.n, ENOUGH - 1))


class Rule(ABC):
    """A kind of claim."""

    def decided_by(self) -> tuple[str, ...]:
        """The recipes that decide on it, the first that was run often enough."""
        return EQUATIONS

    @abstractmethod
    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """What one recipe's evidence says."""

    def label(self) -> str:
        """What it is about, where several are told at once."""
        return ""


class OfTheCode(Rule):
    """What is said of the paper's code."""

    def decided_by(self) -> tuple[str, ...]:
        """The released network."""
        return ("released",)


@dataclass(frozen=True)
class Claim:
    """Something the paper says: where, what, how its own numbers stand to it, and how runs decide on it."""

    source: str
    says: str
    rule: Rule | None = None
    own: Check | None = None
    cell: Cell | None = None
    """The cell of a table, where it is no sentence."""


def files_of(*groups: Sequence[Outcome | Measured]) -> tuple[str, ...]:
    """The evidence's files, each once."""
    return tuple(dict.fromkeys(row.file for group in groups for row in group))


@dataclass(frozen=True)
class AllOf(Rule):
    """Several rules of one kind at once: all that have evidence must hold."""

    rules: Sequence[Rule]

    def decided_by(self) -> tuple[str, ...]:
        """The recipes that decide on each."""
        return self.rules[0].decided_by()

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Join what each says."""
        found = [
            finding._replace(told=f"{rule.label()}{finding.told}")
            for rule in self.rules
            if (finding := rule.find(evidence, recipe)).holds is not None
        ]
        if not found:
            return Finding()
        told = f"{sum(finding.holds or False for finding in found)} of {len(found)} confirm it"
        if missing := len(self.rules) - len(found):
            told += f", {missing} not run"
        files = tuple(dict.fromkeys(name for finding in found for name in finding.files))
        wrong = [finding for finding in found if not finding.holds]
        if len(found) <= 3:
            told += ": " + "; ".join(finding.told for finding in found)
        elif 0 < len(wrong) <= 3:
            told += "; not: " + "; ".join(finding.told for finding in wrong)
        return Finding(*self.joined(found, wrong, missing), told, files)

    def joined(self, found: Sequence[Finding], wrong: Sequence[Finding], missing: int) -> tuple[bool, int]:
        """Whether it holds, and on how many runs that rests: one that fails decides, a yes needs them all."""
        if wrong:
            return False, max(finding.n for finding in wrong)
        n = min(finding.n for finding in found)
        return True, min(n, ENOUGH - 1) if missing else n


class MostOf(AllOf):
    """More than half of the rules hold."""

    def joined(self, found: Sequence[Finding], wrong: Sequence[Finding], missing: int) -> tuple[bool, int]:
        """The same; what is missing could turn it."""
        n, right = min(finding.n for finding in found), len(found) - len(wrong)
        sure = 2 * right > len(self.rules) or 2 * len(wrong) >= len(self.rules)
        return 2 * right > len(found), n if sure else min(n, ENOUGH - 1)
