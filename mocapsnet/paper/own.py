"""What the paper's own numbers say about its sentences: nothing here needs a run."""

from collections.abc import Callable
from typing import NamedTuple

from mocapsnet.paper import printed
from mocapsnet.paper.printed import ACCURACY, CHANCE, DEPTHS, NAMES, PAIRS, counted
from mocapsnet.paper.statistics import welch_printed


class Own(NamedTuple):
    """Whether the tables agree with a sentence, and the figures."""

    agrees: bool
    told: str


Check = Callable[[], Own]


def row(dataset: str, model: str) -> tuple[tuple[float, float | None], ...]:
    """Mean and standard deviation at 1 to 8 blocks, from table 1 or 2."""
    return next(cells for (_, d, m), cells in ACCURACY.items() if (d, m) == (dataset, model))


def mean(dataset: str, model: str, blocks: int) -> float:
    """One accuracy of table 1 or 2."""
    return row(dataset, model)[blocks - 1][0]


def best(dataset: str, model: str) -> tuple[float, int]:
    """The best accuracy of table 1 or 2, and its depth."""
    return max((value, -blocks) for blocks, (value, _) in zip(DEPTHS, row(dataset, model), strict=True))


def beats(dataset: str, blocks: int) -> Check:
    """MoCapsNet is above ResCapsNet at a depth; says whether the printed spread lets that be chance."""

    def check() -> Own:
        (a, a_std), (b, b_std) = (row(dataset, model)[blocks - 1] for model in ("mocapsnet", "rescapsnet"))
        told = f"{a:.2f} against {b:.2f} at {counted(blocks)}"
        if a_std is not None and b_std is not None:
            told += f", p {welch_printed(a - b, [(a_std, 3), (b_std, 3)]):.2g} from the printed spread"
        return Own(a > b, told)

    return check


def deeper(dataset: str, blocks: int) -> Check:
    """MoCapsNet at a depth is above MoCapsNet with one block."""

    def check() -> Own:
        (a, a_std), (b, b_std) = (row(dataset, "mocapsnet")[n - 1] for n in (blocks, 1))
        p = welch_printed(a - b, [(a_std or 0, 3), (b_std or 0, 3)])
        told = f"{a:.2f} at {counted(blocks)}, {b:.2f} at 1, p {p:.2g} from the printed spread"
        return Own(a > b, told)

    return check


def baselines_are_the_best() -> Own:
    """The introduction's baselines are ResCapsNet's best."""
    told, agrees = [], True
    for dataset, value in {"mnist": 99.36, "svhn": 92.13, "cifar10": 71.49}.items():
        top, depth = best(dataset, "rescapsnet")
        agrees &= top <= value
        told.append(f"{NAMES[dataset]} {value}, ResCapsNet has {top} at {counted(-depth)}")
    return Own(agrees, "; ".join(told))


def best_depths() -> Own:
    """CIFAR-10 alone gains nothing from depth."""
    depths = {dataset: -best(dataset, "mocapsnet")[1] for dataset in CHANCE}
    told = ", ".join(f"{NAMES[dataset]} {blocks}" for dataset, blocks in depths.items())
    return Own([d for d, blocks in depths.items() if blocks == 1] == ["cifar10"], f"best depths: {told}")


def deeper_in_most_cases() -> Own:
    """On most data sets the best MoCapsNet has more than one block."""
    depths = [-best(dataset, "mocapsnet")[1] for dataset in CHANCE]
    rows = [cells for (_, _, model), cells in ACCURACY.items() if model == "mocapsnet"]
    wins = [value > cells[0][0] for cells in rows for value, _ in cells[1:]]
    deep = sum(blocks > 1 for blocks in depths)
    told = f"the best depth is more than one block on {deep} of {len(depths)} data sets; deeper is better in "
    return Own(2 * deep > len(depths), told + f"{sum(wins)} of {len(wins)} cells of tables 1 and 2")


def gains_of_momentum() -> Own:
    """MoCapsNet at its best depth is above ResCapsNet there, on every data set."""
    gains = {}
    for dataset in CHANCE:
        value, depth = best(dataset, "mocapsnet")
        gains[dataset] = value - mean(dataset, "rescapsnet", -depth)
    told = ", ".join(f"{NAMES[dataset]} {gain:+.2f}" for dataset, gain in gains.items())
    return Own(min(gains.values()) > 0, f"points at MoCapsNet's best depth: {told}")


def nothing_is_augmented(pad: int = 2) -> Own:
    """Random crops of a padded image show it at one place."""
    places = (2 * pad + 1) ** 2
    return Own(places == 1, f"random crops of images padded by {pad}, in the same paragraph: {places} places")


def momentum_in_all_cases() -> Own:
    """MoCapsNet is above ResCapsNet in every pair of table 3."""
    pairs = [pair for rows in PAIRS.values() for pair in rows.values()]
    losses = sum(mo < res for res, mo in pairs)
    return Own(losses == 0, f"MoCapsNet loses {losses} of the {len(pairs)} pairs of table 3")


def momentum(blocks: int, optimizer: str, routing: str) -> float:
    """MoCapsNet's accuracy in table 3."""
    return PAIRS[blocks][optimizer, routing][1]


def ranger_when_deeper() -> Own:
    """Ranger21 is above Adam for MoCapsNets of 3 and 5 blocks."""
    pairs = [
        (momentum(blocks, "ranger21", routing), momentum(blocks, "adam", routing), routing.upper(), blocks)
        for blocks in (3, 5)
        for routing in ("rba", "sda")
    ]
    lost = [f"{a} against {b} ({routing}, {counted(blocks)})" for a, b, routing, blocks in pairs if a < b]
    return Own(not lost, f"Ranger21 is below Adam in {len(lost)} of {len(pairs)}: {', '.join(lost)}")


def sda_is_better() -> Own:
    """SDA is above RBA for MoCapsNets."""
    pairs = [(blocks, optimizer) for blocks in PAIRS for optimizer in ("adam", "ranger21")]
    lost = [pair for pair in pairs if momentum(*pair, "sda") < momentum(*pair, "rba")]
    told = ", ".join(f"{optimizer.capitalize()} {counted(blocks)}" for blocks, optimizer in lost)
    return Own(not lost, f"SDA is below RBA in {len(lost)} of {len(pairs)} pairs of table 3: {told}")


def ensembles_on_three_sets() -> Own:
    """Table 3 has ensembles on MNIST, SVHN and CIFAR-10."""
    sets = {cell.dataset for cell in printed.cells() if "ensemble" in cell.model}
    told = f"its only rows of ensembles are on {', '.join(NAMES[name] for name in sorted(sets))}"
    return Own({"mnist", "svhn", "cifar10"} <= sets, told)


def depth_limit(layers: int) -> Check:
    """No residual network with more layers learns."""

    def check() -> Own:
        deep = 2 * max(DEPTHS) + 2
        found = ", ".join(f"{NAMES[d]} {mean(d, 'rescapsnet', 8):.2f}" for d in ("mnist", "svhn", "cifar10"))
        return Own(deep <= layers, f"tables 1 and 2 have RBA with {deep} capsule layers: {found}")

    return check


def ablation(lr: float = 0.01, capsules: int = 32, batch: int = 128) -> tuple[float, float]:
    """ResCapsNet's and MoCapsNet's accuracy in table 5."""
    return printed.ABLATION[lr, capsules, batch]


def momentum_in_table_5() -> Own:
    """MoCapsNet is above ResCapsNet everywhere but at a rate of 0.1."""
    lost = [key for key, (res, mo) in printed.ABLATION.items() if mo < res]
    return Own(
        lost == [(0.1, 32, 128)], f"MoCapsNet is above in {len(printed.ABLATION) - len(lost)} of 6 pairs"
    )


def batch_and_rate_matter_little() -> Own:
    """No batch size or learning rate moves an accuracy by more than momentum does there."""
    base = ablation()
    others = [pair for (_, capsules, _), pair in printed.ABLATION.items() if capsules == 32]
    most = max(abs(b - a) for pair in others for a, b in zip(base, pair, strict=True))
    gain = base[1] - base[0]
    return Own(most <= gain, f"the largest change is {most:.2f} points; momentum's gain is {gain:.2f}")


def high_rate_costs_momentum() -> Own:
    """A rate of 0.1 loses more against 0.01 with momentum than without."""
    res, mo = (high - usual for high, usual in zip(ablation(lr=0.1), ablation(), strict=True))
    return Own(mo < res, f"{mo:+.2f} points with momentum, {res:+.2f} without")


def more_capsules(index: int) -> Check:
    """64 capsules are better than 32."""

    def check() -> Own:
        few, many = ablation()[index], ablation(capsules=64)[index]
        return Own(many > few, f"{few} with 32, {many} with 64")

    return check


def revnet_at_gamma_one() -> Own:
    """At gamma 1 the momentum rule is that of a RevNet."""
    weight = 1 - 1.0
    return Own(
        weight > 0, f"equation 3 gives f the weight 1 - γ = {weight:g} at γ = 1: no layer has any effect"
    )


def inverts_at_any_gamma() -> Own:
    """At both ends of [0, 1] two velocities stay two, so that the step can be undone."""
    f, velocities = 3.0, (5.0, 7.0)
    after = {gamma: {gamma * v + (1 - gamma) * f for v in velocities} for gamma in (0.0, 1.0)}
    lost = [f"γ = {gamma:g}" for gamma, found in after.items() if len(found) < len(velocities)]
    told = (
        f"equation 3 with f 3 takes v 5 and v 7 to one velocity at {', '.join(lost)}; equation 6 divides by γ"
    )
    return Own(not lost, told)


def residual_at_gamma_zero() -> Own:
    """At gamma 0 the momentum rule is the residual one, whatever x, v and f."""
    x, velocity, f, gamma = 2.0, 5.0, 3.0, 0.0
    momentum = x + (gamma * velocity + (1 - gamma) * f)
    return Own(
        momentum == x + f, f"equations 3 and 4 with x 2, v 5, f 3: {momentum:g}; equation 2: {x + f:g}"
    )


def figure_2_is_the_equations() -> Own:
    """Figure 2's second addition is that of equation 2."""
    x, first, second = 2.0, 3.0, 7.0
    drawn, written = x + second, (x + first) + second
    return Own(
        drawn == written, f"x 2, f1 3, f2 7: the figure gives {drawn:g}, equation 2 twice gives {written:g}"
    )
