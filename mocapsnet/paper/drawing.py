"""SVG by hand: boxes, arrows and line charts that are the same byte for byte and follow light and dark."""

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = {"capsnet": "plain", "rescapsnet": "residual", "mocapsnet": "momentum"}
STYLE = """
svg{color-scheme:light dark;--ink:#1c1f24;--soft:#667;--line:#c9ced6;--fill:#eef1f5;--add:#ffe3bd;
--plain:#3b76c9;--residual:#c8443c;--momentum:#2f8f57;font-family:system-ui,sans-serif}
@media(prefers-color-scheme:dark){svg{--ink:#e7eaef;--soft:#9aa4b2;--line:#3c4450;--fill:#252b34;--add:#6b4a1c;
--plain:#7fb0f5;--residual:#f08a82;--momentum:#6fce97}}
svg text{fill:var(--ink);font-size:12px}svg .soft{fill:var(--soft);font-size:11px}
svg .big{font-weight:600}svg .sub{font-size:9px}
svg .box{fill:var(--fill);stroke:var(--ink)}svg .open{fill:none;stroke:var(--ink)}
svg .add{fill:var(--add);stroke:var(--ink)}svg .grid{stroke:var(--line)}
svg .edge{fill:none;stroke:var(--ink);stroke-width:1.3}
svg .plain{stroke:var(--plain)}svg .residual{stroke:var(--residual)}svg .momentum{stroke:var(--momentum)}
svg .curve{fill:none;stroke-width:2}svg .curve.plain{stroke-width:5;opacity:.45}
svg .plain.dot{fill:var(--plain)}svg .residual.dot{fill:var(--residual)}
svg .momentum.dot{fill:var(--momentum)}
"""
HEAD = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:var(--ink)"/></marker></defs>'
)
Points = Sequence[tuple[float, float]]


def svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    """A whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title><style>{STYLE}</style>{HEAD}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """Words around a point; what stands behind _ is set lower."""
    word, lower, index = escape(words).partition("_")
    words = f'{word}<tspan dy="3" class="sub">{index}</tspan>' if lower else word
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" class="{kind}">{words}</text>'


def box(x: float, y: float, words: str, width: float = 190, kind: str = "open") -> str:
    """A rectangle around a point, with words in it."""
    shape = (
        f'<rect x="{x - width / 2:g}" y="{y - 14:g}" width="{width:g}" height="28" rx="5" class="{kind}"/>'
    )
    return shape + text(x, y + 4, words)


def plus(x: float, y: float) -> str:
    """An addition."""
    return f'<circle cx="{x:g}" cy="{y:g}" r="11" class="add"/>' + text(x, y + 4, "+", "big")


def edge(path: str) -> str:
    """An arrow along a path."""
    return f'<path d="{path}" class="edge" marker-end="url(#tip)"/>'


def chart(
    x: float, y: float, width: float, height: float, title: str, lines: Mapping[str, Points]
) -> list[str]:
    """One panel: a line per network over blocks; without points it says that nothing was run."""
    parts = [text(x, y - 8, title, "big", "start")]
    frame = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" class="grid" fill="none"/>'
    points = [point for line in lines.values() for point in line]
    if not points:
        return [*parts, frame, text(x + width / 2, y + height / 2 + 4, "not run", "soft")]
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    step = nice((high - low or high or 1) / 3)
    low, high = math.floor(low / step) * step, math.ceil(high / step + 1e-9) * step

    def place(point: tuple[float, float]) -> tuple[float, float]:
        across = (point[0] - left) / (right - left) if right > left else 0.5
        return x + 10 + across * (width - 20), y + height - (point[1] - low) / (high - low) * height

    parts.append(frame)
    for tick in range(round((high - low) / step) + 1):
        level = place((left, low + tick * step))[1]
        parts.append(f'<path d="M{x:g} {level:.1f}H{x + width:g}" class="grid"/>')
        parts.append(text(x - 5, level + 4, f"{low + tick * step:,.4g}", "soft", "end"))
    for blocks in sorted({p[0] for p in points}):
        if blocks in (left, right) or len({p[0] for p in points}) < 10:
            parts.append(text(place((blocks, low))[0], y + height + 15, f"{blocks:g}", "soft"))
    for model, line in lines.items():
        ends = [place(point) for point in sorted(line)]
        if ends:
            path = "L".join(f"{a:.1f} {b:.1f}" for a, b in ends)
            parts.append(f'<path d="M{path}" class="curve {COLOURS[model]}"/>')
            parts += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" class="dot {COLOURS[model]}"/>' for a, b in ends
            ]
    return parts


def nice(step: float) -> float:
    """The next step of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))


def key(x: float, y: float, entries: Mapping[str, str]) -> list[str]:
    """Which colour is which network."""
    return [
        part
        for number, (model, words) in enumerate(entries.items())
        for part in (
            f'<path d="M{x + 130 * number:g} {y - 4:g}h18" class="curve {COLOURS[model]}"/>',
            text(x + 130 * number + 24, y, words, "", "start"),
        )
    ]
