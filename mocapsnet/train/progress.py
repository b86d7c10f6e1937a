"""What a person sees while a run goes on."""

import sys

import torch
from tqdm import tqdm

from mocapsnet.train.state import Row, State


class Asked:
    """Loss and accuracy of an epoch so far, on their way from a device that nobody waits for."""

    def __init__(self, state: State) -> None:
        self.seen = state.seen
        sums = torch.stack([torch.as_tensor(one).float() for one in (state.loss_sum, state.correct)])
        self.sums = torch.empty(2, pin_memory=sums.is_cuda).copy_(sums, non_blocking=True)
        self.event = torch.cuda.Event() if sums.is_cuda else None
        if self.event is not None:
            self.event.record()

    def there(self) -> bool:
        """Whether they arrived."""
        return self.event is None or self.event.query()

    def means(self) -> list[float]:
        """Both, per image."""
        found: list[float] = (self.sums / self.seen).tolist()
        return found


class Progress:
    """A live bar over the whole run on a terminal, and a line per epoch everywhere."""

    def __init__(self, epochs: int, images: int, state: State) -> None:
        self.epochs = epochs
        self.asked: Asked | None = None
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
            self.asked = self.asked or Asked(state)
            if self.asked.there():
                loss, accuracy = self.asked.means()
                self.bar.set_postfix_str(f"loss {loss:.4f}, accuracy {accuracy:.2%}", refresh=False)
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
