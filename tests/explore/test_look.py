"""What the page is told is what the library says."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import mocapsnet as mc
from mocapsnet.data.augment import standardise, to_pixels
from mocapsnet.errors import WrongArgument
from mocapsnet.explore.look import PAGE, Look, decode, encode
from mocapsnet.explore.serve import serve
from mocapsnet.explore.upload import read_upload
from mocapsnet.explore.view import View, seen_from
from mocapsnet.measure.coupling import coupling
from mocapsnet.nn.decoder import mask
from mocapsnet.train.classify import lengths_of


@pytest.fixture(params=["momentum", "residual"])
def look(request, runs):
    return Look(str(runs / request.param))


def unpack(told: dict) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(told["data"]), "<u2")
    return values.reshape(told["shape"]) / 65535 * told["top"]


def test_the_page_is_told_what_the_network_says(look):
    pixels = to_pixels(look.test.images[3:4])
    output = look.model(standardise(pixels))
    told = look.see({"index": 3}, View(), inside=True)
    assert told["label"] == int(look.test.labels[3])
    assert told["lengths"] == pytest.approx(output.lengths[0].tolist())
    assert torch.equal(decode(told["input"], (3, 9, 11)), look.test.images[3])
    drawn = decode(told["reconstruction"], (3, 9, 11)).float() / 255
    torch.testing.assert_close(drawn, output.reconstruction[0].detach(), atol=0.5 / 255 + 1e-6, rtol=0)
    for layer in told["layers"][1:]:
        expected = coupling(look.model, standardise(pixels))[layer["name"]][0].numpy()
        np.testing.assert_allclose(unpack(layer["coupling"]), expected, atol=1e-4)
    assert len(told["depth"]["x"]) == len(told["depth"]["velocity"]) + 1 == 5
    sent = {"pixels": encode(look.test.images[3])}
    assert look.see(sent, View(), False)["lengths"] == pytest.approx(told["lengths"])


def test_images_are_cut_and_normalised_as_in_training(runs, tmp_path):
    sizes = mc.load(runs / "momentum").config | {"image_shape": (3, 8, 8)}
    del sizes["model"]
    model = mc.MoCapsNet(**sizes)
    model.preprocessing = {"window": 8, "size": [9, 11], "mean": [0.3, 0.4, 0.5], "std": [0.2, 0.1, 0.3]}
    model.save(tmp_path)
    shutil.copyfile(runs / "momentum" / "run.json", tmp_path / "run.json")
    look, images = Look(str(tmp_path)), mc.data.load("tiny", runs).test.images
    expected = lengths_of(model, images)
    told = look.see({"index": 3}, View(), inside=True)
    assert told["lengths"] == pytest.approx(expected[3].tolist(), abs=1e-6)
    assert torch.equal(decode(told["input"], (3, 8, 8)), images[3, :, :8, 1:9])
    swept = look.sweep({"index": 3}, View(), "turn")
    assert swept["lengths"][swept["values"].index(0)] == pytest.approx(told["lengths"], abs=1e-6)
    assert look.prediction(20) == int(expected[20].argmax())
    Image.fromarray(images[3].movedim(0, -1).numpy()).save(tmp_path / "3.png")
    uploaded = look.upload((tmp_path / "3.png").read_bytes())
    assert uploaded == images[3, :, :8, 1:9].contiguous().numpy().tobytes()


def test_a_moved_capsule_is_drawn_by_the_decoder(look):
    output = look.model(standardise(to_pixels(look.test.images[:1])))
    moved = output.capsules[0, 2].detach() + torch.tensor([0.0, 0.2, 0.0, 0.0, -0.1])
    capsules = output.capsules.detach().clone()
    capsules[0, 2] = moved
    expected = look.model.decoder(mask(capsules, output.lengths, torch.tensor([2])))[0].detach()
    drawn = decode(look.reconstruct(2, moved.tolist())["reconstruction"], (3, 9, 11)).float() / 255
    torch.testing.assert_close(drawn, expected, atol=0.5 / 255 + 1e-6, rtol=0)
    sheet = look.sheet(2, moved.tolist(), 0.25)
    assert (sheet["rows"], len(sheet["pictures"])) == (5, 55)
    for row in range(5):
        assert sheet["pictures"][11 * row + 5] == look.reconstruct(2, moved.tolist())["reconstruction"]
    assert str(sheet["moves"][5]) == "0.0"
    assert sheet["moves"] == pytest.approx([-0.25 + 0.05 * n for n in range(11)], abs=1e-6)


def test_the_grid_shows_right_and_wrong_ones_by_class(look):
    everything = look.grid(None, "any", 0)
    assert len(everything["images"]) == PAGE
    rest = look.grid(None, "any", everything["next"])
    assert rest["next"] is None
    images = everything["images"] + rest["images"]
    assert [image["index"] for image in images] == list(range(50))
    seen = look.model(standardise(to_pixels(look.test.images))).lengths.argmax(1)
    assert [image["seen"] for image in images] == seen.tolist()
    for which in ("right", "wrong"):
        for label in range(4):
            expected = [
                n
                for n in range(50)
                if look.test.labels[n] == label and (seen[n] == label) == (which == "right")
            ]
            assert [image["index"] for image in look.grid(label, which, 0)["images"]] == expected


def test_a_sweep_holds_what_each_view_gives(look):
    swept = look.sweep({"index": 0}, View(scale=1.5), "turn")
    for n in (0, 20, 40):
        alone = look.see({"index": 0}, View(turn=swept["values"][n], scale=1.5), False)
        assert alone["lengths"] == pytest.approx(swept["lengths"][n], abs=1e-5)


PICTURE = torch.rand(2, 7, 7, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (View(), PICTURE),
        (View(mirror=True), PICTURE.flip(2)),
        (View(turn=90), PICTURE.rot90(1, (1, 2))),
        (View(turn=-90), PICTURE.rot90(-1, (1, 2))),
        (View(turn=180), PICTURE.flip(1, 2)),
        (View(right=2), torch.cat([PICTURE[:, :, :1].expand(-1, -1, 2), PICTURE[:, :, :5]], 2)),
        (View(down=1), torch.cat([PICTURE[:, :1], PICTURE[:, :6]], 1)),
    ],
    ids=["same", "mirror", "turn", "turn back", "half a turn", "right", "down"],
)
def test_a_view_is_what_its_name_says(view, expected):
    torch.testing.assert_close(seen_from(PICTURE, [View(), view])[1], expected, atol=1e-5, rtol=0)


def test_scale_two_shows_the_middle_twice_as_large():
    ramp = torch.arange(9.0).expand(1, 9, 9)
    torch.testing.assert_close(seen_from(ramp, [View(scale=2)])[0], (ramp - 4) / 2 + 4)


def test_an_upload_is_read_as_predict_reads_a_file(tmp_path):
    from mocapsnet.data.folder import picture

    Image.effect_noise((60, 40), 90).save(tmp_path / "noise.png")
    content = (tmp_path / "noise.png").read_bytes()
    for shape, mode in (((1, 28, 28), "L"), ((3, 9, 11), "RGB")):
        size = (shape[2], shape[1])
        expected = picture(tmp_path / "noise.png", size, mode)
        np.testing.assert_array_equal(read_upload(content, shape), expected)
    with pytest.raises(WrongArgument, match="takes 4"):
        read_upload(content, (4, 28, 28))


def test_a_run_without_its_data_can_still_be_drawn_for(runs, tmp_path):
    mc.load(runs / "momentum").save(tmp_path / "bare")
    look = Look(str(tmp_path / "bare"))
    assert look.class_names == ["0", "1", "2", "3"]
    assert look.grid(None, "any", 0)["images"] == []
    assert "run.json" in look.about()["why_no_images"]
    assert (
        len(look.see({"pixels": encode(torch.zeros(3, 9, 11, dtype=torch.uint8))}, View(), True)["layers"])
        == 7
    )


def test_runs_side_by_side_look_at_one_test_set(runs, tmp_path, monkeypatch):
    mc.load(runs / "momentum").save(tmp_path / "bare")
    names = {"dataset": "other", "data": str(tmp_path), "class_names": ["ant", "bee", "cat", "dog"]}
    (tmp_path / "bare" / "run.json").write_text(json.dumps({"test_accuracy": 0.5, "config": names}))
    shown = []
    monkeypatch.setattr("mocapsnet.explore.app.make_app", lambda looks, hosts: shown.extend(looks))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: sockets[0].close())
    serve([str(tmp_path / "bare"), str(runs / "residual")], None, "127.0.0.1", 0)
    assert [look.about()["tested"] for look in shown] == ["tiny", "tiny"]
    first, second = (look.see({"index": 7}, View(), False) for look in shown)
    assert (first["input"], first["label"]) == (second["input"], second["label"])
    # Another data set of the same images and classes, of which number 7 is another image.
    images, labels = np.zeros((20, 9, 11, 3), np.uint8), np.arange(20) % 4
    np.savez(tmp_path / "other.npz", X=images, Y=labels, n_train=10)
    shown.clear()
    serve([str(runs / "residual"), str(tmp_path / "bare")], None, "127.0.0.1", 0)
    first, second = (look.see({"index": 7}, View(), False) for look in shown)
    assert first["input"] == second["input"]


def test_more_than_three_runs_are_refused(runs):
    with pytest.raises(WrongArgument, match="at most 3 runs stand side by side, got 4"):
        serve([str(runs / "momentum")] * 4, None, "127.0.0.1", 0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_floats_can_be_looked_at(runs, tmp_path, dtype):
    mc.load(runs / "momentum").to(dtype).save(tmp_path)
    shutil.copyfile(runs / "momentum" / "run.json", tmp_path / "run.json")
    look = Look(str(tmp_path))
    expected = Look(str(runs / "momentum")).see({"index": 3}, View(), True)["lengths"]
    assert look.see({"index": 3}, View(), True)["lengths"] == pytest.approx(expected, abs=0.02)
    assert len(look.grid(None, "any", 0)["images"]) == PAGE


def test_runs_of_other_classes_do_not_stand_side_by_side(runs):
    with pytest.raises(WrongArgument, match="same images and classes"):
        serve([str(runs / "momentum"), "mnist-small"], None, "127.0.0.1", 0)


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_the_host_says_whom_it_lets_in_under_an_address_that_a_browser_takes(
    runs, capsys, monkeypatch, host, said
):
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: sockets[0].close())
    serve([str(runs / "momentum")], None, host, 0)
    told = capsys.readouterr().out
    assert re.match(r"explorer at http://(127\.0\.0\.1|localhost):\d+/ ", told)
    assert ("open to everybody who can reach" in told) == said


def test_a_port_in_use_is_named(runs):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} of 127.0.0.1 cannot be used"):
            serve([str(runs / "momentum")], None, "127.0.0.1", port)
