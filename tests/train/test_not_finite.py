"""A loss, gradient or weight that is not finite stops a run before it does harm."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import command, small_network, write_tiny
from torch.optim.optimizer import register_optimizer_step_post_hook

import mocapsnet as mc
from mocapsnet.cli import main
from mocapsnet.errors import NotFinite
from mocapsnet.train.checkpoint import LAST, read


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return mc.data.load("tiny", write_tiny(tmp_path_factory.mktemp("data")))


def at_step(model: mc.MoCapsNet, step: int, action: Callable[[], None]) -> None:
    """Do something right before a training step, counted from 1."""
    count = 0

    def hook(*_):
        nonlocal count
        count += model.training
        if count == step and model.training:
            action()

    model.register_forward_pre_hook(hook)


def stopped(model: mc.MoCapsNet, tiny, folder: Path) -> str:
    """What a run of six steps an epoch says when it stops in the second: nothing was harmed."""
    weights = {}
    model.register_forward_pre_hook(
        lambda *_: weights.update({k: v.clone() for k, v in model.state_dict().items()})
    )
    with pytest.raises(NotFinite) as error:
        mc.fit(model, tiny, epochs=3, batch=10, output=folder)
    for name, value in model.state_dict().items():
        assert torch.equal(value.nan_to_num(7), weights[name].nan_to_num(7)), name
    state = read(folder / LAST)
    assert (state["epoch"], state["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in state["model"].values())
    assert not (folder / "model.safetensors").exists()
    return str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_weight_is_named_with_its_step_and_the_run_can_go_on(tiny, tmp_path, value):
    model = small_network()
    at_step(model, 9, lambda: model.caps1.W.data[0, 0, 0].fill_(value))
    told = stopped(model, tiny, tmp_path / "run")
    assert told == "step 9: the weight caps1.W is not finite; the update was not made"
    for folder in (tmp_path / "run", tmp_path / "one go"):
        mc.fit(small_network(), tiny, epochs=3, batch=10, output=folder)
    one, other = (tmp_path / name / "model.safetensors" for name in ("run", "one go"))
    assert one.read_bytes() == other.read_bytes()


class Poison(torch.autograd.Function):
    """The identity, whose gradient is NaN."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, gradient):
        return gradient * float("nan")


def test_a_bad_gradient_under_a_finite_loss_is_named(tiny, tmp_path):
    model = small_network()
    at_step(model, 8, lambda: model.caps1.register_forward_hook(lambda *both: Poison.apply(both[2])))
    told = stopped(model, tiny, tmp_path)
    assert told.startswith("step 8: the gradient of caps1.")
    assert told.endswith(" is not finite; the update was not made")


def test_gradients_whose_norm_overflows_are_refused(tiny, tmp_path):
    model = small_network()
    weight = model.caps1.W
    at_step(model, 7, lambda: weight.register_hook(lambda gradient: torch.full_like(gradient, 3e38)))
    told = stopped(model, tiny, tmp_path)
    assert told == "step 7: the gradients are finite one by one, but too large; the update was not made"


@pytest.mark.parametrize("module", ["stem", "primary", "trunk.layers.1", "caps2", "decoder"])
def test_the_first_module_with_a_bad_output_is_named(tiny, tmp_path, module):
    model = small_network()
    bad = model.get_submodule(module)
    at_step(model, 10, lambda: bad.register_forward_hook(lambda *both: both[2] * float("inf")))
    assert stopped(model, tiny, tmp_path) == (
        f"step 10: the output of {module} is not finite; the update was not made"
    )


def test_a_state_beyond_the_range_of_exact_arithmetic_is_refused(tiny, tmp_path):
    model = small_network()
    at_step(model, 11, lambda: model.trunk.layers[0].register_forward_hook(lambda *both: both[2] + 1e5))
    told = stopped(model, tiny, tmp_path)
    assert told.startswith("step 11: x must stay within ±511 and velocities within twice that in exact")
    assert told.endswith("; the update was not made")


def test_a_loss_that_is_not_finite_by_itself_is_named(tiny, tmp_path, monkeypatch):
    model, loss = small_network(), mc.margin_loss

    def infinite(*tensors, **options):
        return loss(*tensors, **options) / 0

    at_step(model, 12, lambda: monkeypatch.setattr("mocapsnet.train.objective.margin_loss", infinite))
    assert stopped(model, tiny, tmp_path) == "step 12: the loss is inf; the update was not made"


def test_weights_that_the_last_update_of_an_epoch_ruined_are_never_saved(tiny, tmp_path):
    model, steps = small_network(), 0

    def ruin(*_):
        nonlocal steps
        steps += 1
        if steps == 12:
            model.caps2.W.data.fill_(float("nan"))

    hook = register_optimizer_step_post_hook(ruin)
    try:
        with pytest.raises(NotFinite, match=r"step 12: its update made the weight caps2\.W not finite"):
            mc.fit(model, tiny, epochs=2, batch=10, output=tmp_path)
    finally:
        hook.remove()
    state = read(tmp_path / LAST)
    assert (state["epoch"], state["step"]) == (1, 0)
    assert state["model"]["caps2.W"].isfinite().all()
    assert not (tmp_path / "model.safetensors").exists()


def test_the_command_ends_with_1_and_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(command(write_tiny(tmp_path / "data"), tmp_path / "run", lr=1e30))
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert told.startswith("mocapsnet train: step 2: the output of primary")
    assert told.endswith(" is not finite; the update was not made\n")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lr": 2e30}, "lr must be <= 1e+30, got 2e+30"),
        ({"decay": 1.5}, "decay must be <= 1, got 1.5"),
        ({"seed": 2**32}, "seed must be <= 4294967295, got 4294967296"),
    ],
)
def test_a_number_that_no_update_or_generator_can_take_is_refused(tmp_path, capsys, options, expected):
    with pytest.raises(SystemExit) as ended:
        main(command(write_tiny(tmp_path / "data"), tmp_path / "run", **options))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"mocapsnet train: {expected}\n"
