"""What section 4.2 of the paper says of its results that can be true or false, with its rules."""

import math

from mocapsnet.paper import own, own_costs
from mocapsnet.paper.measured import Difference, Ratio, Read, Slope, SlopeRatio
from mocapsnet.paper.printed import ABLATION, DEPTHS, SETS, STEEPNESS, STEPS, TEST_IMAGES
from mocapsnet.paper.rules import AllOf, Claim
from mocapsnet.paper.subjects import (
    BEST_DEPTH,
    OPTIMIZERS,
    SOME_DEPTHS,
    TIMED,
    ablated,
    baseline,
    better_than_residual,
    both,
    momentum,
    residual,
)
from mocapsnet.paper.trained import Better, Chance, CostsMore, Equals, NoBetter, Rising, Same, Trained


def saved(dataset: str, size: float) -> Difference:
    """ResCapsNet takes so many MB more than MoCapsNet with 8 blocks, within five per cent."""
    less, more = both("step", "peak_mib", dataset)
    return Difference(more, less, 8, 0.95 * size, 1.05 * size)


def batches(images: int) -> int:
    """Steps of 128 images."""
    return math.ceil(images / 128)


def results() -> list[Claim]:
    """Every sentence of it, in the paper's order."""
    peak, seconds = both("step", "peak_mib"), both("step", "seconds")
    return [
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
            AllOf([Same(momentum("mnist", n), residual("mnist", n), 0.1) for n in (1, 4, 7)]),
        ),
        Claim(
            "section 4.2",
            "CIFAR-10 is the only data set where MoCapsNet gains nothing from depth",
            AllOf(
                [
                    *(Better(momentum(d, n), momentum(d, 1)) for d, n in BEST_DEPTH.items() if n > 1),
                    *(NoBetter(momentum("cifar10", n), momentum("cifar10", 1)) for n in (3, 5, 8)),
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
                    for o in OPTIMIZERS
                    for r in ("rba", "sda")
                ]
            ),
            own.momentum_in_all_cases,
        ),
        Claim("table 4", "The caption: table 4 has 1 to 5 blocks", own=own_costs.caption_of_table_4),
        Claim(
            "section 4.2",
            "With one block both take about the same memory",
            Ratio(*peak, 1, 0.95, 1.05),
            own_costs.same_at_one,
        ),
        Claim(
            "section 4.2",
            "With 8 blocks MoCapsNet takes 500 MB less on CIFAR-10",
            saved("cifar10", 500),
            own_costs.saved_at_eight("cifar10", 500),
        ),
        Claim(
            "section 4.2",
            "With 8 blocks MoCapsNet takes 1500 MB less on SVHN",
            saved("svhn", 1500),
            own_costs.saved_at_eight("svhn", 1500),
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
            AllOf([SlopeRatio(*both("step", "seconds", dataset), 1.7, 1.9) for dataset in TIMED]),
            own_costs.ratio_of_times,
        ),
        Claim(
            "section 4.2",
            "Inference is at most about 5 % slower with momentum",
            AllOf([Ratio(*both("inference", "seconds", dataset), 8, 0.0, 1.05) for dataset in TIMED]),
        ),
        Claim(
            "section 4.2",
            "Inference is at most 0.5 s slower: of a whole test set, SVHN's, the largest, with 8 blocks",
            Difference(
                *both("inference", "seconds", "svhn"), 8, -math.inf, 0.5 / batches(TEST_IMAGES["svhn"])
            ),
        ),
        Claim(
            "section 4.2, figure 4",
            "On CIFAR-10 a residual block adds 174.2 MB",
            Slope(peak[1], 174.2),
            own_costs.residual_steepness,
        ),
        Claim(
            "section 4.2, figure 4",
            "On CIFAR-10 a momentum block adds 3.643 MB",
            Slope(peak[0], 3.643),
            own_costs.momentum_steepness,
        ),
        *(
            Claim(
                "section 4.2, figure 4",
                f"On CIFAR-10 a {what} block adds {value} s to an epoch",
                Slope(bench, value, STEPS),
            )
            for what, bench, value in zip(
                ("residual", "momentum"), reversed(seconds), STEEPNESS["seconds"].values(), strict=True
            )
        ),
        Claim(
            "section 4.2, 5",
            "Memory grows almost 48 times less steeply with momentum",
            SlopeRatio(peak[1], peak[0], 45, 51),
            own_costs.ratio_of_memories,
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
            "A rate of 0.1 costs MoCapsNet more than ResCapsNet",
            CostsMore(*((ablated(model), ablated(model, 0.1)) for model in ("mocapsnet", "rescapsnet"))),
            own.high_rate_costs_momentum,
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
            Read(peak[1]._replace(capsules=64), 2),
        ),
        Claim("section 4.2", "ResCapsNet takes 7.9 GB with 32 capsules", Read(peak[1], 2)),
    ]
