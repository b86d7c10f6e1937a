"""Which GPUs run the fused programs, and what they have room for; no GPU is asked."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mocapsnet import ops
from mocapsnet.errors import CannotRun
from mocapsnet.ops import backend
from mocapsnet.ops.conv import fused as conv
from mocapsnet.ops.rba.fused import backward_sizes
from mocapsnet.ops.stem import fused as stem

SCRIPT = Path(__file__).parents[2] / "scripts" / "compile_programs.py"
A100, RTX4090, B200, RTX5090 = (
    backend.Chip(*told) for told in ((8, 166912), (8, 101376), (10, 232448), (12, 101376))
)
CPU = torch.device("cpu")
# The trunk: with e laid over threads it took 304 bytes and two and a half times the instructions. And ∂w of
# the primary convolution: with 64 places at a time it took 3,488 on an A100 under Triton 3.6.
NEVER_SPILL = {"momentum_layers", "weights"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("capability", ["80", "89", "90"])
def test_every_program_of_a_step_compiles_and_fits(capability, tmp_path):
    told = tmp_path / "programs.csv"
    command = [sys.executable, SCRIPT, f"[{capability}]", "--output", told]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    rows = [*csv.DictReader(told.open())]
    assert {"stem and primary", "trunk", "Adam", "rba, CapsLayer 1"} < {row["what"] for row in rows}
    assert {row["precision"] for row in rows} == {"bf16", "float32"}
    for row in rows:
        assert int(row["shared"]) <= int(row["limit"]), row
        # Some spill a little; 4,000 bytes were seen where the compiler gave up.
        assert int(row["stack"]) <= (0 if row["program"] in NEVER_SPILL else 512), row


@pytest.fixture
def old(monkeypatch):
    """A GPU that Triton does not support."""
    monkeypatch.setattr(backend, "H200", backend.Chip(7, 65536))


def test_an_old_gpu_is_refused_in_words(old):
    u, W = torch.randn(2, 5, 4), torch.randn(3, 5, 4, 4)
    for op in (ops.rba, ops.sda, ops.em):
        with pytest.raises(CannotRun, match=r"compute capability 8\.0 or newer"):
            op(u, W, backend="fused")


def test_an_old_gpu_gets_no_program_where_nobody_asked_for_one(old):
    x, w = torch.zeros(64, 256, 12, 12, dtype=torch.bfloat16), torch.zeros(256, 3, 9, 9)
    assert backend.convolution(x, 256) is None
    assert backend.stem(torch.zeros(2, 3, 32, 32), w, torch.bfloat16) is None
    assert backend.adam([w]) is None


def test_a_gpu_like_the_h200_gets_them():
    x, w = torch.zeros(64, 256, 12, 12, dtype=torch.bfloat16), torch.zeros(256, 3, 9, 9)
    assert backend.convolution(x, 256) is conv
    assert backend.stem(torch.zeros(2, 3, 32, 32), w, torch.bfloat16) is stem


def test_a_compiled_graph_asks_for_the_chip_once():
    def seen(x):
        return x + backend.chip(x.device).major

    compiled = torch.compile(seen, backend="eager", fullgraph=True)
    assert compiled(torch.zeros(())) == backend.H200.major
    # Marked as torch would mark it.
    marked = torch.compiler.assume_constant_result(lambda: None)
    assert vars(marked).items() <= vars(backend.chip).items()


@pytest.mark.parametrize(
    ("chip", "stages"), [(backend.H200, 4), (B200, 4), (A100, 4), (RTX4090, 3), (RTX5090, 3)]
)
def test_the_convolution_loads_as_far_ahead_as_there_is_room(chip, stages, monkeypatch):
    monkeypatch.setattr(backend, "H200", chip)
    assert conv.stages(torch.zeros(1)) == {"num_stages": stages}


@pytest.mark.parametrize("kernel_size", [5, 9])
@pytest.mark.parametrize("chip", [backend.H200, B200, A100, RTX4090, RTX5090])
def test_the_stem_takes_the_first_tiles_that_fit(chip, kernel_size, monkeypatch):
    monkeypatch.setattr(backend, "H200", chip)
    w = torch.zeros(256, 3, kernel_size, kernel_size)
    chosen = stem.FORTH.index(stem.forth(w, CPU))
    assert chosen == (1 if kernel_size == 9 and chip in (RTX4090, RTX5090) else 0)


def test_a_gpu_for_which_triton_fails_at_the_stem_gets_no_program(monkeypatch):
    images, w = torch.zeros(2, 3, 32, 32), torch.zeros(256, 3, 9, 9)
    monkeypatch.setattr(backend, "H200", B200)
    for fails, found in (({10}, None), (set(), stem)):
        monkeypatch.setattr(stem, "FAILS", fails)
        assert backend.stem(images, w, torch.bfloat16) is found
    monkeypatch.setattr(stem, "FAILS", {10})
    monkeypatch.setattr(backend, "H200", A100)
    assert backend.stem(images, w, torch.bfloat16) is stem


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(8, 8, 32), (8, 16, 100), (32, 32, 32), (1, 1, 10), (64, 64, 17)], ids=str)
def test_the_way_back_of_many_capsules_stays_within_a_chip(sizes, dtype):
    D, E, J = sizes
    found = backward_sizes(128, D, E, J, dtype, RTX4090.memory)
    columns = found["EP"] * found["JB"]
    # Products need 16 of each axis.
    assert min(columns, found["BB"], found["DP"]) >= 16
    assert columns * dtype.itemsize * (found["BB"] + 2 * found["DP"]) <= RTX4090.memory or found["BB"] == 16


@pytest.mark.parametrize(
    ("op", "asked", "sizes", "why"),
    [
        ("rba", "fused", (32, 8, 1000, 16), "at most 2048, got 1000 and 16"),
        ("rba", "auto", (32, 8, 100, 16), "at most 1024, got 100 and 16"),
        ("rba", "fused", (32, 8, 100, 16), None),
        ("rba", "fused", (256, 64, 32, 32), "W of one i takes 263,168 bytes on chip, of 232,448"),
        ("sda", "auto", (32, 8, 100, 16), None),
        ("sda", "fused", (32, 8, 1000, 16), "at most 2048, got 1000 and 16"),
        ("sda", "fused", (32, 20, 10, 16), "D times E must be at most 256, got 20 and 16"),
        ("em", "fused", (32, 8, 10, 300), "E must be at most 256, got 300"),
        ("em", "fused", (32, 8, 1000, 16), None),
    ],
    ids=str,
)
def test_what_is_too_large_for_a_gpu_is_told(op, asked, sizes, why):
    I, D, J, E = sizes  # noqa: E741
    told = backend.too_large(op, torch.zeros(1, I, D), torch.zeros(1).expand(J, I, E, D), asked)
    assert told == why if why is None else why in told


@pytest.mark.parametrize("sizes", [(4, 2, 40, 33), (3, 17, 5, 16), (2, 2, 2, 300)], ids=str)
@pytest.mark.parametrize("op", [ops.rba, ops.sda, ops.em], ids=lambda op: op.__name__)
def test_an_interpreter_takes_any_size(op, sizes):
    I, D, J, E = sizes  # noqa: E741
    u, W = torch.randn(1, I, D), 0.1 * torch.randn(J, I, E, D)
    fused, exact = op(u, W, backend="fused"), op(u.double(), W.double(), backend="reference")
    torch.testing.assert_close(fused.double(), exact, rtol=1e-4, atol=1e-5)
