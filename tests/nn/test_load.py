import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import mocapsnet as mc


@pytest.fixture
def folder(network, tmp_path):
    """A folder that save() wrote."""
    network(blocks=1).save(tmp_path / "run")
    return tmp_path / "run"


def test_a_saved_network_is_two_files(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("as_path", [str, lambda path: path], ids=["str", "path"])
def test_a_folder_may_be_named_by_text_or_path(folder, as_path):
    name = json.loads((folder / "config.json").read_text())["model"]
    assert type(mc.load(as_path(folder))).__name__ == name


def test_saving_again_overwrites(network, tmp_path):
    first, second = network(), network()
    first.save(tmp_path)
    second.save(tmp_path)
    assert torch.equal(mc.load(tmp_path).caps1.W, second.caps1.W)
    assert not torch.equal(first.caps1.W, second.caps1.W)


def test_the_hub_s_save_pretrained_writes_what_load_reads(network, routing, tmp_path):
    model = network(routing=routing, blocks=2)
    model.save_pretrained(tmp_path)
    images = torch.rand(2, 1, 9, 9)
    assert torch.equal(mc.load(tmp_path)(images).reconstruction, model(images).reconstruction)


def test_every_option_of_the_momentum_network_survives(tmp_path):
    options = {"blocks": 2, "routing": "em", "iterations": 2, "gamma": 0.6, "gradient": "last"}
    options |= {"routing_bias": None, "class_dim": 6, "kernel_size": 3, "channels": 8, "capsules": 3}
    mc.MoCapsNet((2, 9, 10), 5, **options).save(tmp_path)
    for model in (mc.load(tmp_path), mc.MoCapsNet.from_pretrained(tmp_path)):
        assert options.items() <= model.config.items()
        assert (model.trunk.gamma, model.caps1.gradient, model.caps1.bias) == (0.6, "last", None)
        assert model.image_shape == (2, 9, 10)


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_folder_without_one_of_the_files_is_refused(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(FileNotFoundError, match=rf"run holds no {missing}: give a run folder"):
        mc.load(folder)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere .*config\.json.*give a run folder"):
        mc.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "3",
        "{}",
        '{"model": "Transformer"}',
        '{"model": "CapsNet"}',
        '{"model": ["CapsNet"]}',
    ],
)
def test_a_broken_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"run holds no network that can be loaded: ."):
        mc.load(folder)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"blocks": -1}, "got -1"),
        ({"capsules": 5}, "size mismatch"),
        ({"blocks": 2}, "Missing key"),
        ({"blocks": 0}, "Unexpected key"),
        ({"depth": 3}, "depth"),
        ({"model": "capsnet"}, "capsnet"),
        *(
            ({"preprocessing": {"window": 9, "size": size}}, part)
            for size, part in (
                ([20], "values to unpack"),
                (None, "cannot unpack"),
                ([8, 9], "no preprocessing"),
                ("ab", "not supported"),
            )
        ),
    ],
    ids=str,
)
def test_a_config_that_does_not_fit_is_refused_with_the_reason(folder, change, part):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ValueError, match="run holds no network that can be loaded") as error:
        mc.load(folder)
    assert part in str(error.value)


@pytest.mark.parametrize("keep", [0, 7, 200, -1])
def test_truncated_weights_are_refused(folder, keep):
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:keep])
    with pytest.raises(ValueError, match=r"run holds no network that can be loaded: ."):
        mc.load(folder)


@pytest.mark.parametrize("place", [-1, -1000, -5000])
def test_a_flipped_bit_in_the_weights_is_refused(folder, place):
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[place] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match="weights_sha256"):
        mc.load(folder)


def test_from_pretrained_never_fills_a_missing_weight_with_chance(network, tmp_path):
    model = network()
    model.save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["caps1.W"]
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    with pytest.raises((ValueError, RuntimeError), match=r"caps1\.W"):
        type(model).from_pretrained(tmp_path)


def test_from_pretrained_refuses_the_folder_of_another_network(tmp_path):
    residual().save(tmp_path)
    with pytest.raises(ValueError, match="ResCapsNet"):
        mc.MoCapsNet.from_pretrained(tmp_path)


def residual(**options):
    sizes = {"classes": 4, "kernel_size": 3, "channels": 8, "capsule_dim": 4, "capsules": 3, "class_dim": 5}
    return mc.ResCapsNet((1, 9, 9), **sizes, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_to_momentum_keeps_the_weights(routing, dtype):
    source = residual(blocks=2, routing=routing).to(dtype)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(torch.randn_like(parameter))
    converted = mc.to_momentum(source)
    assert type(converted) is mc.MoCapsNet
    assert converted.trunk.gamma == converted.config["gamma"] == 0.9
    state = converted.state_dict()
    assert list(state) == list(source.state_dict())
    for name, value in source.state_dict().items():
        assert state[name].dtype == dtype
        assert torch.equal(state[name], value), name


def test_to_momentum_copies():
    source = residual()
    converted = mc.to_momentum(source, gamma=0.5)
    before = source.state_dict()["caps1.W"].clone()
    with torch.no_grad():
        for parameter in converted.parameters():
            parameter.zero_()
    assert torch.equal(source.caps1.W, before)
    assert source.caps1.W.abs().max() > 0


@pytest.mark.parametrize("options", [{"iterations": 2}, {"gradient": "all"}, {"routing_bias": None}], ids=str)
def test_to_momentum_keeps_the_options(options):
    source = residual(blocks=3, **options)
    expected = source.config | {
        "model": "MoCapsNet",
        "gamma": 0.4,
        "memory": "reverse",
        "arithmetic": "exact",
    }
    assert mc.to_momentum(source, gamma=0.4).config == expected


@pytest.mark.parametrize("training", [True, False])
def test_to_momentum_keeps_the_mode(training):
    assert mc.to_momentum(residual().train(training)).training == training


@pytest.mark.parametrize("gamma", [1, -0.1, 1.5])
def test_to_momentum_refuses_a_wrong_gamma(gamma):
    with pytest.raises(ValueError, match=f"gamma must be .*got {gamma}"):
        mc.to_momentum(residual(), gamma)


def test_to_momentum_refuses_what_is_not_residual_by_layer():
    with pytest.raises(ValueError, match="takes a ResCapsNet, got CapsNet"):
        mc.to_momentum(mc.CapsNet((1, 9, 9), 4, kernel_size=3, channels=8))
    with pytest.raises(ValueError, match="skip='block'"):
        mc.to_momentum(residual(skip="block"))


def test_a_network_trained_with_fused_programs_loads_where_they_cannot_run(folder, monkeypatch):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "backend": "fused"}))
    monkeypatch.setattr("mocapsnet.ops.backend.INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert mc.load(folder).config["backend"] == "auto"
