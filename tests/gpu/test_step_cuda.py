"""A training step on a CUDA GPU: one graph that does what the eager step does, and nobody waits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import pytorch_optimizer
import torch

import mocapsnet as mc
from mocapsnet.data import Dataset, Split
from mocapsnet.errors import Interrupted, NotFinite
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed.networks import build, random_split
from mocapsnet.measure.speed.step import Trained
from mocapsnet.train import fit
from mocapsnet.train.device import How, compiled
from mocapsnet.train.graph import WARM_UP, GraphedStep
from mocapsnet.train.progress import Progress
from mocapsnet.train.state import State

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def few_digits():
    whole = mc.data.load("mnist6k")
    train = Split(whole.train.images[:1000], whole.train.labels[:1000])
    return Dataset("digits", train, whole.test, whole.class_names)


digits = pytest.fixture(few_digits, scope="module", name="digits")


@pytest.fixture(autouse=True)
def captured(capsys):
    """A step that stayed eager says so; tests in which it should read that themselves."""
    yield
    assert "no CUDA graph" not in capsys.readouterr().out


def small_network(network=mc.MoCapsNet, **options):
    torch.manual_seed(0)
    return network((1, 28, 28), classes=10, capsules=8, channels=32, **options)


def run(digits, folder, epochs=6, model=None, **options):
    """Weights and metrics of a run: 32 images a step, the last batch of an epoch smaller."""
    options = {"compile": False, "batch": 32, **options}
    model = small_network() if model is None else model
    mc.fit(model, digits, epochs=epochs, device="cuda", output=folder, **options)
    rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()[1:]]
    return model.state_dict(), [float(row[2]) for row in rows]


@pytest.mark.parametrize("precision", ["bf16-mixed", "tf32", "fp32"])
def test_the_graph_does_what_the_eager_step_does(digits, tmp_path, precision):
    (_, graphed), (_, eager) = (
        run(digits, tmp_path / graph, graph=graph, precision=precision) for graph in ("auto", "off")
    )
    assert graphed == pytest.approx(eager, rel=1e-6)
    assert graphed[-1] < graphed[0] / 2


@pytest.mark.parametrize("options", [{}, {"compile": True}, {"graph": "off"}], ids=str)
def test_a_run_repeats_to_the_bit(digits, tmp_path, options):
    one, other = (run(digits, tmp_path / name, epochs=2, **options) for name in ("one", "other"))
    assert one[1] == other[1]
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


@pytest.mark.parametrize("compile", [False, True])
def test_two_hundred_whole_steps_are_the_eager_ones_and_repeat_to_the_bit(compile):
    """The network that is timed: its convolutions, stem and trunk run their own programs."""
    data = random_split("cifar10", 1280).to("cuda")

    def losses(graph):
        model = build(BenchSettings(), "mocapsnet", 2)
        trained = Trained(model, data, 128, How("bf16-mixed", graph, compile), torch.device("cuda"))
        with compiled(model, compile):
            found = [float(trained.train()) for _ in range(200)]
        assert graph == "off" or trained.step.captured
        return found

    graphed, again, eager = (losses(graph) for graph in ("auto", "auto", "off"))
    assert graphed == again
    assert graphed == pytest.approx(eager, rel=1e-6)
    assert graphed[-1] < graphed[0] / 2


def test_a_step_that_cannot_be_captured_says_why_and_stays_eager(digits, tmp_path, capsys):
    model = small_network()
    # Whoever asks for a number waits for the device, which no graph can.
    model.caps2.register_forward_hook(
        lambda module, given, capsules: print(end="0" * int(capsules.sum() > 1e9))
    )
    _, losses = run(digits, tmp_path, epochs=3, model=model)
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "no CUDA graph: " in line)
    assert "captur" in said
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert losses[-1] < losses[0]


def test_a_graph_that_memory_does_not_suffice_for_is_done_without(digits, tmp_path, monkeypatch, capsys):
    compute = GraphedStep.compute

    def too_large(step, *arguments, **numbered):
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return compute(step, *arguments, **numbered)

    monkeypatch.setattr(GraphedStep, "compute", too_large)
    _, losses = run(digits, tmp_path, epochs=3)
    assert "no CUDA graph: CUDA out of memory" in capsys.readouterr().out
    assert losses[-1] < losses[0]


def test_nothing_waits_for_the_device_within_an_epoch(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    model, data = build(BenchSettings(), "mocapsnet", 1), random_split("cifar10", 1280).to("cuda")
    trained = Trained(model, data, 128, How("bf16-mixed", "auto", False), torch.device("cuda"))
    for _ in range(WARM_UP + 1):
        trained.train()
    state = State({}, model, trained.optimizer.optimizer, trained.schedule)
    with Progress(epochs=1, images=1280, state=state) as progress:
        progress.bar.mininterval = 0
        torch.cuda.set_sync_debug_mode("error")
        try:
            for indices, offsets in trained.batches:
                outcome = trained.step(indices, offsets, state.step + 1)
                state.count(outcome.loss, outcome.correct, len(indices))
                progress.advance(state, len(indices))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert state.seen == 1280


def test_reversing_and_storing_train_alike(digits, tmp_path):
    # The fused trunk, which stores nothing, rounds as it likes.
    one, other = (
        run(
            digits,
            tmp_path / memory,
            epochs=2,
            model=small_network(blocks=3, memory=memory, backend="reference"),
        )
        for memory in ("reverse", "store")
    )
    assert all(torch.equal(one[0][name], other[0][name]) for name in one[0])


def test_a_run_that_was_stopped_goes_on_to_the_same_end(digits, tmp_path, monkeypatch):
    whole = run(digits, tmp_path / "whole", epochs=3)
    count = State.count

    def stop(state, *arguments):
        count(state, *arguments)
        if (state.epoch, state.step) == (1, 11):
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("mocapsnet.train.state.State.count", stop)
    with pytest.raises(Interrupted):
        run(digits, tmp_path / "stopped", epochs=3)
    monkeypatch.undo()
    resumed = run(digits, tmp_path / "stopped", epochs=3)
    assert resumed[1] == pytest.approx(whole[1], rel=1e-6)
    assert all(torch.equal(resumed[0][name], whole[0][name]) for name in whole[0])


def test_a_run_that_was_killed_goes_on_to_the_same_end(digits, tmp_path):
    whole = run(digits, tmp_path / "whole", epochs=3)
    # This file as a program: killed_in below.
    ended = subprocess.run([sys.executable, __file__, str(tmp_path / "killed")])
    assert ended.returncode == -signal.SIGKILL
    # Two epochs are there, and are not made again.
    rows = (tmp_path / "killed" / "metrics.csv").read_text().splitlines()[1:]
    assert len(rows) == 2
    resumed = run(digits, tmp_path / "killed", epochs=3)
    assert resumed[1] == pytest.approx(whole[1], rel=1e-6)
    assert (tmp_path / "killed" / "metrics.csv").read_text().splitlines()[1:3] == rows
    assert all(torch.equal(resumed[0][name], whole[0][name]) for name in whole[0])


@pytest.mark.parametrize("graph", ["auto", "off"])
def test_a_step_that_is_not_finite_is_named_and_updates_nothing(digits, tmp_path, graph, monkeypatch):
    model = small_network()
    count, kept = State.count, {}

    def poison(state, *arguments):
        count(state, *arguments)
        if (state.epoch, state.step) == (0, 9):
            model.caps1.W.data[0, 0, 0, 0] = float("nan")
            kept.update({name: value.clone() for name, value in model.state_dict().items()})

    monkeypatch.setattr("mocapsnet.train.state.State.count", poison)
    with pytest.raises(
        NotFinite, match=r"step 10: the weight caps1\.W is not finite; the update was not made"
    ):
        run(digits, tmp_path, model=model, graph=graph)
    assert all(
        torch.equal(value.nan_to_num(7), kept[name].nan_to_num(7))
        for name, value in model.state_dict().items()
    )


@pytest.mark.parametrize("compile", [False, True])
def test_ranger21_is_captured_and_is_pytorch_optimizers(digits, tmp_path, compile, monkeypatch):
    ways = {
        "graph": {"graph": "auto", "compile": compile},
        "eager": {"graph": "off"},
        "library": {"graph": "off"},
    }
    runs = {}
    for name, way in ways.items():
        if name == "library":
            monkeypatch.setattr("mocapsnet.train.ranger21.Ranger21", library_ranger21)
        runs[name] = run(digits, tmp_path / name, epochs=3, optimizer="ranger21", precision="fp32", **way)
        told = json.loads((tmp_path / name / "run.json").read_text())["step"]
        assert told["graph"] == (name == "graph")
    for name in ("graph", "eager"):
        assert runs[name][1] == pytest.approx(runs["library"][1], rel=1e-3)
    assert runs["graph"][1][-1] < runs["graph"][1][0]


def library_ranger21(parameters, steps, lr, compile):
    return pytorch_optimizer.Ranger21(parameters, num_iterations=steps, lr=lr)


def killed_in(folder):
    """The run of test_a_run_that_was_killed, up to the fifth step of its last epoch."""
    count = State.count

    def kill(state, *arguments):
        count(state, *arguments)
        if (state.epoch, state.step) == (2, 5):
            os.kill(os.getpid(), signal.SIGKILL)

    State.count = kill
    fit.SECONDS_BETWEEN_SAVED_EPOCHS = dict.fromkeys(fit.SECONDS_BETWEEN_SAVED_EPOCHS, 0)
    run(few_digits(), folder, epochs=3)


if __name__ == "__main__":
    killed_in(Path(sys.argv[1]))
