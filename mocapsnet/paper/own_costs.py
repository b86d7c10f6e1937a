"""What the paper's own numbers say about its sentences on memory and time."""

from mocapsnet.paper.own import Check, Own
from mocapsnet.paper.printed import DEPTHS, MEMORY, NAMES, STEEPNESS
from mocapsnet.paper.statistics import line

# Of ResCapsNet for CIFAR-10 with 1 and with 8 blocks, without biases.
WEIGHTS = 13_494_016, 14_411_520


def memory_slope(dataset: str, model: str, last: int = 8) -> float:
    """MB per block, the line through table 4's row up to a depth."""
    return line([*DEPTHS][:last], MEMORY[dataset, model][:last]).slope


def quadratic_in_capsules() -> Own:
    """A block of twice the capsules has four times the matrices."""
    small, large = (2 * capsules**2 * 8 * 8 for capsules in (32, 64))
    return Own(large == 4 * small, f"a block of 32 capsules has {small:,} weights, one of 64 {large:,}")


def memory_is_of_weights() -> Own:
    """A residual block adds the share of memory that it adds of weights."""
    memory, (few, many) = MEMORY["cifar10", "rescapsnet"], WEIGHTS
    grown, due = memory[7] / memory[0] - 1, many / few - 1
    told = "from 1 to 8 residual blocks on CIFAR-10 "
    told += f"weights grow by {100 * due:.1f} %, table 4's memory by {100 * grown:.1f}"
    return Own(abs(grown - due) <= 0.1 * due, told)


def about(value: float, found: float, what: str) -> Own:
    """A rounded number is within five per cent of what the tables give."""
    return Own(abs(value - found) <= 0.05 * abs(found), f"{what}: {found:.4g}")


def residual_block() -> Own:
    """A residual block adds 185 MB."""
    slopes = {dataset: memory_slope(dataset, "rescapsnet") for dataset in ("mnist", "cifar10", "svhn")}
    told = ", ".join(f"{NAMES[dataset]} {slope:.1f}" for dataset, slope in slopes.items())
    return about(185, sum(slopes.values()) / 3, f"table 4's rows fit {told}; mean")


def momentum_block() -> Own:
    """A momentum block adds 4 MB, on every data set."""
    slopes = {dataset: memory_slope(dataset, "mocapsnet") for dataset in ("mnist", "cifar10", "svhn")}
    told = ", ".join(f"{NAMES[dataset]} {slope:.1f}" for dataset, slope in slopes.items())
    return Own(all(round(slope) == 4 for slope in slopes.values()), f"table 4's rows fit {told}")


def times_a_momentum_block() -> Own:
    """A residual block adds 45 times what a momentum block adds, on every data set."""
    ratios = {
        dataset: memory_slope(dataset, "rescapsnet") / memory_slope(dataset, "mocapsnet")
        for dataset in ("mnist", "cifar10", "svhn")
    }
    told = ", ".join(f"{NAMES[dataset]} {ratio:.1f}" for dataset, ratio in ratios.items())
    return Own(all(abs(ratio - 45) < 4.5 for ratio in ratios.values()), f"table 4's rows fit {told} times")


def residual_steepness() -> Own:
    """CIFAR-10's residual row is a line of 174.2 MB per block."""
    whole, less = memory_slope("cifar10", "rescapsnet"), memory_slope("cifar10", "rescapsnet", 7)
    told = f"table 4's row fits {whole:.1f}, and {less:.1f} without its last cell"
    return Own(round(whole, 1) == 174.2, told)


def momentum_steepness() -> Own:
    """CIFAR-10's momentum row is a line of 3.643 MB per block."""
    cifar, svhn = memory_slope("cifar10", "mocapsnet"), memory_slope("svhn", "mocapsnet")
    return Own(round(cifar, 3) == 3.643, f"CIFAR-10's row fits {cifar:.3f}; SVHN's fits {svhn:.3f}")


def saved_at_eight(dataset: str, value: int) -> Check:
    """So many MB less at 8 blocks."""

    def check() -> Own:
        saved = MEMORY[dataset, "rescapsnet"][7] - MEMORY[dataset, "mocapsnet"][7]
        return about(value, saved, f"table 4 at 8 blocks, {NAMES[dataset]}")

    return check


def same_at_one() -> Own:
    """Both networks take roughly the same memory with one block."""
    ratios = [MEMORY[d, "mocapsnet"][0] / MEMORY[d, "rescapsnet"][0] for d in ("mnist", "cifar10", "svhn")]
    told = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    return Own(all(abs(ratio - 1) < 0.05 for ratio in ratios), f"MoCapsNet over ResCapsNet: {told}")


def caption_of_table_4() -> Own:
    """Table 4 goes from 1 to 5 blocks."""
    return Own(len(MEMORY["mnist", "mocapsnet"]) == 5, f"it has {len(MEMORY['mnist', 'mocapsnet'])} depths")


def ratio_of_times() -> Own:
    """A momentum block takes 1.8 times as long."""
    times = STEEPNESS["seconds"]
    return about(1.8, times["mocapsnet"] / times["others"], "figure 4's legend, 1.882 over 1.031")


def ratio_of_memories() -> Own:
    """Memory is 48 times less steep."""
    sizes = STEEPNESS["memory"]
    return about(48, sizes["others"] / sizes["mocapsnet"], "figure 4's legend, 174.2 over 3.643")


def memory_outweighs_time() -> Own:
    """Memory is flatter by a larger factor than time is steeper."""
    memory, time = (STEEPNESS[name] for name in ("memory", "seconds"))
    flatter, steeper = memory["others"] / memory["mocapsnet"], time["mocapsnet"] / time["others"]
    told = f"figure 4's legend: memory {flatter:.1f} times less steep, time {steeper:.2f} times steeper"
    return Own(flatter > steeper, told)
