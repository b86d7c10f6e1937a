"""What a person sees while a run goes on."""

import sys

import torch
from tqdm import tqdm

from mocapsnet.nn.arriving import Arriving
from mocapsnet.train.state import Row, State


class Progress:
    """A live bar over the whole run on a terminal, and a line per epoch everywhere."""

    def __init__(self, epochs: int, images: int, state: State) -> None:
        self.epochs = epochs
        self.asked: tuple[Arriving, int] | None = None
        self.bar = tqdm(
            total=epochs * images,
            initial=state.epoch * images + state.seen,
            unit=" images",
            bar_format="{desc} |{bar}| {rate_fmt}{postfix}, {remaining} left",
            dynamic_ncols=True,
            leave=False,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def advance(self, state: State, images: int) -> None:
        """Count a batch; loss and accuracy are asked for only when the bar is drawn anew."""
        if self.bar.update(images):
            self.bar.set_description(f"epoch {state.epoch + 1}/{self.epochs}", refresh=False)
            if self.asked is None:
                sums = [torch.as_tensor(one).float() for one in (state.loss_sum, state.correct)]
                self.asked = Arriving(torch.stack(sums)), state.seen
            arriving, seen = self.asked
            if arriving.there():
                loss, correct = arriving.read()
                told = f"loss {loss / seen:.4f}, accuracy {correct / seen:.2%}"
                self.bar.set_postfix_str(told, refresh=False)
                self.asked = None

    def finish(self, row: Row) -> None:
        """Print an epoch's line above the bar."""
        read = {"validation": row.validation_accuracy, "test": row.test_accuracy}
        told = "".join(f"{name} {value:.2%}  " for name, value in read.items() if value is not None)
        self.bar.write(
            f"epoch {row.epoch:>{len(str(self.epochs))}}/{self.epochs}  loss {row.train_loss:.4f}  "
            f"train {row.train_accuracy:.2%}  {told}"
            f"{row.images_per_second:,.0f} images/s"
        )
