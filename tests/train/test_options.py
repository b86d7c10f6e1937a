"""Every option of fit() beyond the paper's text: what it does to a run, and that a stopped run goes on."""

import csv
import math
import os
import signal
from pathlib import Path

import pytest
import torch
from processes import SMALL, command, small_network, write_tiny

import mocapsnet as mc
from mocapsnet.cli import main
from mocapsnet.data import Split
from mocapsnet.data.augment import Augmentation, crop, crop_offsets, mean_and_std, mixed, to_pixels
from mocapsnet.errors import Interrupted
from mocapsnet.train.average import Average
from mocapsnet.train.checkpoint import LAST, read
from mocapsnet.train.classify import accuracy, lengths_of
from mocapsnet.train.device import choose, make_fabric
from mocapsnet.train.fit import batches
from mocapsnet.train.graph import make_step
from mocapsnet.train.optimizers import cosine, make_optimizer
from mocapsnet.train.record import read_run
from mocapsnet.train.state import State

FULL = {"schedule": "cosine", "warm_up": 1.5, "weight_decay": 0.05, "ema": 0.9, "smoothing": 0.1}
FULL |= {
    "flip": True,
    "cutout": 3,
    "mix": 0.3,
    "turn": 10,
    "zoom": 0.1,
    "pad": 3,
    "jitter": True,
    "normalise": "dataset",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return mc.data.load("tiny", write_tiny(tmp_path_factory.mktemp("data")))


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They take longer than the training, and other tests look at them."""
    monkeypatch.setattr("mocapsnet.train.fit.draw_pictures", lambda *_: None)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return [{n: v for n, v in row.items() if "second" not in n} for row in csv.DictReader(file)]


def fit(model, tiny, folder, **options):
    return mc.fit(model, tiny, **{"epochs": 2, "batch": 10, "device": "cpu", "output": folder, **options})


@pytest.mark.parametrize(("has_bf16", "precision"), [(True, "bf16-mixed"), (False, "fp32")])
def test_a_gpu_without_bfloat16_trains_in_float32_unless_told(monkeypatch, has_bf16, precision):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has_bf16)
    gpu = torch.device("cuda")
    assert choose("auto", "auto", None, gpu).precision == precision
    assert choose("bf16-mixed", "auto", None, gpu).precision == "bf16-mixed"


def test_released_losses_are_those_of_the_released_code_computed_by_hand(tiny, tmp_path):
    """One batch of all images, so that an epoch's loss is that of the first weights."""
    model = small_network()
    told = mean_and_std(tiny.train)
    ((order, offsets),) = batches(60, 60, seed=4, epoch=0)
    pixels = to_pixels(crop(tiny.train.images[order], offsets))
    images = (pixels - told["mean"][0]) / told["std"][0]
    with torch.no_grad():
        output = model(images)
        margin = mc.margin_loss(output.lengths, tiny.train.labels[order], reduction="sum")
        expected = (margin + 5e-4 * (output.reconstruction - images).square().sum()) / 60
    released = {"normalise": "dataset", "target": "image", "mask": "guess", "reduction": "sum"}
    fit(model, tiny, tmp_path, epochs=1, batch=60, seed=4, crop_test=True, **released)
    (row,) = rows(tmp_path)
    assert float(row["train_loss"]) == pytest.approx(expected.item(), rel=1e-5)


def test_images_are_normalised_as_in_training_after_a_run_was_loaded(tiny, tmp_path):
    run = fit(small_network(), tiny, tmp_path, normalise="dataset")
    model = mc.load(tmp_path)
    assert model.preprocessing == mean_and_std(tiny.train)
    assert accuracy(model, tiny.test) == run.test_accuracy
    standard = mc.load(tmp_path)
    standard.preprocessing = {}
    assert not torch.equal(lengths_of(model, tiny.test.images), lengths_of(standard, tiny.test.images))


def test_test_images_are_cropped_only_where_asked_for(tiny, tmp_path):
    model = small_network()
    offsets = torch.zeros(20, 2, dtype=torch.int64)
    shifted = lengths_of(model, tiny.test.images, offsets)
    assert torch.equal(shifted, lengths_of(model, crop(tiny.test.images, offsets)))
    assert not torch.equal(shifted, lengths_of(model, tiny.test.images))
    fit(model, tiny, tmp_path / "whole", epochs=8, pad=0, lr=0.01)
    found = fit(model, tiny, tmp_path / "cropped", pad=4, lr=1e-9, crop_test=True).test_accuracy
    offsets = crop_offsets(20, torch.Generator().manual_seed(1), pad=4)
    assert found == accuracy(model, Split(crop(tiny.test.images, offsets, pad=4), tiny.test.labels))
    assert found != accuracy(model, tiny.test)


def test_the_test_set_is_read_once_where_asked_for(tiny, tmp_path, monkeypatch):
    whole = fit(small_network(), tiny, tmp_path / "whole", ema=0.9)
    read = []

    def counted(model, split, *rest, **options):
        read.append(len(split.labels))
        return accuracy(model, split, *rest, **options)

    monkeypatch.setattr("mocapsnet.train.fit.accuracy", counted)
    once = fit(small_network(), tiny, tmp_path / "once", ema=0.9, test="end")
    assert read == [len(tiny.test.labels)]
    assert once.test_accuracy == whole.test_accuracy == read_run(once.folder)["test_accuracy"]
    first, last = rows(once.folder)
    assert first["test_accuracy"] == ""
    assert last == rows(whole.folder)[-1]


def test_a_run_that_died_before_its_only_test_is_tested_when_it_goes_on(tiny, tmp_path, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("mocapsnet.train.fit.accuracy", die)
        with pytest.raises(KeyboardInterrupt):
            fit(small_network(), tiny, tmp_path / "died", test="end")
    found = fit(small_network(), tiny, tmp_path / "died", test="end")
    assert found.test_accuracy == fit(small_network(), tiny, tmp_path / "whole").test_accuracy
    assert rows(found.folder)[-1]["test_accuracy"] == str(found.test_accuracy)


def test_a_window_is_cut_at_random_in_training_and_from_the_middle_in_the_test(tiny, tmp_path):
    torch.manual_seed(0)
    model = mc.MoCapsNet((1, 7, 7), classes=3, **SMALL)
    run = fit(model, tiny, tmp_path, window=7, pad=0)
    images = tiny.test.images[:, :, 1:8, 1:8]
    centred = mc.load(tmp_path)
    assert accuracy(centred, tiny.test) == run.test_accuracy
    assert torch.equal(lengths_of(centred, tiny.test.images), lengths_of(centred, images))
    with pytest.raises(ValueError, match=r"images \(1, 9, 9\), the network was made for 3 of \(1, 7, 7\)"):
        fit(model, tiny, tmp_path / "whole")


def test_the_cosine_rises_in_a_line_and_falls_to_zero():
    factors = [cosine(step, 10, 4.0) for step in range(1, 11)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[6] == pytest.approx(0.5)
    assert factors[9] == pytest.approx(0, abs=1e-15)
    assert cosine(3, 8, 0.0) == 0.5 * (1 + math.cos(math.pi * 3 / 8))


def test_the_recorded_rate_is_that_of_the_epoch_s_last_step(tiny, tmp_path):
    fit(small_network(), tiny, tmp_path, epochs=3, schedule="cosine", warm_up=1, lr=0.01)
    expected = [0.01 * cosine(step, 18, 6) for step in (6, 12, 18)]
    assert [float(row["lr"]) for row in rows(tmp_path)] == pytest.approx(expected, abs=1e-15)


def test_weights_decay_apart_from_the_gradient():
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer, _ = make_optimizer("adam", [weight], lr=0.1, decay=0.96, steps=1, weight_decay=0.5)
    weight.grad = torch.tensor([3.0])
    optimizer.step()
    # 2 · (1 − 0.1 · 0.5) − 0.1 · 3/|3|
    assert weight.item() == pytest.approx(1.8, rel=1e-6)


def test_the_average_is_the_weighted_mean_of_the_weights_after_every_step():
    layer = torch.nn.Linear(1, 1, bias=False)
    average = Average(layer, 0.5)
    for value in (1.0, 2.0, 4.0):
        layer.weight.data.fill_(value)
        average.update()
    with average.applied(3):
        # (1/8 + 2/4 + 4/2) / (7/8)
        assert layer.weight.item() == pytest.approx(3.0)
    assert layer.weight.item() == 4


def test_the_average_is_tested_and_saved_and_the_run_goes_on_without_it(tiny, tmp_path):
    model, plain = small_network(), small_network()
    averaged = fit(model, tiny, tmp_path / "ema", ema=0.8)
    fit(plain, tiny, tmp_path / "plain")
    ema, without = rows(tmp_path / "ema"), rows(tmp_path / "plain")
    assert [row["train_loss"] for row in ema] == [row["train_loss"] for row in without]
    saved = read(tmp_path / "ema" / LAST)
    for name, weight in plain.state_dict().items():
        assert torch.equal(saved["model"][name], weight)
    for weight, total in zip(model.parameters(), saved["average"], strict=True):
        assert torch.equal(weight, total / (1 - 0.8**12))
    assert accuracy(mc.load(tmp_path / "ema"), tiny.test) == averaged.test_accuracy
    again = small_network()
    fit(again, tiny, tmp_path / "ema", ema=0.8)
    assert torch.equal(again.caps1.W, model.caps1.W)


def test_a_run_with_everything_goes_on_to_the_bit_where_it_was_stopped(tiny, tmp_path, monkeypatch):
    fit(small_network(), tiny, tmp_path / "one go", epochs=3, **FULL)
    count = State.count

    def stop(state, *arguments):
        count(state, *arguments)
        if (state.epoch, state.step) in ((0, 4), (2, 3)) and not arguments[0].requires_grad:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(State, "count", stop)
    for place in ((0, 4), (2, 3)):
        with pytest.raises(Interrupted):
            fit(small_network(), tiny, tmp_path / "stopped", epochs=3, **FULL)
        saved = read(tmp_path / "stopped" / LAST)
        assert (saved["epoch"], saved["step"]) == place
    monkeypatch.undo()
    fit(small_network(), tiny, tmp_path / "stopped", epochs=3, **FULL)
    one, other = (tmp_path / name for name in ("one go", "stopped"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert rows(one) == rows(other)


@pytest.mark.parametrize("option", FULL)
def test_every_ingredient_changes_the_run(tiny, tmp_path, option):
    base = {"schedule": "cosine"} if option == "warm_up" else {}
    value = 0.5 if option == "warm_up" else FULL[option]
    for folder, options in (("without", base), ("with", base | {option: value})):
        fit(small_network(), tiny, tmp_path / folder, epochs=1, **options)
    one, other = (tmp_path / name / "model.safetensors" for name in ("without", "with"))
    assert one.read_bytes() != other.read_bytes()


def test_ranger21_is_told_other_steps(tiny, tmp_path):
    for folder, told in (("right", None), ("told", 2)):
        fit(small_network(), tiny, tmp_path / folder, epochs=4, optimizer="ranger21", steps_told=told)
    right, told = rows(tmp_path / "right"), rows(tmp_path / "told")
    # Told 8 steps in all, its rate is at its lowest after the second of four epochs.
    assert float(told[1]["lr"]) == pytest.approx(3e-5)
    assert float(right[1]["lr"]) > 5e-3


def test_flags_train_and_evaluate_the_other_networks(tmp_path, capsys):
    data = write_tiny(tmp_path / "data")
    for model in ("shallowcapsnet", "convnet"):
        words = command(data, tmp_path / model, epochs=1, model=model, flip=True, cutout=2)
        main(words)
        main(["evaluate", str(tmp_path / model), "--device=cpu"])
        assert type(mc.load(tmp_path / model)).__name__.lower() == model
        main(["train", f"--config={tmp_path / model / 'config.yaml'}", f"--output={tmp_path / model}-again"])
        one, other = (tmp_path / name / "model.safetensors" for name in (model, f"{model}-again"))
        assert one.read_bytes() == other.read_bytes()
    assert "tiny, 20 test images" in capsys.readouterr().out


def test_what_is_mixed_is_told_to_the_loss_and_the_decoder_draws_the_image_alone(tiny):
    model = mc.MoCapsNet(tiny.image_shape, tiny.classes, channels=8, capsules=2, kernel_size=3)
    fabric = make_fabric(torch.device("cpu"), "fp32")
    optimizer, _ = make_optimizer("adam", model.parameters(), 1e-3, 0.96, steps=1)
    network, optimizer = fabric.setup(model, optimizer)
    mixing, plain = Augmentation(mix=0.5), Augmentation()
    chance = mixing.draw(6, tiny.image_shape[1:], torch.Generator().manual_seed(0))
    one, other = (
        make_step(fabric, network, model, optimizer, tiny.train, False, augmentation).batch(
            torch.arange(6), chance[:, : sum(augmentation.widths)]
        )
        for augmentation in (mixing, plain)
    )
    assert torch.equal(one[0], mixed(other[0], one[3]))
    assert not torch.equal(one[0], other[0])
    assert torch.equal(one[3], mixing.share(chance))
    assert other[3] is None
    assert all(map(torch.equal, one[1:3], other[1:3]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"schedule": "linear"}, "schedule must be one of 'exponential', 'cosine', got 'linear'"),
        ({"warm_up": 1}, "warm_up is the start of schedule='cosine'"),
        ({"schedule": "cosine", "warm_up": 3}, "warm_up must be <= epochs 2, got 3"),
        ({"weight_decay": -1}, "weight_decay must be a number >= 0"),
        ({"ema": 1}, "ema must be a number >= 0 and < 1, got 1"),
        ({"smoothing": float("nan")}, "smoothing must be a number >= 0 and < 1, got nan"),
        ({"mix": 1.0}, "mix must be a number >= 0 and < 1, got 1.0"),
        ({"turn": 180}, "turn must be a number >= 0 and < 180, got 180"),
        ({"zoom": 1}, "zoom must be a number >= 0 and < 1, got 1"),
        ({"mix": -0.1}, "mix must be a number >= 0 and < 1, got -0.1"),
        ({"optimizer": "ranger21", "schedule": "cosine"}, "Ranger21 has a schedule"),
        ({"optimizer": "ranger21", "weight_decay": 0.1}, "a weight decay of its own"),
        ({"steps_told": 5}, "steps_told is what Ranger21 is told"),
        ({"loss": "cross-entropy"}, "MoCapsNet has none"),
        ({"mask": "none"}, "mask must be one of 'label', 'guess'"),
        ({"flip": "yes"}, "flip must be True or False, got 'yes'"),
        ({"pad": -1}, "pad must be a whole number >= 0"),
        ({"cutout": 10}, "cutout must be <= 9, the side of the images, got 10"),
        ({"window": 10}, "window must be <= 9"),
        ({"window": 9, "crop_test": True}, "crop_test cuts whole images"),
        ({"test": "never"}, "test must be one of 'epoch', 'end', got 'never'"),
    ],
    ids=str,
)
def test_options_that_cannot_be_meant_are_refused_before_anything_is_written(
    tiny, tmp_path, options, expected
):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is looked at below
        fit(small_network(), tiny, tmp_path / "run", **options)
    assert expected in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_network_without_a_decoder_reconstructs_nothing(tiny, tmp_path):
    model = mc.ConvNet((1, 9, 9), classes=3, **SMALL)
    with pytest.raises(ValueError, match="ConvNet has no decoder"):
        fit(model, tiny, tmp_path / "run", reconstruction_weight=5e-4)


def test_more_epochs_are_refused_where_the_cosine_has_ended(tiny, tmp_path):
    fit(small_network(), tiny, tmp_path, schedule="cosine")
    with pytest.raises(ValueError, match="holds a run with epochs 2, got 3"):
        fit(small_network(), tiny, tmp_path, schedule="cosine", epochs=3)
