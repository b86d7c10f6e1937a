"""Another viewpoint on an image: turned, scaled, shifted, mirrored."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mocapsnet.errors import WrongArgument


class View(NamedTuple):
    """Degrees counterclockwise, a factor, pixels to the right and down, and whether left becomes right."""

    turn: float = 0.0
    scale: float = 1.0
    right: float = 0.0
    down: float = 0.0
    mirror: bool = False

    def check(self) -> None:
        """Refuse what no slider can say."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value <= most:
                raise WrongArgument(f"{name} must be a number from {least} to {most}, got {value!r}")
        if not isinstance(self.mirror, bool):
            raise WrongArgument(f"mirror must be true or false, got {self.mirror!r}")


RANGES = {"turn": (-180, 180), "scale": (0.5, 2), "right": (-10, 10), "down": (-10, 10)}


def seen_from(pixels: Tensor, views: list[View]) -> Tensor:
    """Pixels [C,H,W] from every view, [B,C,H,W]; what lies outside continues the edge."""
    _, H, W = pixels.shape
    centre = torch.tensor([(W - 1) / 2, (H - 1) / 2])
    down, right = torch.meshgrid(torch.arange(H), torch.arange(W), indexing="ij")
    places = torch.stack((right, down), -1) - centre
    grids = []
    for view in views:
        angle = math.radians(view.turn)
        turned = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        source = (places - torch.tensor([view.right, view.down])) @ turned.T / view.scale
        if view.mirror:
            source = source * torch.tensor([-1.0, 1.0])
        # From pixels to the units of grid_sample, where the outer pixels' centres are at ±1.
        grids.append(source / centre.clamp(min=0.5))
    same = [view == View() for view in views]
    images = pixels.expand(len(views), *pixels.shape)
    moved = F.grid_sample(images, torch.stack(grids), padding_mode="border", align_corners=True)
    return torch.where(torch.tensor(same)[:, None, None, None], images, moved)
