"""How trained runs decide on a claim: one class per kind of claim."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple

from mocapsnet.paper.evidence import Evidence, Outcome, accuracies, diverged, failed, summary
from mocapsnet.paper.printed import CHANCE, NAMES, TEST_IMAGES, counted
from mocapsnet.paper.recipes import TRUNKS
from mocapsnet.paper.rules import ENOUGH, Finding, Rule, files_of
from mocapsnet.paper.statistics import LEVEL, apart, interval, line, std_interval, welch

# Half the last digit of a printed accuracy: a spread is no larger than a few of these.
ROUNDED = 0.005


class Trained(NamedTuple):
    """Which runs are meant; None leaves a setting open."""

    dataset: str
    model: str
    blocks: int
    routing: str = "rba"
    optimizer: str = "adam"
    lr: float | None = None
    capsules: int | None = None
    batch: int | None = None

    def runs(self, evidence: Evidence, recipe: str) -> list[Outcome]:
        """Of one recipe, finished and failed."""
        return evidence.select(recipe, **self._asdict())

    def label(self) -> str:
        """A few words for a table."""
        routing = "" if self.routing == "rba" else f", {self.routing.upper()}"
        return f"{NAMES[self.dataset]} {NAMES[self.model]}, {counted(self.blocks)}{routing}"


@dataclass(frozen=True)
class Printed(Rule):
    """A number that the paper prints: its own start gave it, ours says nothing of it."""

    trained: Trained
    value: float

    def decided_by(self) -> tuple[str, ...]:
        """Networks of others are trained by `stable` alone."""
        return ("written",) if self.trained.model in TRUNKS else ("stable",)


@dataclass(frozen=True)
class Equals(Printed):
    """An accuracy: our 95 % interval contains it, or comes as near as `about` allows."""

    about: float = 0.0

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare a mean."""
        runs = self.trained.runs(evidence, recipe)
        found, told = reached(self.trained, runs)
        if not found:
            return Finding(None, 0, told, files_of(runs))
        low, high = interval(found)
        near = max(self.about, ROUNDED)
        # Fewer runs have no interval to speak of: they are told, and decide nothing.
        holds = low - near <= self.value <= high + near if len(found) >= ENOUGH else None
        return Finding(holds, sure(len(found), runs), f"{told} (n {len(found)})", files_of(runs))


@dataclass(frozen=True)
class Spread(Printed):
    """A standard deviation over seeds: the 95 % interval of ours contains it, as it is rounded."""

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare a standard deviation; one run has none."""
        runs = self.trained.runs(evidence, recipe)
        found, files = accuracies(runs), files_of(runs)
        n = len(found)
        if n < 2:
            gone = 0 if n else len(trials(runs))
            return Finding(None, gone, "diverged" if gone else "not run", files)
        if n < ENOUGH:
            return Finding(None, n, f"{stdev(found):.2f} (n {n})", files)
        low, high = std_interval(found)
        holds = low - ROUNDED <= self.value <= high + ROUNDED
        return Finding(holds, sure(n, runs), f"{low:.2f} to {high:.2f} (n {n})", files)


@dataclass(frozen=True)
class Better(Rule):
    """A comparison: the first is more accurate than the second, at p < 0.05 by Welch's test."""

    first: Trained
    second: Trained

    def label(self) -> str:
        """The first."""
        return f"{self.first.label()}: "

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare two means."""
        groups = [which.runs(evidence, recipe) for which in (self.first, self.second)]
        both = [*map(reached, (self.first, self.second), groups)]
        (a, first), (b, second) = both
        if not a or not b:
            why = [words for found, words in both if not found and words != "not run"]
            return Finding(None, 0, why[0] if why else "not run", files_of(*groups))
        n, p = min(len(a), len(b)), welch(a, b)
        if not any(map(accuracies, groups)):
            return Finding(None, n, "both diverged", files_of(*groups))
        holds = fmean(a) > fmean(b) and (p < LEVEL or n < ENOUGH)
        told = f"{first} against {second} ({rests_on(n, p)})"
        return Finding(holds, sure(n, *groups), told, files_of(*groups))


@dataclass(frozen=True)
class NoBetter(Better):
    """The first is not more accurate than the second: it is worse, at p < 0.05; noise is no answer."""

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare two means, both ways."""
        finding = super().find(evidence, recipe)
        if finding.holds is None:
            return finding
        worse = Better(self.second, self.first).find(evidence, recipe).holds
        n = finding.n if finding.holds or worse else min(finding.n, ENOUGH - 1)
        return finding._replace(holds=not finding.holds, n=n)


@dataclass(frozen=True)
class Same(Better):
    """Two accuracies that differ by less than `within`: p < 0.05 for what a larger difference would be."""

    within: float = 0.5

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare two means."""
        finding = super().find(evidence, recipe)
        if finding.holds is None:
            return finding
        a, b = (reached(which, which.runs(evidence, recipe))[0] for which in (self.first, self.second))
        a, b = sorted((a, b), key=fmean)
        # Of two one-sided tests, the one at the end that is nearer says less.
        p = welch([value + self.within for value in a], b) / 2
        n = finding.n if p < LEVEL else min(finding.n, ENOUGH - 1)
        told = finding.told.rpartition(" (")[0]
        told += f" ({rests_on(min(len(a), len(b)), p, f' of {self.within:g} apart')})"
        return finding._replace(holds=fmean(b) - fmean(a) < self.within, n=n, told=told)


@dataclass(frozen=True)
class CostsMore(Rule):
    """A change costs the first network more accuracy than the second, at p < 0.05 by Welch's test."""

    first: tuple[Trained, Trained]
    """Before and after it, as in the second."""
    second: tuple[Trained, Trained]

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare two differences of means."""
        networks = (*self.first, *self.second)
        groups = [which.runs(evidence, recipe) for which in networks]
        found = [reached(*pair)[0] for pair in zip(networks, groups, strict=True)]
        if not all(found):
            return Finding()
        n, (a, a_changed, b, b_changed) = min(map(len, found)), map(fmean, found)
        if not any(map(accuracies, groups[1::2])):
            return Finding(None, n, "both diverged", files_of(*groups))
        p = apart((a - a_changed) - (b - b_changed), found)
        holds = a - a_changed > b - b_changed and (p < LEVEL or n < ENOUGH)
        told = f"{a_changed - a:+.2f} against {b_changed - b:+.2f} points ({rests_on(n, p)})"
        return Finding(holds, sure(n, *groups), told, files_of(*groups))


@dataclass(frozen=True)
class Chance(Rule):
    """No run is better than always naming the largest class, or, with learns, every run is."""

    trained: Sequence[Trained]
    learns: bool = False

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare each run with chance."""
        groups = [(which, runs) for which in self.trained if (runs := trials(which.runs(evidence, recipe)))]
        if not groups:
            return Finding()
        told: list[str] = []
        right: list[int] = []
        wrong: list[int] = []
        for which, runs in groups:
            found = accuracies(runs)
            learnt = sum(value > lucky(which.dataset) for value in found)
            (right if learnt == (len(runs) if self.learns else 0) else wrong).append(len(runs))
            told.append(f"{which.label()}: {summary(found) if found else failed(runs)}")
        if len(groups) < len(self.trained):
            told.append(f"{len(self.trained) - len(groups)} more not run")
        # One counterexample decides, the one that was run most; a yes needs all that are meant.
        n = max(wrong) if wrong else min(right)
        told.append(f"n {n}")
        if not wrong and len(groups) < len(self.trained):
            n = min(n, ENOUGH - 1)
        return Finding(not wrong, n, "; ".join(told), files_of(*(runs for _, runs in groups)))


@dataclass(frozen=True)
class Rising(Rule):
    """Accuracy grows with depth: its slope's 95 % interval lies above zero, and its end does not fall."""

    trained: Sequence[Trained]

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Fit a line through all runs."""
        groups = [(which, which.runs(evidence, recipe)) for which in self.trained]
        found = {which.blocks: values for which, runs in groups if (values := reached(which, runs)[0])}
        points = [(blocks, value) for blocks, values in found.items() for value in values]
        files = files_of(*(runs for _, runs in groups))
        if len(found) < 2:
            return Finding(None, 0, "not run", files)
        fit = line(*zip(*points, strict=True))
        seeds = min(map(len, found.values()))
        n = min(seeds, len(found))
        top, deepest = max(found.values(), key=fmean), found[max(found)]
        falls = fmean(deepest) < fmean(top) and welch(deepest, top) < LEVEL
        holds = not falls and (fit.interval()[0] > 0 if n >= ENOUGH else fit.slope > 0)
        meant = [which.blocks for which in self.trained]
        # A few depths in the middle are no line, nor are those of one end.
        if not {min(meant), max(meant)} <= found.keys() or 2 * len(found) < len(meant):
            n = min(n, ENOUGH - 1)
        told = f"{fit.slope:+.2f} points per block at {', '.join(map(str, sorted(found)))} blocks"
        told += ", the deepest below the best" if falls else ""
        return Finding(holds, sure(n, *(runs for _, runs in groups)), f"{told} (n {seeds})", files)


def reached(which: Trained, runs: Sequence[Outcome]) -> tuple[list[float], str]:
    """Accuracies, and the same in words: chance where all runs diverged, as their network learnt nothing."""
    found, gone = accuracies(runs), [run for run in runs if diverged(run.error)]
    if found:
        return found, summary(found) + (f", {len(gone)} diverged" if gone else "")
    if gone:
        return [CHANCE[which.dataset]] * len(gone), f"diverged, as chance: {CHANCE[which.dataset]:.2f}"
    return [], failed(runs)


def rests_on(n: int, p: float, of: str = "") -> str:
    """How many runs a comparison rests on, and its p, which one run has not."""
    return f"n {n}, p{of} {p:.2g}" if n > 1 else f"n {n}"


def sure(n: int, *groups: Sequence[Outcome]) -> int:
    """n, or too few where some runs of a network diverged and others did not: neither stand for it alone."""
    mixed = any(accuracies(runs) and any(diverged(run.error) for run in runs) for runs in groups)
    return min(n, ENOUGH - 1) if mixed else n


def trials(runs: Sequence[Outcome]) -> list[Outcome]:
    """The runs that tell whether a network learns: finished, or ended by numbers that are none; no crash."""
    return [run for run in runs if run.accuracy is not None or diverged(run.error)]


def lucky(dataset: str) -> float:
    """What a network without a clue stays under: chance, and three standard errors of a test set's size."""
    chance = CHANCE[dataset]
    return chance + 3 * math.sqrt(chance * (100 - chance) / TEST_IMAGES[dataset])
