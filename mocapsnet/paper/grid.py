"""Which recipes are meant, and in which order they run."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import one_of
from mocapsnet.paper.recipe import Recipe
from mocapsnet.train.fit import fit

FIELDS = ("recipe", "dataset", "model", "blocks", "routing", "optimizer")
# The ends of the tables say most, so they come first.
FIRST = (1, 8)


class Task(NamedTuple):
    """One run: a recipe and a seed."""

    recipe: Recipe
    seed: int

    @property
    def name(self) -> str:
        """Of its folder and, with the device, of its result."""
        return f"{self.recipe.name}-s{self.seed}"


def distinct(recipes: Sequence[Recipe], smoke: bool = False) -> list[Recipe]:
    """One of those that train alike, the first; alike when they are small, for a smoke run."""
    usual = {name: option.default for name, option in signature(fit).parameters.items()}
    found: dict[str, Recipe] = {}
    for recipe in recipes:
        run = recipe.smoke() if smoke else recipe
        found.setdefault(repr((run.kind, run.network, {**usual, **run.training}, run.members)), recipe)
    return [*found.values()]


def chosen(tables: Mapping[str, Sequence[Recipe]], what: str, only: str) -> list[Recipe]:
    """The recipes of a table, or of all, that fit every word of only, each once."""
    recipes = [recipe for name, table in tables.items() if what in (name, "all") for recipe in table]
    recipes = list({recipe.name: recipe for recipe in recipes}.values())
    try:
        words = shlex.split(only)
    except ValueError as error:
        raise WrongArgument(
            f"only must be words such as 'cifar10 blocks=1,5', got {only!r}: {error}"
        ) from error
    known = dict.fromkeys(FIELDS) | dict.fromkeys(sorted({name for r in recipes for name in settings(r)}))
    for key, equals, _ in (word.lower().partition("=") for word in words):
        if equals and recipes:
            one_of("the name before = in only", key, known)
    found = [recipe for recipe in recipes if all(fits(recipe, word) for word in words)]
    # One of several that is not there is a slip too, though the others are found.
    lost = [one for word in words for one in apart(word) if not any(fits(recipe, one) for recipe in recipes)]
    if recipes and (lost or not found):
        there = "; ".join(f"{name} {', '.join(values(recipes, name))}" for name in FIELDS)
        raise WrongArgument(f"no recipe of {what} fits only {[*lost, only][0]!r}; there is {there}")
    return found


def apart(word: str) -> list[str]:
    """What a word of only asks for, one by one: blocks=1,5 is blocks=1 or blocks=5."""
    key, equals, wanted = word.rpartition("=")
    return [f"{key}{equals}{value}" for value in wanted.split(",")]


def fits(recipe: Recipe, word: str) -> bool:
    """Whether a recipe has one of several words in its fields or its name, or in the field that is named."""
    key, equals, wanted = word.lower().partition("=")
    if not equals:
        parts = recipe.name.split("-")
        there = {recipe.name, *parts, *(str(getattr(recipe, name)) for name in FIELDS)}
        return not there.isdisjoint(key.split(","))
    told = {name: getattr(recipe, name) for name in FIELDS} if key in FIELDS else settings(recipe)
    return key in told and any(same(told[key], value) for value in wanted.split(","))


def settings(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says of its network and its training."""
    return {**recipe.network, **recipe.training}


def same(value: object, word: str) -> bool:
    """Whether a word says a value: 1e-3 is 0.001."""
    try:
        return float(str(value)) == float(word)
    except ValueError:
        return str(value).lower() == word


def values(recipes: Iterable[Recipe], name: str) -> list[str]:
    """All that a field has, in order."""
    return [str(value) for value in sorted({getattr(recipe, name) for recipe in recipes})]


def ordered(recipes: Sequence[Recipe], seeds: int) -> list[Task]:
    """Seeds outermost; in each of them 1 and 8 blocks first."""
    first = sorted(recipes, key=lambda recipe: recipe.blocks not in FIRST)
    return [Task(recipe, seed) for seed in range(seeds) for recipe in first]
