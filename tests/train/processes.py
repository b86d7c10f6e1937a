"""Training in real processes, forked from a server that has imported everything once."""

import multiprocessing
import os
import signal
import tempfile
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import torch

import mocapsnet as mc
from mocapsnet.train.checkpoint import LAST

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "mocapsnet.cli",
        "mocapsnet.train.fit",
        "pytorch_optimizer",
        "torch.utils.tensorboard",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ]
)
SMALL = {"kernel_size": 3, "channels": 4, "capsule_dim": 4, "class_dim": 4, "capsules": 3}


class Death(NamedTuple):
    """A signal that a process sends to itself right before it calls a function for the nth time."""

    function: str
    call: int
    number: int = signal.SIGKILL


class Ended(NamedTuple):
    """What a process left: its exit code, or minus the signal that killed it, and what it said."""

    code: int | None
    out: str
    err: str


def write_tiny(folder: Path, seed: int = 0) -> Path:
    """tiny.npz, which trains in no time: 60 and 20 images of 9x9 in three classes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, 80)
    images = generator.integers(0, 60, (80, 9, 9, 1), np.uint8)
    images[np.arange(80), 2 + 2 * labels] += 180
    folder.mkdir(exist_ok=True)
    np.savez(folder / "tiny.npz", X=images, Y=labels, n_train=60)
    return folder


def small_network(seed: int = 0, **options: Any) -> mc.MoCapsNet:
    """The network that command() trains."""
    torch.manual_seed(seed)
    return mc.MoCapsNet((1, 9, 9), classes=3, **(SMALL | options))


def command(data: Path, output: Path, **options: Any) -> list[str]:
    """The arguments of six epochs of six steps, or of what options say."""
    told = SMALL | {"dataset": "tiny", "data": data, "output": output, "epochs": 6, "batch": 10} | options
    return ["train", *(f"--{name}={value}" for name, value in told.items()), "--device=cpu"]


def other_file_system(here: Path) -> Path:
    """Shared memory where there is some that is not the file system of a folder, else the folder itself."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and memory.stat().st_dev != here.stat().st_dev else here


def start(
    arguments: list[str], log: Path, death: Death | None = None, every: float = 60, temp: Path | None = None
) -> BaseProcess:
    """Run `mocapsnet` in a process of its own; every is the time between checkpoints in seconds."""
    process = SERVER.Process(target=child, args=(arguments, str(log), death, every, temp))
    process.start()
    return process


def run(arguments: list[str], log: Path, **options: Any) -> Ended:
    """Run it to its end, which must come in two minutes."""
    process = start(arguments, log, **options)
    process.join(120)
    return Ended(process.exitcode, log.read_text(), log.with_suffix(".err").read_text())


def wait_for_checkpoints(folder: Path, count: int = 1) -> float:
    """Wait until so many are written, two minutes at most; the seconds the last one took."""
    seen, times, began = {written(folder)}, [], time.perf_counter()
    while len(times) < count and time.perf_counter() - began < 120:
        if (stamp := written(folder)) not in seen:
            seen.add(stamp)
            times.append(time.perf_counter())
        time.sleep(0.001)
    return times[-1] - times[-2] if count > 1 else 0.1


def written(folder: Path) -> int | None:
    """When the last checkpoint was written; None before the first one, and between two renames."""
    try:
        return (folder / LAST).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def child(words: list[str], log: str, death: Death | None, every: float, temp: Path | None) -> None:
    """What the process does."""
    from tqdm import tqdm

    from mocapsnet import cli
    from mocapsnet.train import fit

    torch.set_num_threads(1)
    # A lock between processes would outlive a killed one.
    tqdm.set_lock(threading.RLock())
    for stream, path in ((1, log), (2, Path(log).with_suffix(".err"))):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
    if temp:
        os.environ["TMPDIR"], tempfile.tempdir = str(temp), None
    if death:
        arm(death)
    fit.SECONDS_BETWEEN_CHECKPOINTS = every
    cli.main(words)


def arm(death: Death) -> None:
    """Let a function kill its process."""
    owner, name = death.function.rsplit(".", 1)
    function, calls = getattr(resolve_name(owner), name), 0

    def deadly(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == death.call:
            os.kill(os.getpid(), death.number)
        return function(*arguments, **options)

    setattr(resolve_name(owner), name, deadly)
