import inspect

import pytest
import torch

import mocapsnet as mc

WRONG = [
    ({"image_shape": (1, 16, 17)}, ["(1, 16, 17)", "kernel_size 9", "17x17"]),
    ({"image_shape": (1, 17, 16)}, ["(1, 17, 16)", "17x17"]),
    ({"image_shape": (1, 8, 8), "kernel_size": 5}, ["kernel_size 5", "9x9", "lower kernel_size"]),
    ({"image_shape": (28, 28)}, ["(channels, height, width)", "(28, 28)"]),
    ({"image_shape": 28}, ["(channels, height, width)", "28"]),
    ({"image_shape": (0, 28, 28)}, ["channels", ">= 1", "got 0"]),
    ({"image_shape": (1, 28.0, 28)}, ["height", "whole number", "got 28.0"]),
    ({"image_shape": (1, 28, -1)}, ["width", ">= 1", "got -1"]),
    ({"blocks": -1}, ["blocks", ">= 0", "got -1"]),
    ({"blocks": 1.5}, ["blocks", "whole number", "got 1.5"]),
    ({"blocks": True}, ["blocks", "whole number", "got True"]),
    *(
        ({name: 0}, [name, ">= 1", "got 0"])
        for name in (
            "classes",
            "capsules",
            "capsule_dim",
            "class_dim",
            "channels",
            "kernel_size",
            "iterations",
        )
    ),
    ({"classes": "10"}, ["classes", "whole number", "'10'"]),
    ({"channels": 20}, ["channels", "multiple of capsule_dim 8", "got 20", "16 is one"]),
    ({"channels": 4}, ["channels", "multiple of capsule_dim 8", "got 4", "8 is one"]),
    ({"routing": "dynamic"}, ["routing", "'rba', 'leaky-rba', 'sda', 'em'", "'dynamic'"]),
    ({"routing": "leaky_rba"}, ["'leaky_rba'", "did you mean 'leaky-rba'?"]),
    ({"routing": None}, ["routing", "'rba'", "got None"]),
    ({"gradient": "first"}, ["gradient", "'last', 'all'", "'first'"]),
    ({"gradient": ""}, ["gradient", "'last', 'all'", "''"]),
    ({"weight_std": 0}, ["weight_std", "> 0", "got 0"]),
    ({"weight_std": -0.1}, ["weight_std", "> 0", "got -0.1"]),
    ({"weight_std": float("nan")}, ["weight_std", "> 0", "got nan"]),
    ({"weight_std": float("inf")}, ["weight_std", "got inf"]),
    ({"routing_bias": float("nan")}, ["routing_bias", "got nan"]),
    ({"routing_bias": float("inf")}, ["routing_bias", "got inf"]),
    ({"skip": "none"}, ["skip", "'layer', 'block'", "'none'"]),
    ({"backend": "triton"}, ["backend", "'auto', 'reference', 'fused'", "'triton'"]),
]
MOMENTUM = [
    ({"gamma": 1}, ["gamma", "< 1", "got 1", "0.9"]),
    ({"gamma": 1.0}, ["gamma", "< 1", "got 1"]),
    ({"gamma": -0.1}, ["gamma", "[0, 1)", "got -0.1"]),
    ({"gamma": 1.5}, ["gamma", "[0, 1)", "got 1.5"]),
    ({"gamma": float("nan")}, ["gamma", "[0, 1)", "got nan"]),
    ({"gamma": 0}, ["gamma", "> 0", "memory='reverse'", "'checkpoint' or 'store'"]),
    ({"memory": "keep"}, ["memory", "'reverse', 'checkpoint', 'store'", "'keep'"]),
    ({"arithmetic": "int32"}, ["arithmetic", "'exact', 'float'", "'int32'"]),
]
TINY = {"image_shape": (1, 28, 28), "classes": 3, "channels": 8, "capsules": 2}


def named(part):
    return str(part) if isinstance(part, dict) else "says"


def refused(kind, arguments, parts):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the parts below are the match
        kind(**(TINY | arguments))
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize(
    ("kind", "momentum"),
    [
        (mc.CapsNet, ""),
        (mc.ResCapsNet, ""),
        (mc.MoCapsNet, "gamma=0.9, memory='reverse', arithmetic='exact', "),
    ],
)
def test_the_arguments_are_pinned(kind, momentum):
    parameters = inspect.signature(kind).parameters.values()
    told = [str(p.replace(annotation=p.empty)) for p in parameters]
    assert ", ".join(told) == (
        "image_shape, classes, blocks=1, routing='rba', iterations=3, capsules=32, capsule_dim=8, "
        "class_dim=16, channels=256, kernel_size=9, weight_std=0.1, routing_bias=0.1, gradient=None, "
        f"skip='layer', backend='auto', {momentum}decoder_width=512"
    )


@pytest.mark.parametrize("kind", [mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet])
@pytest.mark.parametrize(
    ("arguments", "parts"), WRONG, ids=lambda part: str(part) if isinstance(part, dict) else ""
)
def test_a_wrong_argument_is_refused_with_its_value_and_the_limit(kind, arguments, parts):
    refused(kind, arguments, parts)


@pytest.mark.parametrize(
    ("arguments", "parts"), MOMENTUM, ids=lambda part: str(part) if isinstance(part, dict) else ""
)
def test_a_wrong_momentum_argument_is_refused(arguments, parts):
    refused(mc.MoCapsNet, arguments, parts)


@pytest.mark.parametrize("kind", [mc.CapsNet, mc.MoCapsNet])
def test_the_skip_of_figure_2_is_residual_only(kind):
    refused(kind, {"skip": "block"}, ["skip='block'", kind.__name__, "ResCapsNet"])


@pytest.mark.parametrize("kind", [mc.CapsNet, mc.ResCapsNet])
@pytest.mark.parametrize("name", ["gamma", "memory", "arithmetic"])
def test_only_the_momentum_network_takes_momentum_arguments(kind, name):
    with pytest.raises(TypeError, match=name):
        kind(**TINY, **{name: "float"})


def test_the_fused_backend_says_why_it_cannot_run(network, routing, monkeypatch):
    monkeypatch.setattr("mocapsnet.ops.backend.INTERPRETED", False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"backend='fused' cannot run: .*use backend='auto'"):
        network(routing=routing, backend="fused")


def test_the_network_without_a_trunk_is_abstract():
    with pytest.raises(TypeError, match="abstract: build a CapsNet, ResCapsNet or MoCapsNet"):
        mc.CapsuleNetwork(**TINY)


@pytest.mark.parametrize("shape", [(2, 1, 9, 10), (2, 3, 9, 9), (1, 9, 9), (2, 9, 9, 1)], ids=str)
def test_images_of_another_shape_are_refused(network, shape):
    with pytest.raises(ValueError, match=r"images must be \[B, 1, 9, 9\], got shape") as error:
        network()(torch.rand(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize(
    ("labels", "part"),
    [(torch.tensor([0, 4]), "got 4"), (torch.tensor([0, 1, 2]), "(3,)")],
    ids=["class", "shape"],
)
def test_labels_that_do_not_fit_are_refused(network, labels, part):
    with pytest.raises(ValueError, match="labels must be") as error:
        network()(torch.rand(2, 1, 9, 9), labels)
    assert part in str(error.value)


@pytest.mark.parametrize("image_shape", [[1, 9, 9], torch.Size([1, 9, 9])], ids=["list", "size"])
def test_image_shape_may_be_any_sequence(network, image_shape):
    assert network(image_shape=image_shape).image_shape == (1, 9, 9)


def test_every_argument_is_remembered(network):
    options = {"blocks": 2, "routing": "em", "iterations": 2, "weight_std": 0.2, "routing_bias": None}
    options |= {"gradient": "last", "backend": "reference", "skip": "layer", "class_dim": 7}
    model = network(**options)
    assert options.items() <= model.config.items()
    assert model.config["model"] == type(model).__name__
    again = type(model)(**{name: value for name, value in model.config.items() if name != "model"})
    assert again.config == model.config
