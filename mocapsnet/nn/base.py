"""What every network has, whatever it is made of: a config, its images' preprocessing, save and the hub."""

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Self

from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from mocapsnet.errors import WrongArgument
from mocapsnet.ops import length
from mocapsnet.writing import write

WEIGHTS = "model.safetensors"
HUB_OPTIONS = ("revision", "cache_dir", "force_download", "local_files_only", "token")


class Network(nn.Module, PyTorchModelHubMixin):
    """Images [B,C,H,W] -> an output with lengths [B,K]. Abstract.

    config is what the constructor takes; preprocessing what fit() found images need beyond standardising
    each: the data set's "mean" and "std", or the "window" that is cut out of their middle, and the "size"
    (H, W) that they have before.
    """

    loss: ClassVar[str] = "margin"
    """What fit() minimises unless told."""
    decodes: bool = True
    """Whether an output has a reconstruction."""
    at_once: int = 2000
    """Images that are classified at once, at most."""
    image_shape: tuple[int, int, int]
    config: dict[str, Any]
    preprocessing: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.preprocessing = {}

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """(C, H, W) that a picture from a file is given, before a window is cut out of its middle."""
        C, *size = self.image_shape
        H, W = self.preprocessing.get("size", size)
        return C, H, W

    def encode(self, images: Tensor) -> Tensor:
        """The class capsules [B,K,E] of images [B,C,H,W]; nothing is reconstructed."""
        raise NotImplementedError(f"{type(self).__name__} has no capsules")

    def lengths(self, images: Tensor) -> Tensor:
        """How present each class [B,K] is in images [B,C,H,W]."""
        return length(self.encode(images))

    def check_images(self, images: Tensor) -> None:
        """Refuse what is not a batch of this network's images."""
        if images.shape[1:] != self.image_shape:
            expected = ", ".join(map(str, self.image_shape))
            raise WrongArgument(f"images must be [B, {expected}], got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise WrongArgument(
                f"images must be floats, got {images.dtype}; divide by 255 and standardise them"
            )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """A network with new weights, as config has it."""
        return cls(**config)

    def save(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors, which load() and from_pretrained() read."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = to_bytes({name: value.contiguous() for name, value in self.state_dict().items()})
        config = {**self.config, "weights_sha256": hashlib.sha256(weights).hexdigest()}
        if self.preprocessing:
            config["preprocessing"] = self.preprocessing
        write(folder / WEIGHTS, weights)
        write(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())

    def _save_pretrained(self, save_directory: Path) -> None:
        """The hub's save_pretrained() and push_to_hub() write what save() writes, and a model card."""
        self.save(save_directory)

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        """The hub's from_pretrained() reads what load() reads, and refuses another network."""
        from mocapsnet.nn.load import load

        folder = model_id
        hub = {name: options.pop(name) for name in HUB_OPTIONS if name in options}
        if not Path(folder).is_dir():
            folder = snapshot_download(model_id, allow_patterns=["config.json", WEIGHTS], **hub)
        model = load(folder)
        if not isinstance(model, cls):
            raise WrongArgument(
                f"{folder} holds a {type(model).__name__}; load it with {type(model).__name__}"
            )
        for name in options.keys() & model.config.keys():
            if options[name] != model.config[name]:
                raise WrongArgument(f"{name} is {model.config[name]!r} in {folder}, got {options[name]!r}")
        return model
