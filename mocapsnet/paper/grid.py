"""Which recipes are meant, and in which order they run."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mocapsnet.errors import WrongArgument
from mocapsnet.ops.arguments import one_of
from mocapsnet.paper.recipes import Recipe

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
    found = [recipe for recipe in recipes if all(fits(recipe, word) for word in words)]
    if recipes and not found:
        there = "; ".join(f"{name} {', '.join(values(recipes, name))}" for name in FIELDS)
        raise WrongArgument(f"no recipe of {what} fits only {only!r}; there is {there}")
    return found


def fits(recipe: Recipe, word: str) -> bool:
    """Whether a recipe has a word in its fields or its name, or one of several in the field that is named."""
    key, equals, wanted = word.lower().partition("=")
    if not equals:
        parts = recipe.name.split("-")
        return key in (recipe.name, *parts, *(str(getattr(recipe, name)) for name in FIELDS))
    if key not in FIELDS:
        settings = {**recipe.network, **recipe.training}
        one_of("the name before = in only", key, [*FIELDS, *sorted(settings)])
        return str(settings[key]).lower() in wanted.split(",")
    return str(getattr(recipe, key)) in wanted.split(",")


def values(recipes: Iterable[Recipe], name: str) -> list[str]:
    """All that a field has, in order."""
    return [str(value) for value in sorted({getattr(recipe, name) for recipe in recipes})]


def ordered(recipes: Sequence[Recipe], seeds: int) -> list[Task]:
    """Seeds outermost; in each of them 1 and 8 blocks first."""
    first = sorted(recipes, key=lambda recipe: recipe.blocks not in FIRST)
    return [Task(recipe, seed) for seed in range(seeds) for recipe in first]
