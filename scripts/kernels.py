"""Where a training step's time goes on a CUDA GPU, kernel by kernel; writes a CSV under results/speed.

python scripts/kernels.py [blocks] [batch]
"""

import csv
import re
import sys
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from mocapsnet.measure.report import how
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.networks import build, random_split
from mocapsnet.measure.speed.step import Trained
from mocapsnet.train.device import compiled
from mocapsnet.train.graph import WARM_UP
from mocapsnet.train.record import commit

STEPS = 10
# A kernel belongs to the first part whose words are in its name.
PARTS = {
    "compiled between them": ("triton_",),
    "CapsLayer 1": ("tile_", "arrange", "finish", "pull_squash"),
    "trunk": ("momentum_layers", "enter", "leave"),
    "trunk and CapsLayer 2": ("weights_backward", "image_"),
    "convolutions": ("stem", "outputs", "inputs", "weights", "join", "wgrad", "dgrad", "fprop", "conv"),
    "Adam and the check of gradients": ("multi_tensor", "squares", "judge", "advance", "update"),
    "matrix products (decoder, first pass)": ("nvjet", "gemm", "splitK"),
}


def main(blocks: int = 1, batch: int = 128) -> None:
    """Profile replays of the step's graph."""
    settings, device = BenchSettings(batch=batch), torch.device("cuda")
    model = build(settings, "mocapsnet", blocks)
    trained = Trained(
        model, random_split("cifar10", 10 * batch, 0).to(device), batch, how(settings, device), device
    )
    with compiled(model, wanted=True):
        for _ in range(WARM_UP + 3):
            trained.train()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(STEPS):
                trained.train()
            torch.cuda.synchronize()
    rows = []
    for kernel in seen.key_averages():
        if kernel.device_time_total:
            name = re.sub(r"<.*", "", kernel.key)
            part = next(
                (part for part, words in PARTS.items() if any(w in kernel.key for w in words)), "other"
            )
            rows.append((part, name, kernel.count / STEPS, kernel.device_time_total / STEPS))
    rows.sort(key=lambda row: -row[3])
    gpu = re.sub("[^a-z0-9.]+", "-", torch.cuda.get_device_name().lower())
    path = Path(
        f"results/speed/kernels-b{batch}-blocks{blocks}-{gpu}-torch{torch.__version__.split('+')[0]}.csv"
    )
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["part", "kernel", "launches", "microseconds", "commit"])
        writer.writerows((*row, commit()) for row in rows)
    for part in dict.fromkeys(row[0] for row in rows):
        print(f"{part:<45} {sum(row[3] for row in rows if row[0] == part):8.1f} µs")
    print(f"{'sum':<45} {sum(row[3] for row in rows):8.1f} µs, kernels in {path}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
