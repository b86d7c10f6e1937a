"""Capsule networks of any depth: a routing (how capsules agree) times a trunk (how depth composes).

>>> import mocapsnet as mc
>>> model = mc.MoCapsNet(image_shape=(1, 28, 28), classes=10, blocks=5)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mocapsnet import data as data
    from mocapsnet import ops as ops
    from mocapsnet.losses import capsule_loss, margin_loss, reconstruction_loss
    from mocapsnet.measure.accuracy import evaluate
    from mocapsnet.nn.convnet import ConvNet
    from mocapsnet.nn.ensemble import Ensemble
    from mocapsnet.nn.load import load
    from mocapsnet.nn.network import (
        CapsNet,
        CapsuleNetwork,
        CapsuleOutput,
        MoCapsNet,
        ResCapsNet,
        to_momentum,
    )
    from mocapsnet.nn.released_checkpoint import from_released
    from mocapsnet.nn.reversible import MomentumSequence
    from mocapsnet.nn.shallow import ShallowCapsNet
    from mocapsnet.train.fit import fit

__all__ = [
    "CapsNet",
    "CapsuleNetwork",
    "CapsuleOutput",
    "ConvNet",
    "Ensemble",
    "MoCapsNet",
    "MomentumSequence",
    "ResCapsNet",
    "ShallowCapsNet",
    "capsule_loss",
    "data",
    "evaluate",
    "fit",
    "from_released",
    "load",
    "margin_loss",
    "ops",
    "reconstruction_loss",
    "to_momentum",
]

# Names are imported when first used: `mocapsnet --help` must not wait for torch.
_ROOMS = {
    "mocapsnet.losses": ("capsule_loss", "margin_loss", "reconstruction_loss"),
    "mocapsnet.measure.accuracy": ("evaluate",),
    "mocapsnet.nn.load": ("load",),
    "mocapsnet.nn.network": (
        "CapsNet",
        "CapsuleNetwork",
        "CapsuleOutput",
        "MoCapsNet",
        "ResCapsNet",
        "to_momentum",
    ),
    "mocapsnet.nn.convnet": ("ConvNet",),
    "mocapsnet.nn.ensemble": ("Ensemble",),
    "mocapsnet.nn.released_checkpoint": ("from_released",),
    "mocapsnet.nn.reversible": ("MomentumSequence",),
    "mocapsnet.nn.shallow": ("ShallowCapsNet",),
    "mocapsnet.train.fit": ("fit",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("data", "ops"):
        return import_module(f"mocapsnet.{name}")
    if name in _ROOM_OF:
        return getattr(import_module(_ROOM_OF[name]), name)
    raise AttributeError(f"module 'mocapsnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
