"""Every sentence of the paper that can be true or false, in plain words, with its rule."""

from collections.abc import Sequence

from mocapsnet.paper import own
from mocapsnet.paper.measured import Bench, Inverts, Near, Ratio, Slope, SlopeRatio
from mocapsnet.paper.printed import ABLATION, CHANCE, DEPTHS, NAMES, STEEPNESS, STEPS
from mocapsnet.paper.rules import AllOf, Better, Chance, Claim, Equals, No, Rising, Same, Trained


def momentum(dataset: str, blocks: int, routing: str = "rba", optimizer: str = "adam") -> Trained:
    """MoCapsNet's runs."""
    return Trained(dataset, "mocapsnet", blocks, routing, optimizer)


def residual(dataset: str, blocks: int, routing: str = "rba", optimizer: str = "adam") -> Trained:
    """ResCapsNet's runs."""
    return Trained(dataset, "rescapsnet", blocks, routing, optimizer)


def ablated(model: str, lr: float = 0.01, capsules: int = 32, batch: int = 128) -> Trained:
    """Table 5's runs."""
    return Trained("cifar10", model, 2, "rba", "ranger21", lr, capsules, batch)


def better_than_residual(dataset: str, blocks: int, *options: str) -> Better:
    """Momentum against residual, all else equal."""
    return Better(momentum(dataset, blocks, *options), residual(dataset, blocks, *options))


def baseline(model: str) -> Trained:
    """A baseline of table 3."""
    return Trained("cifar10", model, 0)


def both(what: str, metric: str, dataset: str = "cifar10") -> tuple[Bench, Bench]:
    """MoCapsNet and ResCapsNet as bench measures them."""
    return Bench(what, metric, dataset, "mocapsnet"), Bench(what, metric, dataset, "rescapsnet")


SETS = tuple(CHANCE)
# The depth at which MoCapsNet is best in tables 1 and 2.
BEST_DEPTH = {"mnist": 7, "svhn": 3, "cifar10": 1, "cifar100": 8}
BOTH = ("adam", "ranger21")
# The data sets of figure 3; SVHN's shapes are CIFAR-10's.
MEASURED = ("mnist", "cifar10")
# Of a sentence about every depth, those that are asked for.
SOME_DEPTHS = (1, 2, 4, 8)


def limit(routing: str, learns: int, fails: Sequence[int]) -> AllOf:
    """ResCapsNet learns CIFAR-10 with so many blocks, which are two layers each beside two, and no deeper."""
    deeper = [residual("cifar10", blocks, routing) for blocks in fails]
    return AllOf([Chance([residual("cifar10", learns, routing)], learns=True), Chance(deeper)])


def sentences() -> list[Claim]:
    """Every sentence found, in the paper's order."""
    peak, seconds = both("step", "peak_mib"), both("step", "seconds")
    kept = Bench("memory", "kept_mib", "cifar10", "mocapsnet")
    found = [
        Claim(
            "abstract, section 1",
            f"MoCapsNet is more accurate than the baseline on {NAMES[dataset]}",
            better_than_residual(dataset, blocks),
            own.beats(dataset, blocks),
        )
        for dataset, blocks in BEST_DEPTH.items()
    ]
    found += [
        Claim(
            "section 1",
            "The baseline values 99.36, 92.13 and 71.49 are what ResCapsNet reaches",
            own=own.baselines_are_the_best,
        ),
        Claim(
            "abstract",
            "MoCapsNet uses considerably less memory: its memory grows at most half as steeply",
            SlopeRatio(*peak, -1, 0.5),
        ),
        Claim(
            "section 1, 4.2", "A residual block adds about 185 MB", Slope(peak[1], 185), own.residual_block
        ),
        Claim(
            "section 1, 4.2", "A momentum block adds only about 4 MB", Slope(peak[0], 4), own.momentum_block
        ),
        Claim(
            "section 4.2",
            "That is 45 times the memory of a momentum block",
            SlopeRatio(peak[1], peak[0], 40, 50),
            own.times_a_momentum_block,
        ),
        Claim(
            "section 1",
            "Memory grows quadratically with the capsules of a layer: that of its matrices",
            own=own.quadratic_in_capsules,
        ),
        Claim("section 1", "A MoCapsNet of 40 layers trains", Chance([momentum("svhn", 20)], learns=True)),
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
            "section 4.2",
            "CapsNet without shortcuts is no better than chance at any depth",
            Chance([Trained(d, "capsnet", blocks) for d in SETS for blocks in (1, 4)]),
        ),
        Claim(
            "section 4.2",
            "ResCapsNet and MoCapsNet still learn with 8 blocks on MNIST, SVHN and CIFAR-10",
            Chance([which(d, 8) for d in SETS[:3] for which in (residual, momentum)], learns=True),
        ),
        Claim(
            "section 4.2",
            "On CIFAR-100 ResCapsNet learns nothing",
            Chance([residual("cifar100", n) for n in SOME_DEPTHS]),
        ),
        Claim(
            "section 4.2",
            "On CIFAR-100 MoCapsNet learns",
            Chance([momentum("cifar100", n) for n in SOME_DEPTHS], learns=True),
        ),
        Claim(
            "section 4.2",
            "On CIFAR-100 the deeper MoCapsNet is, the better",
            Rising([momentum("cifar100", n) for n in DEPTHS]),
            own.deeper("cifar100", 8),
        ),
        Claim(
            "section 4.2",
            "Depth helps on MNIST: 7 blocks beat 1",
            Better(momentum("mnist", 7), momentum("mnist", 1)),
            own.deeper("mnist", 7),
        ),
        Claim(
            "section 4.2",
            "Depth helps on SVHN: 3 blocks beat 1",
            Better(momentum("svhn", 3), momentum("svhn", 1)),
            own.deeper("svhn", 3),
        ),
        Claim(
            "section 4.2",
            "MoCapsNet and ResCapsNet are almost the same on MNIST",
            AllOf([Same(momentum("mnist", n), residual("mnist", n)) for n in (1, 4, 7)]),
        ),
        Claim(
            "section 4.2",
            "CIFAR-10 is the only data set where MoCapsNet gains nothing from depth",
            AllOf(
                [
                    *(Better(momentum(d, n), momentum(d, 1)) for d, n in BEST_DEPTH.items() if n > 1),
                    *(No(Better(momentum("cifar10", n), momentum("cifar10", 1))) for n in (3, 5, 8)),
                ]
            ),
            own.best_depths,
        ),
        Claim(
            "section 4.2",
            "On CIFAR-10 one block beats eight",
            Better(momentum("cifar10", 1), momentum("cifar10", 8)),
        ),
        Claim(
            "section 4.2",
            "A second convolution improves CapsNet on CIFAR-10",
            Better(baseline("capsnet-2conv"), baseline("capsnet-1conv")),
        ),
        Claim(
            "section 4.2",
            "An ensemble of four improves it again",
            Better(baseline("capsnet-2conv-ensemble"), baseline("capsnet-2conv")),
        ),
        Claim(
            "section 4.2",
            "MoCapsNet with one block beats that ensemble",
            Better(momentum("cifar10", 1), baseline("capsnet-2conv-ensemble")),
        ),
        Claim(
            "section 4.2",
            "ResCapsNet with one block is about as good as that ensemble",
            Same(residual("cifar10", 1), baseline("capsnet-2conv-ensemble")),
        ),
        Claim(
            "section 4.2",
            "Seven models of Sabour et al. reach an error of 10.6 % on CIFAR-10",
            Equals(Trained("cifar10", "sabour-ensemble", 0, "leaky-rba"), 89.4),
        ),
        Claim(
            "section 4.2",
            "With Ranger21, three blocks beat one and beat ResCapsNet",
            AllOf(
                [
                    Better(
                        momentum("cifar10", 3, "rba", "ranger21"), momentum("cifar10", 1, "rba", "ranger21")
                    ),
                    better_than_residual("cifar10", 3, "rba", "ranger21"),
                ]
            ),
        ),
        Claim(
            "section 4.2",
            "With SDA, five blocks beat one",
            Better(momentum("cifar10", 5, "sda"), momentum("cifar10", 1, "sda")),
        ),
        Claim(
            "section 4.2",
            "Momentum improves on ResCapsNet in all cases of table 3",
            AllOf(
                [
                    better_than_residual("cifar10", n, r, o)
                    for n in (1, 3, 5)
                    for o in BOTH
                    for r in ("rba", "sda")
                ]
            ),
            own.momentum_in_all_cases,
        ),
        Claim("table 4", "The caption: table 4 has 1 to 5 blocks", own=own.caption_of_table_4),
        Claim(
            "section 4.2",
            "With one block both take about the same memory",
            Ratio(*peak, 1, 0.95, 1.05),
            own.same_at_one,
        ),
        Claim(
            "section 4.2",
            "With 8 blocks MoCapsNet takes 500 MB less on CIFAR-10",
            Ratio(*peak, 8, 0.0, 0.95),
            own.saved_at_eight("cifar10", 500),
        ),
        Claim(
            "section 4.2",
            "With 8 blocks MoCapsNet takes 1500 MB less on SVHN",
            Ratio(*both("step", "peak_mib", "svhn"), 8, 0.0, 0.9),
            own.saved_at_eight("svhn", 1500),
        ),
        Claim(
            "section 4.2",
            "CapsNet and ResCapsNet take the same memory",
            AllOf([Ratio(peak[1]._replace(model="capsnet"), peak[1], n, 0.99, 1.01) for n in DEPTHS]),
        ),
        Claim("section 4.2", "20 blocks reach a stable 91.67 % on SVHN", Equals(momentum("svhn", 20), 91.67)),
        Claim(
            "section 4.2",
            "Training time grows about 1.8 times as steeply with momentum",
            AllOf([SlopeRatio(*both("step", "seconds", dataset), 1.7, 1.9) for dataset in MEASURED]),
            own.ratio_of_times,
        ),
        Claim(
            "section 4.2",
            "Inference is at most about 5 % slower with momentum",
            AllOf([Ratio(*both("inference", "seconds", dataset), 8, 0.0, 1.05) for dataset in MEASURED]),
        ),
        Claim(
            "section 4.2, figure 4",
            "On CIFAR-10 a residual block adds 174.2 MB",
            Slope(peak[1], 174.2),
            own.residual_steepness,
        ),
        Claim(
            "section 4.2, figure 4",
            "On CIFAR-10 a momentum block adds 3.643 MB",
            Slope(peak[0], 3.643),
            own.momentum_steepness,
        ),
        *(
            Claim(
                "section 4.2, figure 4",
                f"On CIFAR-10 a {what} block adds {value} s to an epoch",
                Slope(bench, value / STEPS),
            )
            for what, bench, value in zip(
                ("residual", "momentum"), reversed(seconds), STEEPNESS["seconds"].values(), strict=True
            )
        ),
        Claim(
            "section 4.2, 5",
            "Memory grows almost 48 times less steeply with momentum",
            SlopeRatio(peak[1], peak[0], 45, 51),
            own.ratio_of_memories,
        ),
        Claim(
            "section 4.2, 5",
            "Batch size and learning rate matter little",
            AllOf(
                [
                    Same(ablated(model, *key), ablated(model))
                    for model in ("rescapsnet", "mocapsnet")
                    for key in ABLATION
                    if key[1] == 32 and key != (0.01, 32, 128)
                ]
            ),
            own.batch_and_rate_matter_little,
        ),
        Claim(
            "section 4.2",
            "In table 5 MoCapsNet is better in all cases but a rate of 0.1",
            AllOf(
                [
                    *(
                        Better(ablated("mocapsnet", *key), ablated("rescapsnet", *key))
                        for key in ABLATION
                        if key[0] < 0.1
                    ),
                    Better(ablated("rescapsnet", 0.1), ablated("mocapsnet", 0.1)),
                ]
            ),
            own.momentum_in_table_5,
        ),
        Claim(
            "section 4.2",
            "64 capsules improve ResCapsNet",
            Better(ablated("rescapsnet", capsules=64), ablated("rescapsnet")),
            own.more_capsules(0),
        ),
        Claim(
            "section 5",
            "64 capsules improve MoCapsNet",
            Better(ablated("mocapsnet", capsules=64), ablated("mocapsnet")),
            own.more_capsules(1),
        ),
        Claim(
            "section 4.2",
            "ResCapsNet takes 14.6 GB with 64 capsules",
            Near(peak[1]._replace(capsules=64), 2, 14600),
        ),
        Claim("section 4.2", "ResCapsNet takes 7.9 GB with 32 capsules", Near(peak[1], 2, 7900)),
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
            AllOf([Better(momentum(d, n), momentum(d, 1)) for d, n in BEST_DEPTH.items() if n > 1]),
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
                    for o in BOTH
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
    return found
