"""What is exported computes what the network computes, for any batch; a folder for the hub loads."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import mocapsnet as mc
from mocapsnet import export as exporting
from mocapsnet.cli import SHIPPED, main
from mocapsnet.data.augment import standardise
from mocapsnet.errors import Irreproducible, WrongArgument
from mocapsnet.export import export

SMALL = {"kernel_size": 3, "channels": 8, "capsule_dim": 4, "class_dim": 5, "capsules": 3, "blocks": 2}
KINDS = {"rba": mc.MoCapsNet, "leaky-rba": mc.CapsNet, "sda": mc.ResCapsNet, "em": mc.MoCapsNet}


@pytest.fixture
def run(tmp_path):
    """An untrained network that looks like a run."""

    def run(routing: str = "rba") -> Path:
        KINDS[routing]((3, 9, 11), 4, routing=routing, weight_std=0.5, **SMALL).save(tmp_path / "run")
        config = {"dataset": "tiny", "class_names": ["ant", "bee", "cat", "dog"], "seed": 0, "epochs": 1}
        (tmp_path / "run" / "run.json").write_text(json.dumps({"test_accuracy": 0.25, "config": config}))
        return tmp_path / "run"

    return run


@pytest.mark.parametrize("routing", KINDS)
def test_onnx_agrees_with_the_network_for_any_batch(run, routing, tmp_path):
    import onnx
    import onnxruntime

    folder = run(routing)
    target, difference = export(str(folder), "onnx", str(tmp_path / "out" / "net.onnx"))
    assert difference < 1e-5
    model, session = mc.load(folder), onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["lengths", "capsules", "reconstruction"]
    for batch in (1, 7):
        pixels = torch.rand(batch, 3, 9, 11)
        for ours, theirs in zip(
            model(standardise(pixels)), session.run(None, {"pixels": pixels.numpy()}), strict=True
        ):
            np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=1e-5)
    told = {prop.key: prop.value for prop in onnx.load(target).metadata_props}
    assert json.loads(told["class_names"]) == ["ant", "bee", "cat", "dog"]
    assert json.loads(told["config"]) == model.config


@pytest.mark.parametrize("routing", KINDS)
def test_a_program_of_torch_export_agrees_with_the_network_for_any_batch(run, routing):
    folder = run(routing)
    target, difference = export(str(folder), "torch")
    assert (target.parent, target.suffix) == (folder, ".pt2")
    assert difference < 1e-5
    model, program = mc.load(folder), torch.export.load(target).module()
    pixels = torch.rand(7, 3, 9, 11)
    for ours, theirs in zip(model(standardise(pixels)), program(pixels), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert not list(folder.glob(".*tmp*"))


@pytest.mark.parametrize("format", ["onnx", "torch", "hub"])
def test_an_export_normalises_as_in_training(run, format):
    folder = run()
    model = mc.load(folder)
    model.preprocessing = {"mean": [0.3, 0.4, 0.5], "std": [0.2, 0.1, 0.3]}
    model.save(folder)
    target, difference = export(str(folder), format)
    assert difference < 1e-5
    pixels = torch.rand(3, 3, 9, 11)
    mean, std = (torch.tensor(model.preprocessing[name])[:, None, None] for name in ("mean", "std"))
    expected = model((pixels - mean) / std).lengths.detach()
    if format == "hub":
        assert mc.load(target).preprocessing == model.preprocessing
        assert "less the mean and over the std" in (target / "README.md").read_text()
    elif format == "torch":
        torch.testing.assert_close(torch.export.load(target).module()(pixels)[0], expected, atol=1e-5, rtol=0)
    else:
        import onnxruntime

        session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
        found = session.run(["lengths"], {"pixels": pixels.numpy()})[0]
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


@pytest.mark.parametrize("verb", ["export", "explore"])
@pytest.mark.parametrize("kind", ["ConvNet", "Ensemble", "ShallowCapsNet"])
def test_networks_without_trunk_and_decoder_are_refused(verb, kind, tmp_path, capsys):
    networks = {
        "ConvNet": lambda: mc.ConvNet((3, 9, 11), 4, **SMALL),
        "Ensemble": lambda: mc.Ensemble([mc.CapsNet((3, 9, 11), 4, **SMALL)]),
        "ShallowCapsNet": lambda: mc.ShallowCapsNet((3, 28, 28), 4, channels=8),
    }
    networks[kind]().save(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([verb, str(tmp_path)])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"must be one of CapsNet, ResCapsNet, MoCapsNet, got {kind}" in told


def test_a_hub_folder_has_a_card_and_loads(run):
    folder = run()
    target, difference = export(str(folder), "hub")
    assert difference == 0
    model, again = mc.load(folder), mc.MoCapsNet.from_pretrained(target)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])
    card = (target / "README.md").read_text()
    for word in ("license: mit", "25.00%", "tiny", "MoCapsNet of 2 blocks", "ant, bee, cat, dog"):
        assert word in card
    with pytest.raises(WrongArgument, match="another folder than the run's"):
        export(str(folder), "hub", str(folder))
    with pytest.raises(WrongArgument, match=r"must be a folder, got the file .*README\.md"):
        export(str(folder), "hub", str(target / "README.md"))


@pytest.mark.parametrize("format", ["onnx", "torch"])
def test_an_export_that_differs_is_refused_and_not_written(run, format, monkeypatch):
    folder = run()
    before = sorted(folder.iterdir())
    wrong = exporting.FromPixels.forward
    monkeypatch.setattr(
        exporting.FromPixels,
        "forward",
        lambda self, pixels: tuple(part + 1e-3 for part in wrong(self, pixels)),
    )
    with pytest.raises(Irreproducible, match=r"differs by 0\.001"):
        export(str(folder), format)
    assert sorted(folder.iterdir()) == before


def test_the_verb_says_what_it_wrote(tmp_path, capsys):
    main(["export", SHIPPED, "--format", "hub", "--output", str(tmp_path / "card")])
    assert capsys.readouterr().out == f"{tmp_path / 'card'}: differs from the network by at most 0.0e+00\n"
    assert mc.load(tmp_path / "card").config == mc.load(SHIPPED).config
