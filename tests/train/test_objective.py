"""What a step minimises, against values computed by hand."""

import pytest
import torch
import torch.nn.functional as F

import mocapsnet as mc
from mocapsnet.nn.convnet import Scores
from mocapsnet.train.objective import Objective

LENGTHS = torch.tensor([[0.5, 0.3], [0.0, 1.0]])
LABELS = torch.tensor([0, 0])
PIXELS = torch.full((2, 1, 2, 2), 0.5)
OUTPUT = mc.CapsuleOutput(LENGTHS, torch.zeros(2, 2, 3), torch.full((2, 1, 2, 2), 0.25))
# (0.9 - 0.5)² + 0.5 (0.3 - 0.1)² and 0.9² + 0.5 · 0.9²; four pixels of two images, each off by 1/4.
MARGIN = (0.16 + 0.02) + (0.81 + 0.405)
ERROR = 2 * 4 / 16


def test_the_default_is_the_loss_of_equation_1():
    loss = Objective()(OUTPUT, LABELS, PIXELS)
    assert torch.equal(loss, mc.capsule_loss(OUTPUT, LABELS, PIXELS))
    assert loss.item() == pytest.approx((MARGIN + 5e-4 * ERROR) / 2)


def test_a_sum_is_reported_as_a_mean_over_images():
    objective = Objective(reduction="sum", reconstruction_weight=0.1)
    loss = objective(OUTPUT, LABELS, PIXELS)
    assert loss.item() == pytest.approx(MARGIN + 0.1 * ERROR)
    assert objective.per_image(loss, 2).item() == pytest.approx((MARGIN + 0.1 * ERROR) / 2)
    assert Objective().per_image(loss, 2) is loss


def test_smoothing_moves_labels_towards_all_classes():
    # T = (0.9, 0.1) for two classes and a smoothing of 0.2.
    first = 0.9 * 0.16 + 0.5 * 0.1 * 0.16 + 0.1 * 0.36 + 0.5 * 0.9 * 0.04
    second = 0.9 * 0.81 + 0.5 * 0.9 * 0.81
    loss = Objective(smoothing=0.2, reconstruction_weight=0)(OUTPUT, LABELS, PIXELS)
    assert loss.item() == pytest.approx((first + second) / 2)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_mixed_images_have_mixed_labels_and_their_losses_are_mixed(reduction):
    labels, share = torch.tensor([0, 1]), torch.tensor([[0.75], [1.0]])
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    for loss in ("margin", "cross-entropy"):
        objective = Objective(loss=loss, reconstruction_weight=0, reduction=reduction)

        def of(labels, n, objective=objective):
            """Of one image alone."""
            alone = Scores(LENGTHS[n : n + 1], logits[n : n + 1])
            return objective(alone, torch.tensor([labels]), PIXELS).item()

        expected = 0.75 * of(0, 0) + 0.25 * of(1, 0) + of(1, 1)
        found = objective(Scores(LENGTHS, logits), labels, PIXELS, share).item()
        assert found == pytest.approx(expected / (2 if reduction == "mean" else 1))


def test_labels_are_mixed_before_they_are_smoothed():
    # T = (0.75, 0.25) of the first, the second's own; then 0.9 of it and 0.05 for each class.
    labels, share = torch.tensor([0, 1]), torch.tensor([[0.75], [1.0]])
    truth = Objective(smoothing=0.1).truth(labels, LENGTHS, share)
    assert torch.allclose(truth, torch.tensor([[0.725, 0.275], [0.05, 0.95]]))


def test_without_a_weight_no_reconstruction_is_asked_for():
    bare = Scores(LENGTHS, LENGTHS)
    assert Objective(reconstruction_weight=0)(bare, LABELS, PIXELS).item() == pytest.approx(MARGIN / 2)
    with pytest.raises(AttributeError):
        Objective()(bare, LABELS, PIXELS)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_reads_the_logits(reduction):
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    objective = Objective(loss="cross-entropy", reconstruction_weight=0, reduction=reduction)
    expected = F.softplus(torch.tensor([-2.0, 1.0])).sum() / (2 if reduction == "mean" else 1)
    assert objective(Scores(LENGTHS, logits), LABELS, PIXELS).item() == pytest.approx(expected.item())


def test_the_mask_says_whether_the_network_sees_the_labels():
    assert Objective().shown(LABELS) is LABELS
    assert Objective(mask="guess").shown(LABELS) is None
