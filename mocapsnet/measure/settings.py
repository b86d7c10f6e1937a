"""A bench, completely described. This file needs no torch, so that the command line can read it quickly."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mocapsnet.errors import WrongArgument

SIZES = ("batch", "capsules", "capsule_dim", "routing", "gamma", "dataset", "channels", "repeats", "device")
NETWORK = ("networks", "naive_depths", *SIZES, "backend", "memory", "arithmetic")
HOW = ("precision", "graph", "compile")
# What each bench reads, in the order of its CSV; all read output too, and all but routing depths.
READS: dict[str, tuple[str, ...]] = {
    "step": ("released_depths", *NETWORK, *HOW),
    "memory": ("of", *SIZES),
    "routing": (*(name for name in SIZES if name not in ("routing", "gamma")), *HOW),
    "inference": (*NETWORK, *HOW),
    "epoch": (
        *(name for name in NETWORK if name not in ("naive_depths", "repeats")),
        *HOW,
        *("epochs", "seeds", "decay", "data", "limit"),
    ),
}
DEPTHS = {
    "step": [*range(1, 9), 20],
    "memory": [1, 2, 4, 8, 16, 32, 64],
    "routing": [],
    "inference": [*range(1, 9), 20],
    "epoch": [1],
}
# The naive version takes long: it is measured up to this depth if nothing else is said.
DEEP = 8


@dataclass(frozen=True)
class BenchSettings:
    """Everything that `mocapsnet bench` takes beside what is measured; what a bench does not use is refused.

    Attributes:
        of: For memory: the momentum trunk alone, or whole networks with their loss and Adam.
        depths: Depths in blocks of two routed layers; null is 1 to 8 and 20, for memory 1 to 64, for epoch 1.
        networks: Which networks are measured.
        naive_depths: Depths at which the naive version is measured too; null is the least and 8 or less.
        released_depths: For step: depths at which the released code's network is measured too; null is none.
        batch: Images per step.
        capsules: Capsules in CapsLayer 1 and in every layer of the trunk.
        capsule_dim: Size of those capsules.
        routing: How capsules agree.
        gamma: The momentum term.
        dataset: Whose image shape and classes a network has; images are random, but an epoch's need not be.
        channels: Channels of both convolutions.
        repeats: How often each thing is timed; the table has the median.
        device: Where to compute; auto takes the best there is.
        output: The folder for the CSV and the picture; null is results/speed, for memory results/memory.
        backend: The implementation of the routing; auto takes fused where that can run.
        memory: What a momentum trunk keeps for the backward pass.
        arithmetic: What a momentum trunk computes its state in.
        precision: The numbers of convolutions and products; auto is bf16-mixed where CUDA has it, else fp32.
        graph: auto replays what is timed as one CUDA graph where it can; off never does.
        compile: Compile with torch.compile; null does so on CUDA.
        epochs: For epoch: how many are timed.
        seeds: For epoch: how often each network is trained, with seeds 0, 1, ...
        decay: For epoch: the factor of the learning rate from one to the next.
        data: For epoch: the folder that holds data sets; images are random where the data set is not in it.
        limit: For epoch: how many training images are used; null is all.
    """

    of: Literal["trunk", "network"] = "trunk"
    depths: list[int] | None = None
    networks: list[str] = field(default_factory=lambda: ["mocapsnet", "rescapsnet", "capsnet"])
    naive_depths: list[int] | None = None
    released_depths: list[int] | None = None
    batch: int = 128
    capsules: int = 32
    capsule_dim: int = 8
    routing: Literal["rba", "leaky-rba", "sda", "em"] = "rba"
    gamma: float = 0.9
    dataset: str = "cifar10"
    channels: int = 256
    repeats: int = 10
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    output: str | None = None
    backend: Literal["auto", "reference", "fused"] = "auto"
    memory: Literal["reverse", "checkpoint", "store"] = "reverse"
    arithmetic: Literal["exact", "float"] = "exact"
    precision: Literal["auto", "bf16-mixed", "tf32", "fp32"] = "auto"
    graph: Literal["auto", "off"] = "auto"
    compile: bool | None = None
    epochs: int = 5
    seeds: int = 1
    decay: float = 0.96
    data: str = "data"
    limit: int | None = None

    def check(self, what: str) -> None:
        """Refuse what is out of range, and a setting that this bench does not read."""
        from mocapsnet.ops.arguments import a_folder, at_least, one_of

        one_of("what", what, READS)
        for name, value in changed(self).items():
            if not reads(what, name):
                others = ", ".join(bench for bench in READS if reads(bench, name))
                raise WrongArgument(f"bench {what} does not read {name}, got {value!r}; {others} would")
        if "of" in READS[what]:
            one_of("of", self.of, ("trunk", "network"))
        a_folder("output", self.folder(what))
        for name in ("batch", "capsules", "capsule_dim", "repeats", "epochs", "seeds"):
            at_least(name, getattr(self, name), 1)
        if not 0 < self.decay <= 1:
            raise WrongArgument(f"decay must be > 0 and <= 1, got {self.decay!r}")
        if self.limit is not None:
            at_least("limit", self.limit, 1)
        if not self.networks:
            raise WrongArgument("networks must hold one network or more, got []; [mocapsnet] holds one")
        for network in self.networks:
            one_of("each of networks", network, BenchSettings().networks)
        if self.depths == []:
            raise WrongArgument("depths must hold one number of blocks or more, got []; [1,2,4] holds three")
        for blocks in self.depths or []:
            at_least("each of depths", blocks, 1)
        for name in ("naive_depths", "released_depths"):
            for blocks in getattr(self, name) or []:
                if blocks not in self.blocks(what):
                    raise WrongArgument(f"each of {name} must be among depths, got {blocks!r}")
        if self.released_depths:
            one_of("routing of released_depths", self.routing, ("rba", "sda"))

    def blocks(self, what: str) -> list[int]:
        """The depths, each once, in order."""
        return sorted(set(DEPTHS[what] if self.depths is None else self.depths))

    def naive_blocks(self, what: str) -> list[int]:
        """Those of the depths at which the naive version is measured."""
        depths = self.blocks(what)
        few = [depths[0], max((n for n in depths if n <= DEEP), default=depths[-1])]
        return few if self.naive_depths is None else self.naive_depths

    def folder(self, what: str) -> Path:
        """Where figures go."""
        return Path(self.output or f"results/{'memory' if what == 'memory' else 'speed'}")


def changed(settings: object) -> dict[str, Any]:
    """Those settings that are not what they are by default."""
    usual = vars(type(settings)())
    return {name: value for name, value in vars(settings).items() if value != usual[name]}


def reads(what: str, name: str) -> bool:
    """Whether a bench reads a setting."""
    return name in (*READS[what], "output") or (name == "depths" and bool(DEPTHS[what]))
