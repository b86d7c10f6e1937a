"""Figures 1 to 4 of the paper, redrawn: two of the network, two from what bench measured."""

from collections.abc import Callable

from mocapsnet.paper.drawing import box, chart, edge, key, plus, svg, text
from mocapsnet.paper.evidence import Evidence
from mocapsnet.paper.printed import NAMES, STEEPNESS, STEPS
from mocapsnet.paper.statistics import line

NETWORKS = ("capsnet", "rescapsnet", "mocapsnet")
PANELS = (
    ("memory, MiB", "step", "peak_mib", 1.0),
    ("training step, ms", "step", "seconds", 1e3),
    ("inference of a batch, ms", "inference", "seconds", 1e3),
    ("kept for backward, MiB", "memory", "kept_mib", 1.0),
)


def figure_1(_: Evidence) -> str:
    """The network, from image to class and reconstruction."""
    stages = [
        ("Conv 9x9 + ReLU", "open"),
        ("PrimaryCapsules", "open"),
        ("CapsLayer 1", "open"),
        ("n momentum blocks", "box"),
        ("CapsLayer 2", "open"),
    ]
    shapes = ["256 channels", "8-D capsules", "32 of 8-D", "32 of 8-D", "K of 16-D"]
    parts = [text(180, 22, "image", "big"), edge("M180 28V42")]
    for number, ((words, kind), shape) in enumerate(zip(stages, shapes, strict=True)):
        y = 58 + 50 * number
        parts += [box(180, y, words, kind=kind), text(290, y + 4, shape, "soft", "start")]
        parts.append(edge(f"M180 {y + 14}V{y + 34}") if number < 4 else "")
    parts += [
        edge("M150 272C110 285 90 290 90 306"),
        edge("M210 272C240 282 250 288 250 306"),
        box(90, 322, "length", 90),
        box(250, 322, "decoder", 120, "box"),
        edge("M90 336V360"),
        edge("M250 336V360"),
        text(90, 376, "class", "big"),
        text(250, 376, "reconstruction", "big"),
    ]
    return svg(380, 390, "Figure 1: the network", [part for part in parts if part])


def figure_2(_: Evidence) -> str:
    """A residual and a momentum block, as equations 2 to 4 have them."""
    parts = [text(110, 20, "ResCapsNet", "big"), text(110, 48, "x_n")]
    for number, name in enumerate(("f_caps1", "f_caps2")):
        y = 102 + 178 * number
        parts += [
            edge(f"M110 {y - 46}V{y - 16}"),
            box(110, y, name, 90, "box"),
            edge(f"M110 {y + 14}V{y + 47}"),
            plus(110, y + 59),
            edge(f"M110 {y + 70}V{y + 106}"),
            edge(f"M110 {y - 38}C20 {y - 38} 20 {y + 59} 97 {y + 59}"),
            text(110, y + 122, f"x_n+{number + 1}"),
        ]
    parts += [text(340, 20, "MoCapsNet", "big"), text(340, 48, "x_n"), text(450, 48, "v_n")]
    for number, name in enumerate(("f_caps1", "f_caps2")):
        y = 102 + 232 * number
        parts += [
            edge(f"M340 {y - 46}V{y - 16}"),
            box(340, y, name, 90, "box"),
            edge(f"M340 {y + 14}V{y + 47}"),
            text(332, y + 32, "1 − γ", "soft", "end"),
            plus(340, y + 59),
            edge(f"M340 {y + 70}V{y + 107}"),
            plus(340, y + 119),
            edge(f"M340 {y + 130}V{y + 160}"),
            edge(f"M340 {y - 38}C215 {y - 38} 215 {y + 119} 327 {y + 119}"),
            edge(f"M450 {y - 46}C450 {y + 50} 410 {y + 59} 353 {y + 59}"),
            text(456, y + 8, "γ", "soft", "start"),
            edge(f"M340 {y + 84}C410 {y + 84} 450 {y + 100} 450 {y + 160}"),
            text(340, y + 176, f"x_n+{number + 1}"),
            text(450, y + 176, f"v_n+{number + 1}"),
        ]
    return svg(500, 530, "Figure 2: a residual and a momentum block, by equations 2 to 4", parts)


def lines_of(
    evidence: Evidence, dataset: str, what: str, metric: str, unit: float
) -> dict[str, list[tuple[float, float]]]:
    """A line per network: blocks against what was measured."""
    return {
        model: [
            (row.blocks, unit * found)
            for row in evidence.steps(what, dataset=dataset, model=model, routing="rba", capsules=32)
            if row.blocks <= 8 and (found := getattr(row, metric)) is not None
        ]
        for model in NETWORKS
    }


def on_which(evidence: Evidence, *datasets: str) -> str:
    """The devices that were measured."""
    rows = [
        row
        for dataset in datasets or ("mnist", "cifar10", "svhn")
        for _, what, _, _ in PANELS
        for model in NETWORKS
        for row in evidence.steps(what, dataset=dataset, model=model, routing="rba", capsules=32)
    ]
    devices = ", ".join(dict.fromkeys(row.device for row in rows))
    return f", on {devices}" if devices else ""


def repeated(evidence: Evidence) -> str:
    """The panels of a data set that are another's, which is like it."""
    lent = [row for row in evidence.measured if row.like and not row.released and row.model in NETWORKS]
    told = ""
    for pair in dict.fromkeys((row.dataset, row.like) for row in lent):
        benches = {row.what for row in lent if (row.dataset, row.like) == pair}
        titles = [title.partition(",")[0] for title, what, _, _ in PANELS if what in benches]
        name, other = (NAMES[dataset] for dataset in pair)
        told += f"; measured on {other} for {name} too: {', '.join(titles)}"
    return told


def figure_3(evidence: Evidence) -> str:
    """Memory, training and inference time against depth, for three data sets."""
    parts = key(60, 20, {model: NAMES[model] for model in NETWORKS})
    for down, dataset in enumerate(("mnist", "cifar10", "svhn")):
        for across, (title, what, metric, unit) in enumerate(PANELS):
            lines = lines_of(evidence, dataset, what, metric, unit)
            head = f"{NAMES[dataset]}: {title}"
            parts += chart(60 + 290 * across, 60 + 190 * down, 220, 120, head, lines)
    told = f"blocks of two capsule layers{on_which(evidence)}{repeated(evidence)}"
    parts.append(text(605, 612, told, "soft"))
    return svg(1190, 624, "Figure 3: memory and time against depth", parts)


def figure_4(evidence: Evidence) -> str:
    """How steep those lines are on CIFAR-10, beside the slopes the paper prints."""
    parts: list[str] = []
    # Milliseconds of a step are seconds of a thousand.
    units = {
        "peak_mib": ("memory", "MiB", " MB", 1.0),
        "seconds": ("seconds", "s per epoch", "", STEPS / 1000),
    }
    for across, (title, what, metric, unit) in enumerate(PANELS[:2]):
        lines = lines_of(evidence, "cifar10", what, metric, unit)
        # A line that does not begin with one block is above nothing.
        above = {
            model: [(blocks, value - points[0][1]) for blocks, value in points]
            for model, points in lines.items()
            if points and points[0][0] == 1
        }
        x, (slopes, ours, theirs, scale) = 60 + 420 * across, units[metric]
        parts += chart(x, 40, 340, 190, f"CIFAR-10: {title}, above one block", above)
        for down, model in enumerate(NETWORKS):
            fitted = line(*zip(*lines[model], strict=True)).slope if len(lines[model]) > 1 else None
            # The paper prints one slope for the two networks without momentum.
            paper = STEEPNESS[slopes]["mocapsnet" if model == "mocapsnet" else "others"]
            found = "not run" if fitted is None else f"{scale * fitted:.3f} {ours}"
            parts += key(x, 272 + 20 * down, {model: f"{NAMES[model]} {found} (paper {paper:g}{theirs})"})
    parts.append(text(400, 338, f"blocks of two capsule layers{on_which(evidence, 'cifar10')}", "soft"))
    return svg(860, 348, "Figure 4: how steep memory and time are over depth", parts)


FIGURES: dict[str, tuple[str, Callable[[Evidence], str]]] = {
    "figure-1": ("The network. Each capsule layer routes to the next.", figure_1),
    "figure-2": (
        "A residual and a momentum block by equations 2 to 4. The paper's figure 2 adds the block's input at "
        "both additions.",
        figure_2,
    ),
    "figure-3": (
        "Peak allocated memory, time of a training step and of an inference, and the bytes that wait for the "
        "backward pass, against depth; no axis starts at zero. SVHN's images have CIFAR-10's shape and "
        "classes: where it was not measured itself, its panels repeat CIFAR-10's. Points of one line may "
        "be of several commits, which docs/performance.md lists.",
        figure_3,
    ),
    "figure-4": (
        "What blocks add on CIFAR-10. Under it, what one block adds: least-squares lines over 1 to 8 blocks.",
        figure_4,
    ),
}
