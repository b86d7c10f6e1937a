"""How fast: nothing is timed before it is right, rows say all that they depend on, every bench runs small."""

import copy
import csv
import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from mocapsnet import ops
from mocapsnet.errors import Irreproducible, NotFinite, WrongArgument
from mocapsnet.measure import timing
from mocapsnet.measure.bench import BENCHES, bench
from mocapsnet.measure.report import EAGER, aligned, file_name, write
from mocapsnet.measure.settings import READS, BenchSettings
from mocapsnet.measure.speed import epoch, inference, naive, networks, routing, step
from mocapsnet.measure.speed.networks import against_naive, build, random_split
from mocapsnet.nn import primary
from mocapsnet.nn.load import NETWORKS
from mocapsnet.nn.routing import ROUTINGS, CapsLayer

SIZES = {"batch": 3, "capsules": 3, "capsule_dim": 4, "channels": 8, "dataset": "mnist6k", "device": "cpu"}
SMALL = BenchSettings(depths=[1, 2], repeats=2, **SIZES)
NAMES = ["mocapsnet", "rescapsnet", "capsnet"]


@pytest.fixture(autouse=True)
def uninterpreted(monkeypatch):
    """A user's CPU runs no Triton; the tests' own would take minutes."""
    monkeypatch.setattr("mocapsnet.ops.backend.INTERPRETED", False)


@pytest.fixture
def settings(tmp_path) -> BenchSettings:
    return replace(SMALL, output=str(tmp_path / "speed"))


@pytest.fixture
def never_timed(monkeypatch):
    for module in (step, inference, routing):
        monkeypatch.setattr(module, "in_turn", lambda *_: pytest.fail("timed all the same"))


def ordered(row, name: str) -> bool:
    p20, median, p80 = (getattr(row, f"{name}{end}") for end in ("_p20", "", "_p80"))
    return 0 < p20 <= median <= p80


@pytest.mark.parametrize("name", sorted(NETWORKS))
@pytest.mark.parametrize("kind", ROUTINGS)
def test_every_network_agrees_with_its_naive_version(name, kind):
    settings = replace(SMALL, routing=kind, gamma=0.7)
    lengths, gradients = against_naive(build(settings, name.lower(), 2), random_split("mnist6k", 4))
    assert 0 <= lengths < 1e-5
    assert 0 < gradients < 1e-4


def test_the_naive_step_follows_the_same_losses_and_they_fall(settings):
    model, data = build(settings, "mocapsnet", 1), random_split("mnist6k", 64)
    ours, theirs = (
        [float(trained.train()) for _ in range(12)]
        for trained in (
            step.Trained(network, data, 16, EAGER, torch.device("cpu"))
            for network in (copy.deepcopy(model), naive.Naive(model))
        )
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert max(ours[-3:]) < min(ours[:3])


def test_the_released_networks_have_rows_where_they_are_asked_for(settings, tmp_path):
    asked = replace(settings, depths=[1, 2], naive_depths=[], released_depths=[2], repeats=1)
    rows = step.bench_step(asked)
    names = ("released-mocapsnet", "released-rescapsnet")
    assert [(row.blocks, row.network) for row in rows if row.network in names] == [(2, n) for n in names]
    path, _ = write("step", rows, replace(asked, output=str(tmp_path)))
    lines = {line["network"]: line for line in csv.DictReader(path.open()) if line["blocks"] == "2"}
    told = ("backend", "memory", "arithmetic", "precision", "graph", "compile")
    assert [lines[names[0]][name] for name in told] == [
        "reference",
        "reverse",
        "float",
        "fp32",
        "off",
        "False",
    ]
    assert [lines[names[1]][name] for name in told[:3]] == ["reference", "", ""]


def test_a_step_has_a_row_for_every_network_at_every_depth(settings):
    rows = step.bench_step(replace(settings, depths=[2, 1, 2], naive_depths=[2], repeats=1))
    assert [(row.blocks, row.network) for row in rows] == [
        *((1, name) for name in (*NAMES, "convolutions")),
        *((2, name) for name in (*NAMES, "naive", "convolutions")),
    ]
    for row in rows:
        beside = {other.network: other for other in rows if other.blocks == row.blocks}
        assert ordered(row, "forward_backward_seconds")
        floor = beside["convolutions"].forward_backward_seconds
        assert row.over_convolutions == row.forward_backward_seconds / floor
        if "naive" in beside:
            assert row.over_naive == row.forward_backward_seconds / beside["naive"].forward_backward_seconds
        else:
            assert row.over_naive is row.step_over_naive is None
        assert (row.peak_bytes, row.graph_error, row.note) == (None, None, "")
        if row.network == "convolutions":
            assert row.seconds is row.first_loss is None
            assert row.over_convolutions == 1
            continue
        assert ordered(row, "seconds")
        assert row.images_per_second == 3 / row.seconds
        if row.network in NAMES:
            assert row.lengths_error < networks.LENGTHS
            assert row.gradient_error < networks.GRADIENTS


@pytest.mark.parametrize("name", NAMES)
def test_what_rounds_is_compared_too(settings, monkeypatch, name):
    model, data = build(settings, name, 1), random_split("mnist6k", 64)
    how = networks.How("bf16-mixed", "off", False)
    assert networks.in_precision(model, data, EAGER) == (None, None)
    lengths, gradients = networks.in_precision(model, data, how)
    assert 0 < lengths < 5e-3
    assert 1e-4 < gradients < 5e-2
    convolve = primary.convolve
    wrong = {
        "nothing": lambda maps: 0 * maps,
        "another image's": lambda maps: maps.roll(1, 0),
        "half the gradient": lambda maps: (maps + maps.detach()) / 2,
    }
    for spoil in wrong.values():
        monkeypatch.setattr(primary, "convolve", lambda *given, spoil=spoil: spoil(convolve(*given)))
        with pytest.raises(Irreproducible, match=r"CapsNet in bf16-mixed and its naive version must have"):
            networks.in_precision(model, data, how)


def test_a_naive_version_that_fails_in_a_precision_allows_no_more(settings, monkeypatch):
    model, data = build(settings, "mocapsnet", 1), random_split("mnist6k", 64)
    convolve, outcome = primary.convolve, networks.outcome

    def failing(network, data, count, precision):
        found = outcome(network, data, count, precision)
        spoilt = isinstance(network, naive.Naive) and precision != "fp32"
        return {part: [x * math.nan for x in given] if spoilt else given for part, given in found.items()}

    monkeypatch.setattr(networks, "outcome", failing)
    how = networks.How("bf16-mixed", "off", False)
    networks.in_precision(model, data, how)
    monkeypatch.setattr(primary, "convolve", lambda *given: 0 * convolve(*given))
    with pytest.raises(Irreproducible):
        networks.in_precision(model, data, how)


def test_inference_has_a_row_for_every_network_at_every_depth(settings):
    rows = inference.bench_inference(replace(settings, networks=["capsnet"]))
    assert [(row.blocks, row.network) for row in rows] == [
        (blocks, name) for blocks in (1, 2) for name in ("capsnet", "naive", "convolutions")
    ]
    for row in rows:
        assert ordered(row, "seconds")
        assert row.images_per_second == 3 / row.seconds
        assert row.compiled_error == 0
        assert (row.peak_bytes, row.note) == (None, "")


def test_routing_has_a_row_for_every_implementation_that_runs(settings):
    rows = routing.bench_routing(replace(settings, depths=None, repeats=1))
    shapes = ["3x4 -> 3x4", "72x4 -> 3x4"]
    assert [(row.routing, row.shape, row.backend) for row in rows] == [
        (name, shape, backend) for name in ROUTINGS for shape in shapes for backend in ("reference", "auto")
    ]
    for row in rows:
        assert ordered(row, "forward_seconds")
        assert ordered(row, "forward_backward_seconds")
        assert 0 < row.output_error < 1e-5
        assert 0 < row.gradient_error < 1e-4
        assert 0 < row.error_ratio <= 2
        if row.backend == "reference":
            assert row.over_reference == 1


def test_a_routing_that_torch_cannot_compile_is_timed_as_it_is(settings, monkeypatch):
    def broken(*_):
        raise RuntimeError("no such pass")

    plain = torch.nn.Module.compile
    monkeypatch.setattr(CapsLayer, "compile", lambda self, **_: plain(self, backend=broken))
    rows = routing.bench_routing(replace(settings, depths=None, repeats=1, compile=True))
    assert {row.note for row in rows} == {"not compiled: torch cannot"}
    assert all(ordered(row, "forward_backward_seconds") for row in rows)


def test_epochs_are_those_of_training(settings, tmp_path):
    from mocapsnet import data
    from mocapsnet.train.fit import fit

    settings = replace(settings, depths=[1], repeats=10, networks=["rescapsnet"], epochs=2, limit=10, batch=4)
    rows = epoch.bench_epoch(replace(settings, seeds=2, decay=0.5))
    assert [(row.network, row.blocks, row.seed, row.epoch) for row in rows] == [
        ("rescapsnet", 1, seed, n) for seed in (0, 1) for n in (1, 2)
    ]
    rows = rows[2:]
    assert (rows[0].images, rows[0].train_images, rows[0].test_images) == ("real", 10, 1000)
    for row in rows:
        assert min(row.train_seconds, row.evaluation_seconds) > 0
        assert row.images_per_second == pytest.approx(10 / row.train_seconds)
    spent = sum(row.train_seconds + row.evaluation_seconds for row in rows)
    assert spent <= rows[-1].total_seconds < spent + 1
    model, how = build(settings, "rescapsnet", 1, seed=1), {"seed": 1, "decay": 0.5, "device": "cpu"}
    fit(model, data.load("mnist6k"), epochs=2, batch=4, limit=10, **how, output=tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open(newline="") as file:
        for row, line in zip(rows, csv.DictReader(file), strict=True):
            assert row.train_loss == float(line["train_loss"])
            assert row.test_accuracy == float(line["test_accuracy"])


def test_an_epoch_of_a_data_set_that_is_not_there_is_random_and_says_so(settings, tmp_path, monkeypatch):
    monkeypatch.setitem(epoch.COUNTS, "svhn", (7, 5))
    settings = replace(settings, depths=[1], repeats=10, networks=["capsnet"], epochs=1, dataset="svhn")
    (row,) = epoch.bench_epoch(replace(settings, data=str(tmp_path)))
    assert (row.images, row.train_images, row.test_images, row.test_accuracy) == ("random", 7, 5, None)


def test_random_images_can_be_learnt_and_repeat():
    split = random_split("cifar10", 50)
    assert split.images.shape == (50, 3, 32, 32)
    assert split.images.dtype == torch.uint8
    assert torch.equal(split.images, random_split("cifar10", 50).images)
    assert not torch.equal(split.images, random_split("cifar10", 50, seed=1).images)
    pixels = split.images.double().flatten(1)
    pixels = pixels - pixels.mean(1, keepdim=True)
    alike = torch.corrcoef(pixels)
    same = split.labels[:, None] == split.labels
    assert alike[same & ~torch.eye(50, dtype=torch.bool)].min() > 0.3 > alike[~same].max()


@pytest.mark.usefixtures("never_timed")
@pytest.mark.parametrize("run", [step.bench_step, inference.bench_inference])
def test_nothing_is_timed_when_lengths_differ_from_the_naive_version(run, settings, monkeypatch):
    monkeypatch.setitem(naive.ROUTINGS, "rba", lambda *all: 1.001 * naive.rba(*all))
    with pytest.raises(Irreproducible, match="MoCapsNet and its naive version must have equal lengths"):
        run(settings)


@pytest.mark.usefixtures("never_timed")
def test_nothing_is_timed_when_gradients_differ_from_the_naive_version(settings, monkeypatch):
    def through_all(u_hat, u, layer, bias):
        layer.gradient = "all"
        return naive.rba(u_hat, u, layer, bias)

    monkeypatch.setitem(naive.ROUTINGS, "rba", through_all)
    with pytest.raises(Irreproducible, match="naive version must have equal gradients in"):
        step.bench_step(settings)


@pytest.mark.usefixtures("never_timed")
@pytest.mark.parametrize("wrong", ["output", "gradient"])
def test_nothing_is_timed_when_an_implementation_is_wrong(wrong, settings, monkeypatch):
    class Scaled(torch.autograd.Function):
        """Only the gradient is wrong."""

        @staticmethod
        def forward(ctx, v):
            return v.clone()

        @staticmethod
        def backward(ctx, dv):
            return (1 + 1e-5) * dv

    right = ops.routing.sda_reference.sda

    def broken(*arguments):
        v, c = right(*arguments)
        return (Scaled.apply(v) if wrong == "gradient" else (1 + 1e-5) * v), c

    # On a CPU, auto is the reference for sda, told apart here by its backend.
    monkeypatch.setattr(ops.routing, "from_memory", lambda u: False)
    monkeypatch.setattr(ops.routing.sda_batched, "sda", broken)
    monkeypatch.setattr(routing, "ROUTINGS", {"sda": ROUTINGS["sda"]})
    with pytest.raises(Irreproducible, match=r"sda of 3 capsules, auto: .* twice the reference's .* than 2"):
        routing.bench_routing(replace(settings, depths=None))


def test_what_runs_otherwise_than_in_eager_mode_is_refused(settings, monkeypatch):
    monkeypatch.setattr(inference, "warm", lambda function, *_: lambda: 1.001 * function())
    with pytest.raises(Irreproducible, match="Lengths as it is timed and in eager mode must be equal"):
        inference.bench_inference(settings)


def test_a_step_that_is_not_finite_ends_the_bench(settings, monkeypatch):
    monkeypatch.setattr(step, "against_naive", lambda *_: (0.0, 0.0))
    made = step.build

    def broken(*arguments):
        model = made(*arguments)
        model.caps1.W.data[0, 0, 0, 0] = math.nan
        return model

    monkeypatch.setattr(step, "build", broken)
    with pytest.raises(NotFinite, match=r"the weight caps1\.W is not finite"):
        step.bench_step(settings)


def test_a_contender_out_of_memory_has_a_row_and_the_others_go_on(settings, monkeypatch):
    class TooLarge(naive.Naive):
        def forward(self, images, labels=None):
            if self.training and len(images) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(images, labels)

    monkeypatch.setattr(step, "Naive", TooLarge)
    rows = {
        row.network: row for row in step.bench_step(replace(settings, depths=[1], networks=["mocapsnet"]))
    }
    assert rows["naive"].note == "out of memory"
    assert rows["naive"].seconds is rows["naive"].forward_backward_seconds is None
    assert rows["mocapsnet"].seconds > 0
    assert rows["mocapsnet"].over_naive is None
    assert "out of memory" in BENCHES["step"].table(list(rows.values()))


def test_things_are_timed_in_turn_and_told_what_they_gave():
    calls, given, steps = [], [], []
    functions = {name: lambda name=name: calls.append(name) or len(calls) for name in "ab"}
    times = timing.in_turn(
        functions, torch.device("cpu"), 3, lambda: steps.append(1), lambda *seen: given.append(seen)
    )
    assert calls == [*"ababab"]
    assert given == [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5), ("b", 6)]
    assert len(steps) == 6
    assert all(0 <= found.p20 <= found.seconds <= found.p80 for found in times.values())


def test_times_are_the_median_and_percentiles():
    assert timing.times_of([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == (3.5, 2.0, 5.0)
    assert timing.cells(None) == (None, None, None)
    seconds, given = timing.seconds_of(lambda: "this", torch.device("cpu"), times=3)
    assert given == "this"
    assert seconds >= 0


@pytest.mark.parametrize("error", [2e-3, math.inf, math.nan])
def test_an_error_above_what_is_allowed_is_refused(error):
    assert timing.agree("they must be equal", 1e-3, 1e-3) == 1e-3
    with pytest.raises(Irreproducible, match=r"they must be equal before anything is timed: .* than 0\.001"):
        timing.agree("they must be equal", error, 1e-3)


def test_a_network_starts_again_from_its_first_weights(settings):
    model = build(settings, "mocapsnet", 1)
    trained = step.Trained(model, random_split("mnist6k", 9), 3, EAGER, torch.device("cpu"))
    first = [float(trained.train()) for _ in range(3)]
    trained.restart()
    assert [float(trained.train()) for _ in range(3)] == first
    assert len(set(first)) == 3


@pytest.mark.parametrize("what", ["step", "inference"])
def test_a_line_of_the_csv_says_all_that_its_figures_hang_on(what, settings):
    told = bench(what, replace(settings, depths=[1], memory="store", networks=["mocapsnet"]))
    version = torch.__version__.split("+")[0]
    assert told.figures.name == (
        f"{what}-mnist6k-b3-capsules-3-capsule-dim-4-channels-8-memory-store-cpu-1-thread-torch{version}.csv"
    )
    assert told.picture == told.figures.with_suffix(".png")
    assert told.picture.stat().st_size > 10_000
    with told.figures.open(newline="") as file:
        lines = list(csv.DictReader(file))
    named = [(line["network"], line["memory"]) for line in lines]
    assert named == [("mocapsnet", "store"), ("naive", "store"), ("convolutions", "")]
    for line in lines:
        assert line.keys() >= set(READS[what]) - {"networks", "naive_depths", "released_depths"}
        assert (line["precision"], line["graph"], line["compile"]) == ("fp32", "off", "False")
        assert (line["batch"], line["threads"]) == ("3", "1")
        assert line["torch"] == version or line["torch"].startswith(version)
        assert line["commit"]
    cells = told.table.splitlines()[1].split()
    assert cells[:2] == ["mocapsnet", "1"]
    assert cells[2] == f"{1e3 * float(lines[0]['seconds']):,.2f}"


def test_a_row_carries_no_setting_that_it_did_not_run_with(settings):
    told = bench("step", replace(settings, depths=[1], networks=["mocapsnet", "capsnet"], gamma=0.7))
    with told.figures.open(newline="") as file:
        rows = {row["network"]: row for row in csv.DictReader(file)}
    names = ("routing", "gamma", "memory", "arithmetic", "precision")
    assert {name: [row[of] for of in names] for name, row in rows.items()} == {
        "mocapsnet": ["rba", "0.7", "reverse", "exact", "fp32"],
        "capsnet": ["rba", "", "", "", "fp32"],
        "naive": ["rba", "0.7", "store", "float", "fp32"],
        "convolutions": ["", "", "", "", "fp32"],
    }


@pytest.mark.parametrize("what", ["routing", "epoch"])
def test_a_bench_without_a_picture_writes_its_csv_alone(what, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(routing, "ROUTINGS", {"rba": ROUTINGS["rba"]})
    mine = {
        "routing": {"depths": None},
        "epoch": {"repeats": 10, "epochs": 1, "limit": 6, "depths": [1], "networks": ["capsnet"]},
    }[what]
    told = bench(what, replace(settings, **mine))
    assert (told.picture, told.drawn) == (None, False)
    assert list(told.figures.parent.iterdir()) == [told.figures]
    assert told.figures.name.startswith(f"{what}-mnist6k-b3-")
    assert len(told.table.splitlines()) == len(told.figures.read_text().splitlines())
    assert str(tmp_path) not in told.figures.read_text()


def test_the_name_tells_what_is_not_as_usual():
    other = BenchSettings(batch=512, routing="sda", graph="off", compile=False, depths=[1], repeats=3)
    assert file_name("step", other, "NVIDIA H200", "2.11.0+cu128") == (
        "step-cifar10-b512-routing-sda-graph-off-compile-false-nvidia-h200-torch2.11.0"
    )
    assert file_name("epoch", BenchSettings(epochs=60, data="there"), "NVIDIA H200", "2.11.0") == (
        "epoch-cifar10-b128-nvidia-h200-torch2.11.0"
    )


def test_a_picture_shows_memory_where_it_was_measured(settings, tmp_path):
    rows = [
        step.StepRow(name, n, *[1e-3 * n] * 6, *[None] * 12) for n in (1, 2) for name in (*NAMES, "naive")
    ]
    sizes = []
    for told in (rows, [row._replace(peak_bytes=2**20) for row in rows]):
        BENCHES["step"].draw(told, settings, "CPU, 1 thread", tmp_path / "drawn.png")
        with Image.open(tmp_path / "drawn.png") as drawn:
            sizes.append(drawn.size)
    assert sizes[1][0] == 2 * sizes[0][0]


@pytest.mark.parametrize("naive_ms", [2, 200, None])
def test_a_picture_is_drawn_however_far_off_the_naive_version_is(settings, tmp_path, monkeypatch, naive_ms):
    scales, save = [], Figure.savefig

    def look(figure, *arguments, **options):
        scales.extend(axes.get_yscale() for axes in figure.axes)
        save(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", look)
    times = {"capsnet": naive_ms and 1e-3, "naive": naive_ms and 1e-3 * naive_ms}
    rows = [step.StepRow(name, 1, *[time] * 6, *[None] * 12) for name, time in times.items()]
    BENCHES["step"].draw(rows, settings, "CPU, 1 thread", tmp_path / "drawn.png")
    assert scales == ["log" if naive_ms == 200 else "linear"]


def test_a_table_lines_its_columns_up():
    assert aligned([["word", "n"], ["a", "10"], ["bcdefg", ""]]) == "word     n\na       10\nbcdefg"


@pytest.mark.parametrize(
    ("what", "options", "expected"),
    [
        ("step", {"networks": []}, "networks must hold one network or more"),
        ("step", {"networks": ["mocapnet"]}, "did you mean 'mocapsnet'"),
        ("step", {"depths": [0]}, "each of depths must be a whole number >= 1, got 0"),
        ("step", {"output": __file__}, "output must be a folder, got the file"),
        ("step", {"batch": 10**15}, "torch cannot make 1000000000000000 images, lower the sizes"),
        ("step", {"capsules": 10**12}, "torch cannot make a network of 1 such blocks, lower the sizes"),
        ("step", {"precision": "fp8"}, "precision must be one of"),
        ("step", {"device": "tpu"}, "device must be one of"),
        ("inference", {"dataset": "cifar"}, "dataset must be one of"),
        ("inference", {"limit": 3}, "bench inference does not read limit, got 3; epoch would"),
        ("routing", {"capsules": 0, "depths": None}, "capsules must be a whole number >= 1, got 0"),
        ("routing", {"depths": None, "batch": 10**15}, "torch cannot make 3 such capsules, lower the sizes"),
        ("epoch", {"limit": 0, "repeats": 10}, "limit must be a whole number >= 1, got 0"),
        ("epoch", {"seeds": 0, "repeats": 10}, "seeds must be a whole number >= 1, got 0"),
        ("epoch", {"decay": 0.0, "repeats": 10}, "decay must be > 0 and <= 1, got 0.0"),
        ("epoch", {"dataset": "cifar", "repeats": 10}, "dataset must be one of"),
    ],
)
def test_what_cannot_be_measured_is_refused(settings, what, options, expected):
    with pytest.raises(WrongArgument, match=expected):
        bench(what, replace(settings, **options))
