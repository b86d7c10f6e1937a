"""Every sentence of the paper that can be true or false, in plain words, with its rule."""

from collections.abc import Sequence

from mocapsnet.paper import own, own_costs
from mocapsnet.paper.built import SameLength
from mocapsnet.paper.measured import Curve, Inverts, Outweighs, Slope, SlopeRatio
from mocapsnet.paper.printed import NAMES
from mocapsnet.paper.rules import AllOf, Claim, MostOf
from mocapsnet.paper.section_4 import results
from mocapsnet.paper.subjects import BEST_DEPTH, OPTIMIZERS, better_than_residual, both, momentum, residual
from mocapsnet.paper.trained import Better, Chance


def limit(routing: str, learns: int, fails: Sequence[int]) -> AllOf:
    """ResCapsNet learns CIFAR-10 with so many blocks, which are two layers each beside two, and no deeper."""
    deeper = [residual("cifar10", blocks, routing) for blocks in fails]
    return AllOf([Chance([residual("cifar10", learns, routing)], learns=True), Chance(deeper)])


def opening() -> list[Claim]:
    """From the abstract to section 4.1."""
    peak, seconds = both("step", "peak_mib"), both("step", "seconds")
    kept = Curve("memory", "kept_mib", "cifar10", "mocapsnet")
    return [
        *(
            Claim(
                "abstract, section 1",
                f"MoCapsNet is more accurate than the baseline on {NAMES[dataset]}",
                better_than_residual(dataset, blocks),
                own.beats(dataset, blocks),
            )
            for dataset, blocks in BEST_DEPTH.items()
        ),
        Claim(
            "section 1",
            "The baseline values 99.36, 92.13 and 71.49 are what ResCapsNet reaches",
            own=own.baselines_are_the_best,
        ),
        Claim(
            "abstract",
            "MoCapsNet uses considerably less memory: the peak of a step grows at most half as steeply",
            SlopeRatio(*peak, -1, 0.5),
        ),
        Claim(
            "abstract",
            "MoCapsNet uses considerably less memory: what waits for the backward pass grows at most half as "
            "steeply",
            SlopeRatio(kept, kept._replace(model="rescapsnet"), -1, 0.5),
        ),
        Claim(
            "section 1, 4.2",
            "A residual block adds about 185 MB",
            Slope(peak[1], 185),
            own_costs.residual_block,
        ),
        Claim(
            "section 1, 4.2",
            "A momentum block adds only about 4 MB",
            Slope(peak[0], 4),
            own_costs.momentum_block,
        ),
        Claim(
            "section 4.2",
            "That is 45 times the memory of a momentum block",
            SlopeRatio(peak[1], peak[0], 40, 50),
            own_costs.times_a_momentum_block,
        ),
        Claim(
            "section 1",
            "Memory grows quadratically with the capsules of a layer: that of its matrices",
            own=own_costs.quadratic_in_capsules,
        ),
        Claim(
            "section 1", "Memory is proportional to the number of weights", own=own_costs.memory_is_of_weights
        ),
        Claim(
            "section 1",
            "A MoCapsNet of 40 layers trains: on CIFAR-10",
            Chance([momentum("cifar10", 20)], learns=True),
        ),
        Claim(
            "section 1",
            "Momentum works with other routings: MoCapsNet learns CIFAR-10 with SDA and EM too",
            Chance([momentum("cifar10", n, r) for r in ("rba", "sda", "em") for n in (1, 3, 5)], learns=True),
        ),
        Claim(
            "section 1",
            "MoCapsNet trains at almost any depth: with 50 blocks",
            Chance([momentum(dataset, 50) for dataset in ("svhn", "cifar10")], learns=True),
        ),
        Claim("section 2.2", "Momentum at γ = 0 is the residual network", own=own.residual_at_gamma_zero),
        Claim("section 2.2", "Momentum at γ = 1 is a RevNet", own=own.revnet_at_gamma_one),
        Claim(
            "section 2.3",
            "ResCapsNet trains up to 11 layers with RBA, not deeper",
            limit("rba", 4, (5, 6, 20)),
            own.depth_limit(11),
        ),
        Claim(
            "section 2.3",
            "ResCapsNet trains up to 16 layers with SDA and EM, not deeper",
            AllOf([limit(routing, 7, (8, 20)) for routing in ("sda", "em")]),
        ),
        Claim(
            "section 3.1", "Momentum blocks are invertible at every γ in [0, 1]", own=own.inverts_at_any_gamma
        ),
        Claim("section 3.1", "Activations of 40 layers come back from the last state alone", Inverts(40)),
        Claim(
            "section 3.1",
            "Activations of blocks need not be saved: what waits for the backward pass grows by no more than "
            "a hundredth of what it does when all is stored",
            SlopeRatio(kept, kept._replace(model="mocapsnet-stored"), -0.01, 0.01),
        ),
        Claim(
            "section 3.1",
            "Figure 2 shows the forward rules of equations 2 to 4",
            own=own.figure_2_is_the_equations,
        ),
        Claim(
            "section 3.1, 5",
            "Memory shrinks at much larger rates than training time grows: a block's memory by at least "
            "twice the factor of its time",
            Outweighs((peak[1], peak[0]), seconds, 2),
            own_costs.memory_outweighs_time,
        ),
        Claim("section 4.1", "No data augmentation was applied", own=own.nothing_is_augmented),
        Claim("section 4.1", "The capsules of all layers have the same length", SameLength()),
    ]


def conclusions() -> list[Claim]:
    """Section 5, but for what section 4.2 says too."""
    return [
        Claim(
            "section 5",
            "The new forward rule gives much better results, on all four data sets",
            AllOf([better_than_residual(dataset, blocks) for dataset, blocks in BEST_DEPTH.items()]),
            own.gains_of_momentum,
        ),
        Claim(
            "section 5",
            "MoCapsNet beats ensembles on MNIST, SVHN and CIFAR-10",
            own=own.ensembles_on_three_sets,
        ),
        Claim(
            "section 5",
            "Deeper networks are better than flat ones in most cases",
            MostOf([Better(momentum(d, n), momentum(d, 1)) for d, n in BEST_DEPTH.items() if n > 1]),
            own.deeper_in_most_cases,
        ),
        Claim(
            "section 5",
            "Ranger21 is better than Adam for deeper MoCapsNets",
            AllOf(
                [
                    Better(momentum("cifar10", n, r, "ranger21"), momentum("cifar10", n, r))
                    for n in (3, 5)
                    for r in ("rba", "sda")
                ]
            ),
            own.ranger_when_deeper,
        ),
        Claim(
            "section 5",
            "SDA is more accurate than RBA",
            AllOf(
                [
                    Better(momentum("cifar10", n, "sda", o), momentum("cifar10", n, "rba", o))
                    for n in (1, 3, 5)
                    for o in OPTIMIZERS
                ]
            ),
            own.sda_is_better,
        ),
        Claim(
            "section 5",
            "The best MoCapsNet on CIFAR-10 has 5 blocks and SDA: it beats one block with RBA",
            Better(momentum("cifar10", 5, "sda"), momentum("cifar10", 1)),
        ),
    ]


def sentences() -> list[Claim]:
    """Every sentence found, in the paper's order."""
    return [*opening(), *results(), *conclusions()]
