"""The command line: its surface is pinned, its errors are one line."""

import dataclasses
import inspect
import signal
import subprocess
import sys

import pytest

import mocapsnet as mc
from mocapsnet.cli import VERBS, ExploreSettings, ExportSettings, PredictSettings, main
from mocapsnet.measure.settings import READS, BenchSettings
from mocapsnet.train.settings import Settings


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err.strip()


def test_the_surface_is_pinned():
    assert list(VERBS) == [
        *("train", "evaluate", "predict", "inspect", "bench", "reproduce", "explore", "export"),
    ]
    names = " ".join(field.name for field in dataclasses.fields(VERBS["reproduce"].settings))
    assert names == "seeds only smoke data download device jobs output runs note verify epochs"
    names = " ".join(field.name for field in dataclasses.fields(Settings))
    assert names == (
        "dataset data download model blocks routing epochs batch optimizer lr decay schedule warm_up "
        "steps_told weight_decay ema loss smoothing reconstruction_weight mask target reduction normalise "
        "pad window flip jitter cutout mix turn zoom crop_test test validation limit seed device "
        "precision graph compile output resume iterations capsules capsule_dim class_dim channels "
        "kernel_size weight_std routing_bias gradient skip backend decoder_width gamma memory arithmetic"
    )
    names = " ".join(field.name for field in dataclasses.fields(BenchSettings))
    assert names == (
        "of depths networks naive_depths released_depths batch capsules capsule_dim routing gamma dataset "
        "channels repeats device output backend memory arithmetic precision graph compile epochs seeds decay "
        "data limit"
    )
    assert list(READS) == ["step", "memory", "routing", "inference", "epoch"]
    assert BenchSettings().blocks("memory") == [1, 2, 4, 8, 16, 32, 64]
    assert BenchSettings().blocks("step") == BenchSettings().blocks("inference") == [*range(1, 9), 20]
    assert BenchSettings().naive_blocks("step") == [1, 8]
    assert [str(BenchSettings().folder(what)) for what in ("memory", "step", "epoch")] == [
        "results/memory",
        "results/speed",
        "results/speed",
    ]
    for settings, names in (
        (PredictSettings, "json csv invert device"),
        (ExploreSettings, "host port data"),
        (ExportSettings, "format output"),
    ):
        assert " ".join(field.name for field in dataclasses.fields(settings)) == names


def test_every_constructor_argument_is_a_setting_with_the_same_default():
    settings = Settings()
    parameters = inspect.signature(mc.MoCapsNet).parameters
    for name in parameters.keys() - {"image_shape", "classes", "capsules", "channels"}:
        assert getattr(settings, name) == parameters[name].default, name


def test_every_option_of_fit_is_a_setting_with_the_same_default():
    settings, parameters = Settings(), inspect.signature(mc.fit).parameters
    for name in parameters.keys() - {"model", "dataset", "epochs", "batch"}:
        assert getattr(settings, name) == parameters[name].default, name


def test_the_three_networks_share_their_arguments():
    shared = inspect.signature(mc.CapsNet).parameters
    momentum = inspect.signature(mc.MoCapsNet).parameters
    assert inspect.signature(mc.ResCapsNet).parameters == shared
    assert {name: momentum[name] for name in shared} == dict(shared)
    assert momentum.keys() - shared.keys() == {"gamma", "memory", "arithmetic"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "",
            "give a command: train, evaluate, predict, inspect, bench, reproduce, explore, export; --help",
        ),
        ("trian", "mocapsnet: there is no trian; did you mean train?"),
        ("train --epoch 3", "mocapsnet train: there is no --epoch; did you mean --epochs?"),
        ("train --zzz=3", "mocapsnet train: there is no --zzz; --help lists what there is"),
        (
            "train --routing rbb",
            "--routing must be one of rba, leaky-rba, sda, em, got rbb; did you mean rba?",
        ),
        ("train --gradient lst", "--gradient must be one of last, all, got lst; did you mean last?"),
        ("train --epochs many", "--epochs must be a whole number, got many"),
        ("train --lr fast", "--lr must be a number, got fast"),
        ("train --epochs 0", "epochs must be a whole number >= 1, got 0"),
        ("train --batch 0", "batch must be a whole number >= 1, got 0"),
        ("train --seed -1", "seed must be a whole number >= 0, got -1"),
        ("train --lr -1", "lr must be a finite number > 0, got -1.0"),
        ("train --reconstruction_weight -1", "reconstruction_weight must be a number >= 0 and < inf, got"),
        ("train --blocks -1", "blocks must be a whole number >= 0, got -1"),
        ("train --channels 30", "channels must be a multiple of capsule_dim 8, got 30; 24 is one"),
        ("train --kernel_size 15", "the smallest that fits is 29x29"),
        ("train --schedule cosin", "--schedule must be one of exponential, cosine, got cosin; did you mean"),
        ("train --flip maybe", "--flip must be true or false, got maybe"),
        ("train --flip", "--flip needs true or false behind it"),
        ("train --flip --epochs 3", "--flip needs true or false behind it"),
        ("train --epochs", "--epochs needs a whole number behind it"),
        ("train --routing", "--routing needs one of rba, leaky-rba, sda, em behind it"),
        ("train --config", "--config needs a word behind it"),
        ("bench step --depths", "--depths needs whole numbers such as [1,2,4] behind it"),
        ("predict mnist-small a.png --csv", "--csv needs a word behind it"),
        ("train --ema 1", "ema must be a number >= 0 and < 1, got 1.0"),
        ("train --window 40", "window must be <= 28, the side of the images, got 40"),
        ("train --model convnet --loss margin --reconstruction_weight 1", "ConvNet has no decoder"),
        ("train --gamma 1", "gamma must be < 1, got 1"),
        ("train --skip block", "skip='block' is a residual trunk's and MoCapsNet has none; use ResCapsNet"),
        (
            "inspect mnist-small --blocks 20 --routing em",
            "a run has its own settings, got blocks 20, routing 'em'; leave them or the run out",
        ),
        ("bench speed", "what must be one of 'step', 'memory', 'routing', 'inference', 'epoch', got 'speed'"),
        ("bench stap", "got 'stap'; did you mean 'step'?"),
        ("bench memory --of trunks", "--of must be one of trunk, network, got trunks; did you mean trunk?"),
        ("bench memory --depths 4", "--depths must be whole numbers such as [1,2,4], got 4"),
        ("bench memory --depths [1,many]", "--depths must be whole numbers such as [1,2,4], got [1, 'many']"),
        ("bench memory --depths [1,0]", "each of depths must be a whole number >= 1, got 0"),
        ("bench memory --depths []", "depths must hold one number of blocks or more, got []"),
        ("bench memory --batch 0", "batch must be a whole number >= 1, got 0"),
        ("bench memory --repeats 0", "repeats must be a whole number >= 1, got 0"),
        ("bench step --networks []", "networks must hold one network or more, got []"),
        ("bench step --networks [mocap]", "each of networks must be one of 'mocapsnet', 'rescapsnet', "),
        (
            "bench step --networks capsnet",
            "--networks must be words such as [mocapsnet,capsnet], got capsnet",
        ),
        ("bench step --depths []", "depths must hold one number of blocks or more, got []"),
        ("bench step --naive_depths [3] --depths [1,2]", "each of naive_depths must be among depths, got 3"),
        (
            "bench step --released_depths [3] --depths [1]",
            "each of released_depths must be among depths, got 3",
        ),
        (
            "bench step --released_depths [1] --depths [1] --routing em",
            "routing of released_depths must be one of",
        ),
        ("bench inference --released_depths [1]", "bench inference does not read released_depths"),
        ("bench step --batch 0", "batch must be a whole number >= 1, got 0"),
        ("bench step --dataset cifar", "dataset must be one of"),
        ("bench step --channels 30", "channels must be a multiple of capsule_dim 8, got 30; 24 is one"),
        ("bench step --gamma 0", "gamma must be > 0 with memory='reverse', got 0"),
        ("bench step --epochs 3", "bench step does not read epochs, got 3; epoch would"),
        ("bench step --of network", "bench step does not read of, got 'network'; memory would"),
        (
            "bench memory --memory store",
            "bench memory does not read memory, got 'store'; step, inference, epoch",
        ),
        (
            "bench routing --depths [1]",
            "bench routing does not read depths, got [1]; step, memory, inference, ",
        ),
        ("bench routing --repeats 0", "repeats must be a whole number >= 1, got 0"),
        ("bench epoch --epochs 0", "epochs must be a whole number >= 1, got 0"),
        (
            "bench epoch --dataset mnist6k --limit 5001",
            "limit must be <= 5000, the training images there are",
        ),
        ("bench inference --backend fussed", "--backend must be one of auto, reference, fused, got fussed"),
        ("reproduce", "give what to reproduce: table-1, table-2"),
        ("reproduce table-9", "what must be one of 'table-1', 'table-2'"),
        ("reproduce table-2 --seeds 0", "seeds must be a whole number >= 1, got 0"),
        ("reproduce table-2 --jobs 0", "jobs must be a whole number >= 1, got 0"),
        ("reproduce table-2 --only imagenet", "no recipe of table-2 fits only 'imagenet'; there is recipe"),
        ("reproduce table-2 --only bloks=1", "must be one of 'recipe', 'dataset'"),
        ("reproduce table-2 --smoke maybe", "--smoke must be true or false, got maybe"),
        ("reproduce report --output nowhere", "output must be a folder with results, got 'nowhere'"),
        ("reproduce --verify nowhere.json --epochs 0", "epochs must be a whole number >= 1, got 0"),
        ("explore --port many", "--port must be a whole number, got many"),
        ("explore --port 70000", "port must be from 0 to 65535, got 70000; 0 picks a free one"),
        ("explore --host nowhere.invalid", "host 'nowhere.invalid' has no address here"),
        ("export mnist-small --format tf", "--format must be one of onnx, torch, hub, got tf"),
        ("predict mnist-small a.png --json true --csv b.csv", "give --json true or --csv FILE, not both"),
        ("bench memory --device tpu", "--device must be one of auto, cuda, mps, cpu, got tpu"),
    ],
)
def test_a_wrong_argument_is_one_line_and_exit_code_2(capsys, arguments, expected):
    assert expected in refused(capsys, *arguments.split())


def test_a_backend_that_cannot_run_is_told_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("mocapsnet.ops.backend.INTERPRETED", False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    told = refused(capsys, "train", "--routing", "em", "--backend", "fused")
    assert "backend='fused' cannot run: it needs a CUDA GPU" in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_sweep_says_that_the_same_command_goes_on(capsys, monkeypatch, number):
    monkeypatch.setattr("mocapsnet.paper.reproduce.reproduce", lambda *_: signal.raise_signal(number))
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "table-2", "--runs=here"])
    assert stopped.value.code == 128 + number
    assert capsys.readouterr().err == "mocapsnet: saved in here; the same command goes on\n"


@pytest.mark.parametrize("under", ["", "sub", "sub/sub"])
@pytest.mark.parametrize("command", ["train", "bench step", "bench memory", "reproduce table-2"])
def test_a_file_where_the_output_folder_should_be_is_a_wrong_argument(capsys, tmp_path, command, under):
    (tmp_path / "file").touch()
    told = refused(capsys, *command.split(), "--device=cpu", f"--output={tmp_path / 'file' / under}")
    assert f"output must be a folder, got the file {tmp_path / 'file'}; choose another place" in told


@pytest.mark.parametrize("format", ["onnx", "hub"])
def test_nothing_is_exported_below_a_file(capsys, tmp_path, format):
    (tmp_path / "file").touch()
    told = refused(
        capsys, "export", "mnist-small", f"--format={format}", f"--output={tmp_path / 'file' / 'to'}"
    )
    assert f"must be a folder, got the file {tmp_path / 'file'}; choose another place" in told


def test_print_config_shows_what_a_config_file_takes(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--blocks", "7", "--print_config"])
    assert stopped.value.code == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out)
    with pytest.raises(SystemExit):
        main(["train", "--config", str(tmp_path / "run.yaml"), "--routing", "em", "--print_config"])
    printed = capsys.readouterr().out
    assert "blocks: 7" in printed
    assert "routing: em" in printed


def test_explore_says_which_network_it_shows_unless_told(capsys):
    with pytest.raises(SystemExit):
        main(["explore", "--help"])
    told = "".join(capsys.readouterr().out.split())
    assert "namesofpretrainednetworks,uptothree.(type:str,default:['mnist-small'])" in told


@pytest.mark.parametrize("module", ["mocapsnet", "mocapsnet.cli"])
def test_the_version_is_printed(module):
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == f"mocapsnet {mc.__version__}"


def test_the_defaults_of_the_embedded_digits_fill_what_is_not_given():
    resolved = Settings(epochs=3).resolved()
    assert resolved.epochs == 3
    assert None not in (resolved.batch, resolved.capsules, resolved.channels)
