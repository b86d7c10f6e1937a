import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import mocapsnet as mc

PAPER = [
    ((1, 28, 28), 10, 1152, 9_272_336),
    ((3, 32, 32), 10, 2048, 13_494_016),
    ((3, 32, 32), 100, 2048, 14_599_936),
]


def parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", [mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet])
@pytest.mark.parametrize(("image_shape", "classes", "primary", "count"), PAPER)
def test_the_networks_of_the_paper_have_its_sizes(kind, image_shape, classes, primary, count):
    with torch.device("meta"):
        model = kind(image_shape, classes, routing_bias=None)
        biased = kind(image_shape, classes)
        deep = kind(image_shape, classes, blocks=3, routing_bias=None)
    assert model.caps1.W.shape == (32, primary, 8, 8)
    assert [layer.W.shape for layer in model.trunk.layers] == [(32, 32, 8, 8)] * 2
    assert model.caps2.W.shape == (classes, 32, 16, 8)
    assert [layer.out_features for layer in model.decoder.layers[::2]] == [
        512,
        1024,
        torch.Size(image_shape).numel(),
    ]
    assert parameters(model) == count
    assert parameters(biased) == count + 3 * 32 * 8 + classes * 16
    assert parameters(deep) == count + 2 * 131_072


def test_the_network_of_the_paper_runs():
    model = mc.MoCapsNet(image_shape=(1, 28, 28), classes=10)
    output = model(torch.rand(2, 1, 28, 28))
    assert output.lengths.shape == (2, 10)
    assert output.capsules.shape == (2, 10, 16)
    assert output.reconstruction.shape == (2, 1, 28, 28)
    assert output._fields == ("lengths", "capsules", "reconstruction")


@pytest.mark.parametrize("kind", [mc.CapsNet, mc.ResCapsNet, mc.MoCapsNet])
@settings(max_examples=15)
@given(data=st.data())
def test_any_shape_works(kind, data):
    draw = data.draw
    kernel_size = draw(st.integers(1, 4))
    sides = st.integers(2 * kernel_size - 1, 2 * kernel_size + 6)
    image_shape = (draw(st.integers(1, 4)), draw(sides), draw(sides))
    capsule_dim, class_dim, classes = (
        draw(st.integers(1, 4)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 100)),
    )
    batch = draw(st.integers(1, 3))
    model = kind(
        image_shape,
        classes,
        blocks=draw(st.integers(0, 2)),
        routing=draw(st.sampled_from(["rba", "leaky-rba", "sda", "em"])),
        iterations=draw(st.integers(1, 3)),
        capsules=draw(st.integers(1, 4)),
        capsule_dim=capsule_dim,
        class_dim=class_dim,
        channels=capsule_dim * draw(st.integers(1, 3)),
        kernel_size=kernel_size,
        routing_bias=draw(st.sampled_from([None, 0.1])),
    )
    images, labels = torch.rand(batch, *image_shape), torch.randint(classes, (batch,))
    output = model(images, labels)
    assert output.lengths.shape == (batch, classes)
    assert output.capsules.shape == (batch, classes, class_dim)
    assert output.reconstruction.shape == images.shape
    assert_close(output.lengths, output.capsules.square().sum(-1).sqrt(), rtol=1e-5, atol=1e-6)
    loss = mc.capsule_loss(output, labels, images)
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("image_shape", [(1, 17, 17), (2, 17, 40), (3, 18, 17), (4, 19, 21)], ids=str)
@pytest.mark.parametrize("classes", [1, 2, 100])
def test_the_paper_s_kernel_fits_images_from_17x17_up(image_shape, classes):
    model = mc.MoCapsNet(image_shape, classes, channels=8, capsules=3, class_dim=4)
    assert model(torch.rand(2, *image_shape)).reconstruction.shape == (2, *image_shape)


def test_an_image_is_read_through_the_rooms_in_order(network, routing):
    model = network(routing=routing, blocks=2)
    images = torch.rand(3, 1, 9, 9)
    u = model.primary(model.stem(images))
    capsules = model.caps2(model.trunk(model.caps1(u)))
    output = model(images)
    assert torch.equal(output.capsules, capsules)
    chosen = torch.zeros_like(capsules)
    for n, k in enumerate(output.lengths.argmax(1).tolist()):
        chosen[n, k] = capsules[n, k]
    assert torch.equal(output.reconstruction, model.decoder(chosen))


def test_labels_choose_what_is_reconstructed_and_nothing_else(network):
    model, images = network(), torch.rand(3, 1, 9, 9)
    free, one, other = (
        model(images),
        model(images, torch.tensor([0, 1, 2])),
        model(images, torch.tensor([3, 1, 2])),
    )
    assert torch.equal(one.lengths, free.lengths)
    assert torch.equal(one.capsules, free.capsules)
    assert not torch.allclose(one.reconstruction[0], other.reconstruction[0], rtol=1e-6, atol=0)
    assert torch.equal(one.reconstruction[1:], other.reconstruction[1:])
    guessed = model(images, free.lengths.argmax(1))
    assert torch.equal(guessed.reconstruction, free.reconstruction)


def test_multi_hot_labels_reconstruct_several_classes(network):
    model, images = network(), torch.rand(2, 1, 9, 9)
    labels = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0]])
    output = model(images, labels)
    assert torch.equal(output.reconstruction, model.decoder(output.capsules * labels[..., None]))


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_computes_the_same_and_shares_nothing(network, routing, copied):
    model, images = network(routing=routing), torch.rand(2, 1, 9, 9)
    twin = copied(model)
    assert twin.config == model.config
    assert torch.equal(twin(images).reconstruction, model(images).reconstruction)
    before = model(images).lengths
    with torch.no_grad():
        twin.caps2.W.zero_()
    assert torch.equal(model(images).lengths, before)


def test_a_state_dict_carries_everything(network, routing):
    model, other = network(routing=routing), network(routing=routing)
    images = torch.rand(2, 1, 9, 9)
    assert not torch.equal(other(images).lengths, model(images).lengths)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(images).reconstruction, model(images).reconstruction)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_network_computes_in_its_dtype(network, routing, dtype):
    output = network(routing=routing).to(dtype)(torch.rand(2, 1, 9, 9, dtype=dtype), torch.tensor([0, 1]))
    assert {part.dtype for part in output} == {dtype}
    assert all(part.isfinite().all() for part in output)


def test_printing_a_network_names_routing_and_trunk(network):
    text = repr(network(routing="sda", iterations=2))
    assert "sda, iterations=2" in text
    assert "3x4 -> 4x5" in text
