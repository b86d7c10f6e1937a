"""A run, completely described. This file needs no torch, so that the command line can read it quickly."""

from dataclasses import dataclass, replace
from typing import Any, Literal

# The paper's network and training, and a small one for the embedded digits: two CPU cores, two minutes.
PAPER = {"epochs": 60, "batch": 128, "capsules": 32, "channels": 256}
SMALL = {"epochs": 16, "batch": 32, "capsules": 8, "channels": 32}
DEFAULTS = {"mnist6k": SMALL, "mnist": PAPER | {"epochs": 30}}
Model = Literal["mocapsnet", "rescapsnet", "capsnet", "shallowcapsnet", "convnet"]


@dataclass(frozen=True)
class Settings:
    """Everything that `mocapsnet train` takes.

    Attributes:
        dataset: mnist6k, mnist, fashion_mnist, svhn, cifar10, cifar100, folder:PATH, or NAME for NAME.npz.
        data: The folder that holds data sets.
        download: Download official files that are missing.
        model: The network.
        blocks: Blocks of two routed layers.
        routing: How capsules agree.
        epochs: Passes over the training set; null is the data set's default.
        batch: Images per step; null is the data set's default.
        optimizer: Adam, or Ranger21 with its own schedule.
        lr: The learning rate at the start; null is the optimizer's default.
        decay: The factor of Adam's learning rate from one epoch to the next.
        schedule: How Adam's learning rate falls: times decay per epoch, or in a cosine down to zero.
        warm_up: Epochs in which the learning rate of a cosine first grows from zero.
        steps_told: Steps per epoch that Ranger21's schedule assumes; null is as many as there are.
        weight_decay: The weight decay of AdamW; 0 is plain Adam.
        ema: Decay of a moving average of the weights, which is then tested and saved; 0 is none.
        loss: margin, or cross-entropy where the network has logits; null is the network's own.
        smoothing: Label smoothing: the share of a label that is spread over all classes.
        reconstruction_weight: The decoder's weight in the loss; null is 5e-4, or 0 without a decoder.
        mask: Which capsule is decoded in training: the label's or the longest.
        target: What the decoder should draw: the pixels or the normalised image.
        reduction: Whether losses are averaged or summed over a batch.
        normalise: Whose mean and standard deviation an image is normalised by: its own or the data set's.
        pad: Pixels around training images before they are cropped at random.
        window: The side of a crop, of test images their middle; null is the whole image.
        flip: Mirror half of the training images; not for digits.
        jitter: Change brightness and contrast of training images at random.
        cutout: The side of a square that is cut out of training images; 0 is none.
        mix: The largest share of the batch's next image, and of its label, that is mixed into an image; 0 is
            none. The decoder still learns the image alone, and training accuracy counts its own label.
        turn: The most degrees by which training images are turned, either way.
        zoom: How much larger or smaller training images are made at most; 0.1 is a factor of up to 1.1.
        crop_test: Pad and crop test images at random too, as the paper's released code does.
        test: When the test set is read: after every epoch, or once at the end.
        validation: The fraction of the training set that is held out.
        limit: How many training images are used; null is all.
        seed: The seed of the weights, the order of the images and their crops.
        device: Where to train; auto takes the best there is.
        precision: The numbers of convolutions and products; auto is bf16-mixed where CUDA has it, else fp32.
        graph: auto replays a step as one CUDA graph where it can; off never does.
        compile: Compile the network with torch.compile; null does so on CUDA.
        output: The run folder; runs/<date-time-name> by default.
        resume: auto continues a run that is in the output folder; never refuses such a folder.
        iterations: Routing iterations.
        capsules: Capsules in CapsLayer 1 and in every block; null is the data set's default.
        capsule_dim: Size of those capsules and of the primary ones.
        class_dim: Size of the class capsules.
        channels: Channels of both convolutions, a multiple of capsule_dim; null is the data set's default.
        kernel_size: The kernel size of both convolutions.
        weight_std: Standard deviation of the transformation matrices at the start.
        routing_bias: The routing's bias at the start; null for none.
        gradient: Through which routing iterations gradients flow; null is the routing's default.
        skip: A residual block's rule, per layer (equation 2) or per block (figure 2).
        backend: The implementation of the routing; auto takes fused where that can run.
        decoder_width: The width of the decoder's first hidden layer; the second is twice as wide.
        gamma: The momentum term γ of MoCapsNet.
        memory: What a momentum trunk keeps for the backward pass: its last state, each layer's input, or all.
        arithmetic: What a momentum trunk computes its state in: integers that invert exactly, or floats.
    """

    dataset: str = "mnist6k"
    data: str = "data"
    download: bool = False
    model: Model = "mocapsnet"
    blocks: int = 1
    routing: Literal["rba", "leaky-rba", "sda", "em"] = "rba"
    epochs: int | None = None
    batch: int | None = None
    optimizer: Literal["adam", "ranger21"] = "adam"
    lr: float | None = None
    decay: float = 0.96
    schedule: Literal["exponential", "cosine"] = "exponential"
    warm_up: float = 0.0
    steps_told: int | None = None
    weight_decay: float = 0.0
    ema: float = 0.0
    loss: Literal["margin", "cross-entropy"] | None = None
    smoothing: float = 0.0
    reconstruction_weight: float | None = None
    mask: Literal["label", "guess"] = "label"
    target: Literal["pixels", "image"] = "pixels"
    reduction: Literal["mean", "sum"] = "mean"
    normalise: Literal["image", "dataset"] = "image"
    pad: int = 2
    window: int | None = None
    flip: bool = False
    jitter: bool = False
    cutout: int = 0
    mix: float = 0.0
    turn: float = 0.0
    zoom: float = 0.0
    crop_test: bool = False
    test: Literal["epoch", "end"] = "epoch"
    validation: float = 0.0
    limit: int | None = None
    seed: int = 0
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    precision: Literal["auto", "bf16-mixed", "tf32", "fp32"] = "auto"
    graph: Literal["auto", "off"] = "auto"
    compile: bool | None = None
    output: str | None = None
    resume: Literal["auto", "never"] = "auto"
    iterations: int = 3
    capsules: int | None = None
    capsule_dim: int = 8
    class_dim: int = 16
    channels: int | None = None
    kernel_size: int = 9
    weight_std: float = 0.1
    routing_bias: float | None = 0.1
    gradient: Literal["last", "all"] | None = None
    skip: Literal["layer", "block"] = "layer"
    backend: Literal["auto", "reference", "fused"] = "auto"
    decoder_width: int = 512
    gamma: float = 0.9
    memory: Literal["reverse", "checkpoint", "store"] = "reverse"
    arithmetic: Literal["exact", "float"] = "exact"

    def resolved(self) -> "Settings":
        """The same with every null that the data set decides filled in."""
        defaults: dict[str, Any] = DEFAULTS.get(self.dataset, PAPER)
        return replace(
            self, **{name: value for name, value in defaults.items() if getattr(self, name) is None}
        )
