import multiprocessing
import os
import traceback
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from filelock import FileLock
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import mocapsnet as mc
from mocapsnet import MomentumSequence
from mocapsnet.nn.routing import CapsLayer

MEMORIES = ["reverse", "checkpoint", "store"]
SECONDS = 100
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["mocapsnet", "torch.distributed.fsdp"])


class Linear(nn.Module):
    """tanh(W x + b), and a parameter nobody uses if it is asked for."""

    def __init__(self, unused=False):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        nn.init.normal_(self.linear.weight, std=1.5 / 6**0.5)
        self.unused = nn.Parameter(torch.ones(3)) if unused else None

    def forward(self, x):
        return torch.tanh(self.linear(x))


def linear(memory):
    return MomentumSequence([Linear() for _ in range(6)], memory=memory)


def capsules(memory):
    return MomentumSequence([CapsLayer(4, 6, 4, 6, weight_std=0.7) for _ in range(6)], memory=memory)


def unused(memory):
    return MomentumSequence([Linear(unused=n in (0, 3, 5)) for n in range(6)], memory=memory)


def random_and_normed(memory):
    layers = [nn.Sequential(Linear(), nn.Dropout(0.3), nn.BatchNorm1d(4)) for _ in range(6)]
    return MomentumSequence(layers, memory=memory)


def network(memory):
    sizes = {"kernel_size": 3, "channels": 8, "capsule_dim": 4, "capsules": 3, "class_dim": 5}
    return mc.MoCapsNet((1, 9, 9), classes=4, blocks=3, weight_std=0.7, memory=memory, **sizes)


def ddp(**options):
    return lambda f: DistributedDataParallel(f, **options)


def fsdp(each, whole, **options):
    def wrap(f):
        for layer in f.layers if each else ():
            fully_shard(layer, **options)
        return fully_shard(f, **options) if whole else f

    return wrap


# Name: a model, how it is made parallel, whether the exchange waits for the second of two micro-batches.
CASES = {
    "ddp": (linear, ddp(), False),
    "ddp of capsules": (capsules, ddp(), False),
    "ddp with unused parameters": (unused, ddp(find_unused_parameters=True), False),
    "ddp of a static graph": (linear, ddp(static_graph=True), False),
    "ddp of a static graph with unused parameters": (unused, ddp(static_graph=True), False),
    "ddp with gradients in buckets": (
        capsules,
        ddp(gradient_as_bucket_view=True, bucket_cap_mb=0.001),
        False,
    ),
    "ddp without synchronisation": (linear, ddp(), True),
    "ddp of dropout and batch norm": (random_and_normed, ddp(), False),
    "ddp of a network": (network, ddp(), False),
    "fsdp of each layer": (linear, fsdp(each=True, whole=False), False),
    "fsdp of the whole": (linear, fsdp(each=False, whole=True), False),
    "fsdp of both": (capsules, fsdp(each=True, whole=True), False),
    "fsdp resharded": (linear, fsdp(each=False, whole=True, reshard_after_forward=True), False),
    "fsdp of dropout and batch norm": (random_and_normed, fsdp(each=True, whole=True), False),
}
# What a process draws or averages depends on its share of the batch.
ALONE = [name for name, (make, *_) in CASES.items() if make is not random_and_normed]


def batch(make):
    shape = (8, 1, 9, 9) if make is network else (8, 4, 6)
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def loss(outputs):
    """A mean over the batch, so that the mean over two halves is the whole."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((y * (y + 1)).flatten(1).sum(1).mean() for y in outputs)


def gradients(f):
    grads = {name.removeprefix("module."): weight.grad for name, weight in f.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in grads.items()}


def train(make, wrap, accumulate, memory, share):
    """The gradients of the third step: a static graph is one from the second step on."""
    torch.manual_seed(0)
    f = wrap(make(memory))
    for _ in range(3):
        f.zero_grad()
        if accumulate:
            first, last = share.chunk(2)
            with f.no_sync():
                (loss(f(first)) / 2).backward()
            (loss(f(last)) / 2).backward()
        else:
            loss(f(share)).backward()
    return gradients(f), dict(f.named_buffers())


def process(rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=SECONDS))
    found = {}
    for name, (make, wrap, accumulate) in CASES.items():
        for memory in MEMORIES:
            share = batch(make).chunk(2)[rank]
            try:
                found[name, memory] = train(make, wrap, accumulate, memory, share)
            except Exception:
                found[name, memory] = traceback.format_exc()
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


def run(folder):
    folder.mkdir()
    processes = [SERVER.Process(target=process, args=(rank, folder)) for rank in range(2)]
    for each in processes:
        each.start()
    for each in processes:
        each.join(SECONDS)
    hung = [each.kill() for each in processes if each.is_alive()]
    assert (len(hung), [each.exitcode for each in processes]) == (0, [0, 0])


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What two processes found, which run once for all of pytest's own processes."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with FileLock(folder / "two_processes.lock"):
        if not (folder / "two_processes").exists():
            run(folder / "two_processes")
    return [torch.load(folder / "two_processes" / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(params=range(2), ids="rank {}".format)
def found(two_processes, request):
    return two_processes[request.param]


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("case", ALONE)
def test_two_processes_average_to_the_gradients_of_one(found, case, memory):
    make = CASES[case][0]
    expected, _ = train(make, lambda f: f, False, "store", batch(make))
    assert not isinstance(found[case, memory], str), found[case, memory]
    grads, _ = found[case, memory]
    assert grads.keys() == expected.keys()
    for name, grad in expected.items():
        if grad is None:
            assert grads[name] is None or not grads[name].any()
        else:
            assert (grads[name] - grad).norm() <= 1e-6 * grad.norm(), name


@pytest.mark.parametrize("memory", ["reverse", "checkpoint"])
@pytest.mark.parametrize("case", CASES)
def test_in_parallel_any_memory_gives_the_gradients_and_buffers_of_everything_stored(found, case, memory):
    assert not isinstance(found[case, memory], str), found[case, memory]
    for tensors, others in zip(found[case, memory], found[case, "store"], strict=True):
        assert tensors.keys() == others.keys()
        for name, other in others.items():
            assert tensors[name] is other is None or torch.equal(tensors[name], other), name
