import os
from typing import Any, NamedTuple

import hypothesis
import pytest
import torch
from torch import Tensor

# Without a GPU, Triton's programs are interpreted; this must be said before anything imports them.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from mocapsnet import ops
from mocapsnet.ops.em.reference import em
from mocapsnet.ops.rba.reference import rba
from mocapsnet.ops.sda.reference import sda

# The same examples on every run: a failure that comes and goes helps nobody.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, max_examples=40
)
hypothesis.settings.load_profile("repeatable")
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", help="a folder for pictures of the explorer, as its tests see it")


class Route(NamedTuple):
    """A routing under test: the public op, its reference, and the options that make it this one."""

    name: str
    op: Any
    reference: Any
    options: dict[str, Any]

    def __call__(self, u: Tensor, W: Tensor, bias: Tensor | None = None, **arguments: Any) -> Tensor:
        return self.op(u, W, bias, **self.options, **arguments)

    def coupling(self, u: Tensor, W: Tensor, bias: Tensor | None = None, **arguments: Any) -> Tensor:
        return self.reference(u, W, bias, **self.options, **arguments)[1]


ROUTES = [
    Route("rba", ops.rba, rba, {}),
    Route("leaky-rba", ops.rba, rba, {"leaky": True}),
    Route("sda-sample", ops.sda, sda, {"scope": "sample"}),
    Route("sda-batch", ops.sda, sda, {"scope": "batch"}),
    Route("em", ops.em, em, {}),
]


@pytest.fixture(scope="session", params=ROUTES, ids=lambda route: route.name)
def route(request: pytest.FixtureRequest) -> Route:
    return request.param


@pytest.fixture(scope="session", params=["last", "all"])
def gradient(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=["rba", "leaky-rba", "sda", "em"])
def routing(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session", params=["CapsNet", "ResCapsNet", "MoCapsNet"])
def network(request: pytest.FixtureRequest) -> Any:
    """One of the three networks, small: call it with what should differ."""
    import mocapsnet as mc

    small = {
        "image_shape": (1, 9, 9),
        "classes": 4,
        "kernel_size": 3,
        "channels": 8,
        "capsule_dim": 4,
        "capsules": 3,
        "class_dim": 5,
    }
    return lambda **options: getattr(mc, request.param)(**(small | options))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
