"""A residual CNN with momentum: MomentumSequence around convolutions, which know nothing of capsules.

It learns the embedded digits in about a minute on a CPU, and then counts what each memory keeps and costs.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mocapsnet as mc
from mocapsnet.measure.inspect import bytes_for_backward

CHANNELS = 16


def residual() -> nn.Module:
    """What a block adds to its input. A ReLU in place is fine here; as the first operation it is refused."""
    return nn.Sequential(
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(inplace=True),
        nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    )


def network(depth: int, memory: str) -> nn.Module:
    """Digits [B,1,28,28] to logits [B,10]."""
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 4, stride=4),
        mc.MomentumSequence([residual() for _ in range(depth)], gamma=0.9, memory=memory),
        nn.Flatten(),
        nn.Linear(CHANNELS * 7 * 7, 10),
    )


def step(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Gradients of one batch."""
    F.cross_entropy(model(images), labels).backward()


def main() -> None:
    """Train once, then measure."""
    parser = argparse.ArgumentParser(description="A residual CNN with momentum on the embedded digits.")
    parser.add_argument("--steps", type=int, default=400, help="training steps of 64 images")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 16, 64])
    options = parser.parse_args()
    torch.manual_seed(0)
    digits = mc.data.load("mnist6k")
    train, test = digits.train.images / 255, digits.test.images / 255

    model = network(8, "reverse")
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(adam, options.steps)
    for _ in range(options.steps):
        batch = torch.randint(len(train), (64,))
        adam.zero_grad()
        step(model, train[batch], digits.train.labels[batch])
        adam.step()
        rates.step()
    with torch.no_grad():
        correct = model.eval()(test).argmax(1) == digits.test.labels
    print(f"8 blocks, {options.steps} steps: test accuracy {correct.float().mean():.2%}")

    # A copy: the bytes of all digits would count with a part of them.
    images, labels = train[:64].clone(), digits.train.labels[:64]
    print("blocks  memory      KiB kept for backward  ms per step")
    for depth in options.depths:
        models = {memory: network(depth, memory) for memory in ("store", "checkpoint", "reverse")}
        seconds = dict.fromkeys(models, float("inf"))
        # In turn, so that a busy machine slows all alike.
        for memory, model in [*models.items()] * 5:
            start = time.perf_counter()
            step(model, images, labels)
            seconds[memory] = min(seconds[memory], time.perf_counter() - start)
        for memory, model in models.items():
            kept = bytes_for_backward(lambda model=model: model(images), model) / 1024
            print(f"{depth:6}  {memory:10}  {kept:21.0f}  {1000 * seconds[memory]:11.0f}")


if __name__ == "__main__":
    main()
