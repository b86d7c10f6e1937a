"""The same model under Lightning's Trainer: a module with a loss, and its loaders."""

import sys

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import mocapsnet as mc
from mocapsnet.data import Split
from mocapsnet.data.augment import standardise, to_pixels


class Capsules(lightning.LightningModule):
    """A MoCapsNet, its loss and its accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.model = mc.MoCapsNet((1, 28, 28), classes=10, blocks=1, capsules=8, channels=32)

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        """The loss of a batch of uint8 images and labels."""
        pixels, labels = to_pixels(batch[0]), batch[1]
        return mc.capsule_loss(self.model(standardise(pixels), labels), labels, pixels)

    def test_step(self, batch: list[Tensor], number: int) -> None:
        """Count what is seen right."""
        seen = self.model(standardise(to_pixels(batch[0]))).lengths.argmax(1)
        self.log("test_accuracy", (seen == batch[1]).float().mean(), batch_size=len(seen))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as in the paper."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def loader(split: Split, shuffle: bool) -> DataLoader:
    """Batches of a split."""
    return DataLoader(TensorDataset(*split), batch_size=32, shuffle=shuffle)


def main(steps: int) -> None:
    """Train and test."""
    lightning.seed_everything(0, verbose=False)
    digits = mc.data.load("mnist6k")
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    capsules = Capsules()
    trainer.fit(capsules, loader(digits.train, shuffle=True))
    (told,) = trainer.test(capsules, loader(digits.test, shuffle=False), verbose=False)
    print(f"test accuracy {told['test_accuracy']:.2%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
