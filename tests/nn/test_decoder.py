import pytest
import torch
from torch.testing import assert_close

from mocapsnet.nn.decoder import Decoder, mask
from mocapsnet.ops import length

CAPSULES = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]], [[0.0, 0.5], [0.1, 0.1], [0.0, 0.4]]])


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        (None, [[1], [0]]),
        (torch.tensor([0, 2]), [[0], [2]]),
        (torch.tensor([[1, 0, 1], [0, 1, 0]]), [[0, 2], [1]]),
        (torch.tensor([[0, 0, 0], [1, 1, 1]]), [[], [0, 1, 2]]),
    ],
    ids=["longest", "label", "multi-hot", "none-and-all"],
)
def test_the_mask_keeps_the_labels_or_else_the_longest(labels, kept):
    masked = mask(CAPSULES, length(CAPSULES), labels)
    for n, classes in enumerate(kept):
        for k in range(3):
            assert masked[n, k].tolist() == (CAPSULES[n, k].tolist() if k in classes else [0.0, 0.0])


def test_of_two_equally_long_capsules_one_is_kept():
    capsules = torch.ones(1, 3, 2)
    assert (mask(capsules, length(capsules), None).abs().sum(-1) > 0).sum() == 1


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 2])], ids=["longest", "label"])
def test_the_gradient_reaches_the_kept_capsules_alone(labels):
    capsules = CAPSULES.clone().requires_grad_()
    mask(capsules, length(capsules), labels).sum().backward()
    kept = [1, 0] if labels is None else [0, 2]
    expected = torch.zeros(2, 3, 2)
    expected[[0, 1], kept] = 1
    assert torch.equal(capsules.grad, expected)


@pytest.mark.parametrize("width", [512, 7])
@pytest.mark.parametrize("image_shape", [(1, 5, 7), (3, 2, 2), (4, 1, 1)], ids=str)
def test_the_decoder_is_three_layers_ending_in_a_sigmoid(image_shape, width):
    decoder, capsules = Decoder(3, 2, image_shape, width), torch.randn(4, 3, 2)
    first, second, third = decoder.layers[0], decoder.layers[2], decoder.layers[4]
    hidden = (capsules.reshape(4, 6) @ first.weight.T + first.bias).clamp(min=0)
    hidden = (hidden @ second.weight.T + second.bias).clamp(min=0)
    pixels = 1 / (1 + (-(hidden @ third.weight.T + third.bias)).exp())
    assert (hidden.shape[1], first.out_features) == (2 * width, width)
    assert_close(decoder(capsules), pixels.reshape(4, *image_shape))


def test_the_decoder_is_as_wide_as_the_paper_s_unless_told():
    assert Decoder(3, 2, (1, 5, 7)).layers[0].out_features == 512
