"""How the networks, as they are built, decide on a claim: no run is needed."""

from dataclasses import dataclass
from inspect import signature

from mocapsnet.nn.load import network_class
from mocapsnet.paper import recipes
from mocapsnet.paper.evidence import Evidence
from mocapsnet.paper.rules import ENOUGH, Finding, OfTheCode


@dataclass(frozen=True)
class SameLength(OfTheCode):
    """Capsules of classes have as many numbers as all others; the paper prints none, its code has both."""

    def find(self, evidence: Evidence, recipe: str) -> Finding:
        """Compare the sizes that a recipe's network has."""
        found = recipes.recipe(recipe, "cifar10", "mocapsnet")
        usual = {
            name: option.default for name, option in signature(network_class(found.kind)).parameters.items()
        }
        hidden, last = ({**usual, **found.network}[name] for name in ("capsule_dim", "class_dim"))
        return Finding(hidden == last, ENOUGH, f"capsules of {hidden} numbers, those of classes have {last}")
