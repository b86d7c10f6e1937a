"""What depth costs: bytes counted by hand, variants compared before they are measured, rows that say all."""

import csv
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from mocapsnet.errors import Irreproducible, WrongArgument
from mocapsnet.measure import memory, memory_report, report
from mocapsnet.measure.inspect import bytes_for_backward
from mocapsnet.measure.memory import VARIANTS, WITHOUT_MOMENTUM, bench_memory, make_step
from mocapsnet.measure.memory_report import Row
from mocapsnet.measure.settings import BenchSettings
from mocapsnet.nn.routing import CapsLayer

SMALL = BenchSettings(depths=[1, 2], batch=3, capsules=4, capsule_dim=2, repeats=2, device="cpu")
NETWORK = replace(SMALL, of="network", dataset="mnist", channels=4, depths=[1])
ELEMENTS = SMALL.batch * SMALL.capsules * SMALL.capsule_dim
CPU = torch.device("cpu")


@pytest.fixture
def settings(tmp_path) -> BenchSettings:
    return replace(SMALL, output=str(tmp_path / "memory"))


def kept(variant: str, blocks: int, settings: BenchSettings = SMALL) -> float:
    """Bytes kept for backward, per element of the state."""
    return make_step(settings, blocks, CPU).memory(variant)[0] / ELEMENTS


def test_exact_reverse_keeps_12_bytes_at_4_and_at_64_blocks():
    assert kept("exact-reverse", 4) == kept("exact-reverse", 64) == 12


def test_exact_reverse_spills_3_bytes_every_158_layers_and_no_more():
    assert [kept("exact-reverse", blocks) for blocks in (78, 80, 160)] == [12, 12 + 3, 12 + 2 * 3]


def test_float_reverse_keeps_8_bytes():
    assert kept("float-reverse", 4) == kept("float-reverse", 64) == 8


@pytest.mark.parametrize("variant", ["float-checkpoint", "exact-checkpoint", "torch-checkpoint"])
def test_a_checkpoint_keeps_4_bytes_per_layer(variant):
    assert [kept(variant, blocks) for blocks in (1, 4, 16)] == [8, 32, 128]


@pytest.mark.parametrize("variant", ["float-store", "exact-store"])
def test_store_keeps_as_much_for_every_layer(variant):
    one, four, sixteen = (kept(variant, blocks) for blocks in (1, 4, 16))
    assert sixteen - four == 12 * (four - one) / 3
    assert four > 4 * kept("torch-checkpoint", 4)


def test_nothing_but_the_trunk_grows_in_a_network():
    def growth(variant: str) -> float:
        one, three = (make_step(NETWORK, blocks, CPU).memory(variant)[0] for blocks in (1, 3))
        return (three - one) / ELEMENTS

    assert growth("exact-reverse") == growth("float-reverse") == 0
    assert growth("exact-checkpoint") == growth("torch-checkpoint") == 4 * 4
    stored = kept("exact-store", 3) - kept("exact-store", 1)
    assert growth("exact-store") == pytest.approx(stored)
    # They keep every activation of the layers, as storing does, but no velocity.
    assert growth("torch-checkpoint") < growth("plain") <= growth("residual") <= stored


def test_a_storage_is_counted_once_and_a_parameter_never():
    layer = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    assert bytes_for_backward(lambda: layer(x) + layer(x), layer) == x.nbytes
    assert bytes_for_backward(lambda: (x * x[:1]).sum(), layer) == x.nbytes


@pytest.mark.parametrize("made", [SMALL, NETWORK], ids=["trunk", "network"])
def test_every_variant_computes_the_same_step_however_often(made):
    step = make_step(made, 2, CPU)
    first = {variant: chain(*step.results(variant)) for variant in VARIANTS}
    again = {variant: chain(*step.results(variant)) for variant in reversed(VARIANTS)}
    stored = {name: list(first[f"{name}-store"]) for name in ("float", "exact")}
    first |= {f"{name}-store": tensors for name, tensors in stored.items()}
    for variant in VARIANTS:
        exact = variant.startswith("exact")
        for ours, twice, theirs in zip(
            first[variant], again[variant], stored["exact" if exact else "float"], strict=True
        ):
            assert torch.equal(ours, twice)
            torch.testing.assert_close(ours, theirs, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-6)


@pytest.mark.parametrize("made", [SMALL, NETWORK], ids=["trunk", "network"])
def test_a_row_for_every_variant_at_every_depth(made, tmp_path):
    rows = bench_memory(replace(made, depths=[2, 1, 2], output=str(tmp_path)))
    names = [*VARIANTS, *(WITHOUT_MOMENTUM if made.of == "network" else ())]
    assert [(row.blocks, row.variant) for row in rows] == [(n, name) for n in (1, 2) for name in names]
    for row in rows:
        assert row.layers == 2 * row.blocks
        assert row.kept_bytes > 0
        assert (row.after_forward_bytes, row.peak_bytes, row.note) == (None, None, "")
        assert 0 < row.seconds_p20 <= row.seconds <= row.seconds_p80
        if row.variant in WITHOUT_MOMENTUM:
            assert row.gradient_error is None
        else:
            assert row.gradient_error <= (0 if row.variant.startswith("exact") else 1e-5)


class Drifting(CapsLayer):
    """A layer that never gives the same result twice."""

    def forward(self, u):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(u) * (1 + 1e-3 * self.calls)


def test_nothing_is_measured_when_a_layer_is_broken(settings, monkeypatch):
    monkeypatch.setattr(memory, "CapsLayer", Drifting)
    monkeypatch.setattr(memory.Step, "seconds", lambda *_: pytest.fail("measured all the same"))
    with pytest.raises(Irreproducible, match=r"-checkpoint must agree with store"):
        bench_memory(settings)


def test_nothing_is_measured_when_the_inversion_is_broken(settings, monkeypatch):
    make_arithmetic = memory.MomentumSequence.make_arithmetic

    def broken(self, x):
        arithmetic = make_arithmetic(self, x)
        if self.memory == "reverse" and self.arithmetic == "exact":
            before = arithmetic.unstep
            arithmetic.unstep = lambda n, kept, *rest: before(n, (kept[0] + 1, kept[1]), *rest)
        return arithmetic

    monkeypatch.setattr(memory.MomentumSequence, "make_arithmetic", broken)
    with pytest.raises(Irreproducible, match=r"exact-reverse must agree with store to 0 .* at 2 layers"):
        bench_memory(settings)


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")),
        lambda: torch.empty(2**55),
    ],
    ids=["GPU", "CPU"],
)
def test_a_variant_out_of_memory_has_a_row_and_the_others_go_on(settings, monkeypatch, refuse):
    class TooLarge(memory.MomentumSequence):
        def forward(self, x):
            refuse()

    monkeypatch.setitem(VARIANTS, "exact-store", TooLarge)
    rows = bench_memory(settings)
    assert len(rows) == 2 * len(VARIANTS)
    for row in rows:
        if row.variant == "exact-store":
            assert row == Row("exact-store", row.blocks, 2 * row.blocks, *[None] * 7, note="out of memory")
        else:
            assert row.seconds > 0
            assert not row.note
    assert memory_report.table(rows).count("out of memory") == 2
    figures, picture = report.write("memory", rows, settings, memory_report.draw)
    assert figures.read_text().count("out of memory") == 2
    assert picture.stat().st_size > 10_000


def test_another_error_is_no_lack_of_memory():
    with pytest.raises(RuntimeError, match="something else"):
        memory.attempt(lambda: (_ for _ in ()).throw(RuntimeError("something else")))


def test_a_line_of_the_csv_says_all_that_its_figures_hang_on(settings):
    rows = bench_memory(settings)
    figures, picture = report.write("memory", rows, settings, memory_report.draw)
    version = torch.__version__.split("+")[0]
    assert figures.name == f"memory-trunk-b3-c4-capsule-dim-2-cpu-1-thread-torch{version}.csv"
    assert picture == figures.with_suffix(".png")
    with figures.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert " ".join(lines[0]) == (
        "variant blocks layers kept_bytes after_forward_bytes peak_bytes seconds seconds_p20 seconds_p80 "
        "gradient_error note of batch capsules capsule_dim routing gamma repeats device threads torch python "
        "mocapsnet commit"
    )
    for row, line in zip(rows, lines, strict=True):
        assert line["variant"] == row.variant
        assert int(line["kept_bytes"]) == row.kept_bytes
        assert float(line["seconds"]) == row.seconds
        assert line["peak_bytes"] == ""
        assert (line["batch"], line["capsules"], line["gamma"], line["threads"]) == ("3", "4", "0.9", "1")
        assert line["device"]


def test_the_name_of_a_network_tells_what_is_not_as_usual(tmp_path):
    other = replace(NETWORK, capsule_dim=8, channels=256, gamma=0.5, routing="leaky-rba")
    assert report.file_name("memory", other, "NVIDIA H200", "2.11.0+cu128") == (
        "memory-network-b3-c4-routing-leaky-rba-gamma-0.5-dataset-mnist-nvidia-h200-torch2.11.0"
    )
    assert report.file_name("memory", BenchSettings(), "CPU, 2 threads", "2.13.0") == (
        "memory-trunk-b128-c32-cpu-2-threads-torch2.13.0"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"depths": []}, "depths must hold one number of blocks or more, got \\[\\]"),
        ({"depths": [2, 0]}, "each of depths must be a whole number >= 1, got 0"),
        ({"batch": 0}, "batch must be a whole number >= 1, got 0"),
        ({"repeats": 0}, "repeats must be a whole number >= 1, got 0"),
        ({"of": "trunks"}, "of must be one of 'trunk', 'network', got 'trunks'"),
        ({"device": "tpu"}, "device must be one of"),
        ({"gamma": 0}, "gamma must be > 0"),
        ({"routing": "rbb"}, "did you mean 'rba'"),
        ({"of": "network", "dataset": "cifar"}, "dataset must be one of"),
        ({"batch": 10**15}, "torch cannot make 1 such blocks, lower the sizes"),
        ({"capsules": 10**12}, "torch cannot make 1 such blocks, lower the sizes"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_leaves_nothing(settings, options, expected):
    with pytest.raises(WrongArgument, match=expected):
        bench_memory(replace(settings, **options))
    assert not Path(settings.output).exists()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("made", [SMALL, NETWORK], ids=["trunk", "network"])
def test_a_gpu_counts_what_is_allocated(made, tmp_path):
    rows = bench_memory(replace(made, device="cuda", depths=[1, 4], output=str(tmp_path)))
    for row in rows:
        assert row.peak_bytes >= row.after_forward_bytes > 0
        assert row.kept_bytes > 0
    found = {(row.variant, row.blocks): row for row in rows}
    assert found["exact-reverse", 4].kept_bytes == found["exact-reverse", 1].kept_bytes
    assert found["exact-store", 4].kept_bytes > found["exact-store", 1].kept_bytes
    store, reverse = (
        [found[variant, n].after_forward_bytes for n in (1, 4)]
        for variant in ("exact-store", "exact-reverse")
    )
    assert store[1] - store[0] > reverse[1] - reverse[0]
