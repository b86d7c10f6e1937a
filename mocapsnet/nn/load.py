"""Networks by their name, and from the folder that one was saved in."""

import hashlib
import json
from importlib import import_module
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as from_bytes

from mocapsnet.errors import BrokenFile, WrongArgument
from mocapsnet.nn.base import WEIGHTS, Network
from mocapsnet.nn.network import CapsNet, CapsuleNetwork, MoCapsNet, ResCapsNet
from mocapsnet.nn.pretrained import manifest, resolve
from mocapsnet.ops.arguments import one_of

NETWORKS: dict[str, type[CapsuleNetwork]] = {
    network.__name__: network for network in (CapsNet, ResCapsNet, MoCapsNet)
}
# Those that wait to be imported until someone asks for one, and the module that holds each.
ELSEWHERE = {
    "ReleasedNetwork": "mocapsnet.nn.released",
    "ShallowCapsNet": "mocapsnet.nn.shallow",
    "ConvNet": "mocapsnet.nn.convnet",
    "Ensemble": "mocapsnet.nn.ensemble",
}


def network_class(name: str) -> type[Network]:
    """The class of that name."""
    one_of("model", name, [*NETWORKS, *ELSEWHERE])
    return NETWORKS[name] if name in NETWORKS else getattr(import_module(ELSEWHERE[name]), name)


def load_paper(folder: str | Path) -> CapsuleNetwork:
    """load() in float32, for those who need a trunk and a decoder: all but the paper's three are refused."""
    model = load(folder)
    if not isinstance(model, CapsuleNetwork):
        raise WrongArgument(
            f"the network in {folder} must be one of {', '.join(NETWORKS)}, got {type(model).__name__}"
        )
    return model.float()


def load(folder: str | Path) -> Network:
    """Load the network in a run folder, in any folder that save() wrote, or a pretrained one by its name.

    >>> model = mc.load("runs/20260101-120000-mocapsnet-mnist6k")
    >>> model = mc.load("mnist-small")
    """
    folder = resolve(folder)
    for name in ("config.json", WEIGHTS):
        if not (folder / name).is_file():
            if (folder / "last.ckpt").is_file():
                raise FileNotFoundError(
                    f"{folder} holds a run that is not finished; "
                    f"its training command with --output {folder} goes on"
                )
            raise FileNotFoundError(
                f"{folder} holds no {name}: give a run folder, one that save() wrote, "
                f"or a name: {', '.join(manifest())}"
            )
    try:
        config = json.loads((folder / "config.json").read_text())
        content = (folder / WEIGHTS).read_bytes()
        if config.pop("weights_sha256", None) not in (None, hashlib.sha256(content).hexdigest()):
            raise ValueError(f"{WEIGHTS} is not the one whose weights_sha256 stands in config.json")
        preprocessing = config.pop("preprocessing", {})
        # Where a fused program cannot run, the same network can; where it can, "auto" takes it.
        if config.get("backend") == "fused":
            config["backend"] = "auto"
        model = network_class(config.pop("model")).from_config(config)
        weights = from_bytes(content)
        model.to(weights[next(iter(model.state_dict()))].dtype).load_state_dict(weights)
        if preprocessing.keys() - {"mean", "std", "window", "size"}:
            raise ValueError(f"there is no preprocessing {preprocessing}")
        model.preprocessing = preprocessing
        if not 0 < min(model.image_shape[1:]) <= min(model.picture_shape[1:]):
            raise ValueError(f"there is no preprocessing {preprocessing}")
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise BrokenFile(f"{folder} holds no network that can be loaded: {error}") from error
    return model
