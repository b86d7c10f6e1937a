"""The benches on a CUDA GPU: graphs are compared before they are timed, and what they allocate is counted."""

from dataclasses import replace

import pytest
import torch

from mocapsnet.errors import Irreproducible
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed import epoch, inference, networks, routing, step
from mocapsnet.measure.timing import Peak, seconds_of, warm
from mocapsnet.nn.routing import ROUTINGS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
SIZES = {"batch": 32, "capsules": 8, "channels": 32, "dataset": "mnist6k", "device": "cuda"}


@pytest.fixture
def settings(tmp_path) -> BenchSettings:
    return BenchSettings(depths=[1, 3], repeats=3, compile=False, output=str(tmp_path), **SIZES)


def bytes_of(model: torch.nn.Module) -> int:
    return sum(weight.nbytes for weight in model.parameters())


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp32"])
def test_a_graphed_step_is_compared_and_counted(settings, precision):
    rows = step.bench_step(replace(settings, precision=precision))
    for row in rows:
        assert 0 < row.forward_backward_seconds_p20 <= row.forward_backward_seconds_p80
        assert row.peak_bytes > 0
        if row.network in settings.networks:
            assert row.graph_error <= step.GRAPH_LOSSES
            assert row.last_loss < row.first_loss
            # Weights, gradients and two moments at least.
            weights = bytes_of(networks.build(settings, row.network, row.blocks))
            assert row.peak_bytes > 4 * weights
        elif row.network == "naive":
            assert row.graph_error is None
    peaks = {row.network: row.peak_bytes for row in rows if row.blocks == 1}
    assert peaks["convolutions"] < peaks["capsnet"]


def test_the_data_set_is_in_no_peak(settings, monkeypatch):
    settings = replace(settings, depths=[1], networks=["capsnet"])
    few = {row.network: row.peak_bytes for row in step.bench_step(settings)}
    monkeypatch.setitem(networks.COUNTS, "mnist6k", (200_000, 1_000))
    many = {row.network: row.peak_bytes for row in step.bench_step(settings)}
    assert abs(many["capsnet"] - few["capsnet"]) < 2**23 < 195_000 * 784


def test_a_graph_that_computes_something_else_is_refused(settings, monkeypatch):
    capture, kept = step.GraphedStep.capture, []

    def wrong(self, indices, offsets):
        right = self.data
        kept.append(right.labels.roll(1))
        self.data = right._replace(labels=kept[-1])
        captured = capture(self, indices, offsets)
        self.data = right
        return captured

    monkeypatch.setattr(step.GraphedStep, "capture", wrong)
    with pytest.raises(Irreproducible, match="graphed and eager steps must have equal losses"):
        step.bench_step(settings)


def test_a_graph_keeps_what_it_reads():
    def largest(x):
        return lambda: x.amax()

    replay = warm(largest(torch.full((2**24,), 3.0, device="cuda")), torch.device("cuda"), graphed=True)
    other = torch.full((2**24,), 5.0, device="cuda")
    assert (float(replay()), float(other[0])) == (3, 5)


@pytest.mark.parametrize("compile", [False, True])
def test_lengths_as_a_graph_are_those_of_eager_mode(settings, compile):
    rows = inference.bench_inference(replace(settings, depths=[1], compile=compile))
    for row in rows:
        assert row.seconds > 0
        assert row.peak_bytes > 0
        assert row.compiled_error <= inference.COMPILED["bf16-mixed"]


def test_every_implementation_of_a_routing_is_timed(settings):
    rows = routing.bench_routing(replace(settings, depths=None, precision="fp32"))
    assert {row.routing for row in rows} == {*ROUTINGS}
    assert all(row.forward_seconds > 0 and row.error_ratio <= 2 for row in rows)


def test_epochs_run_as_graphs(settings):
    rows = epoch.bench_epoch(replace(settings, depths=[1], repeats=10, epochs=3, networks=["mocapsnet"]))
    assert rows[-1].train_loss < rows[0].train_loss
    assert rows[-1].test_accuracy > 0.5


def test_a_function_as_a_graph_gives_what_it_gave():
    x = torch.ones(4, device="cuda")
    doubled = warm(lambda: 2 * x, x.device, graphed=True)
    x.fill_(3)
    seconds, given = seconds_of(doubled, x.device, times=5)
    assert given.tolist() == [6, 6, 6, 6]
    assert seconds > 0


def test_a_peak_counts_from_its_start():
    before = torch.empty(2**24, dtype=torch.uint8, device="cuda")
    peak = Peak(before.device)
    held = torch.empty(2**22, dtype=torch.uint8, device="cuda")
    most = peak.of(lambda: torch.empty(2**23, dtype=torch.uint8, device="cuda"))
    assert most == held.nbytes + 2**23
