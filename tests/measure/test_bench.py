"""What was asked for and cannot be had is refused, and not timed as something else."""

from dataclasses import replace

import pytest
import torch

from mocapsnet.cli import main
from mocapsnet.errors import CannotRun
from mocapsnet.measure.bench import BENCHES, bench
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.measure.speed import step
from mocapsnet.train.graph import GraphedStep
from mocapsnet.train.step import Step

SIZES = {"batch": 3, "capsules": 3, "capsule_dim": 4, "channels": 8, "dataset": "mnist6k", "device": "cpu"}
SMALL = BenchSettings(depths=[1], networks=["capsnet"], **SIZES)


@pytest.fixture
def broken_compiler(monkeypatch):
    def broken(*_):
        raise RuntimeError("no such pass")

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **_: plain(function, backend=broken))


REFUSED = {
    "step": "the step is not compiled",
    "inference": "torch.compile fails here: backend='broken' raised",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_torch_cannot_compile_is_refused_in_one_line(what, tmp_path, broken_compiler, capsys):
    told = {"networks": "[capsnet]", "depths": "[1]", "repeats": 1, "compile": "true", "output": tmp_path}
    with pytest.raises(SystemExit) as stopped:
        main(["bench", what, *(f"--{name}={value}" for name, value in (SIZES | told).items())])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"bench: {REFUSED[what]}" in told
    assert told.endswith("; --compile false times it as written\n")
    assert not [*tmp_path.iterdir()]


def test_another_runtime_error_is_not_taken_for_the_compiler_s(monkeypatch):
    def fail(_):
        raise RuntimeError("CUDA error")

    monkeypatch.setitem(BENCHES, "step", BENCHES["step"]._replace(measure=fail))
    with pytest.raises(RuntimeError, match="CUDA error") as raised:
        bench("step", SMALL)
    assert not isinstance(raised.value, CannotRun)


def test_an_epoch_whose_step_is_not_compiled_is_refused(tmp_path, broken_compiler):
    settings = replace(SMALL, epochs=1, limit=6, compile=True, output=str(tmp_path))
    with pytest.raises(CannotRun, match="the step is not compiled; --compile false times it"):
        bench("epoch", settings)
    assert not [*tmp_path.iterdir()]


def test_an_epoch_whose_step_is_no_graph_is_refused(tmp_path, monkeypatch):
    class Fallen(GraphedStep):
        __call__ = Step.__call__

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.failed = RuntimeError("no capture")

    monkeypatch.setattr(step, "make_step", lambda *arguments, **_: Fallen(*arguments[:5]))
    with pytest.raises(CannotRun, match="the step is no graph; --graph off times it without one"):
        bench("epoch", replace(SMALL, epochs=1, limit=6, output=str(tmp_path)))
    assert not [*tmp_path.iterdir()]
