"""Reading from a device without waiting for it."""

from typing import Any

import torch
from torch import Tensor


class Arriving:
    """Numbers on their way from a device: a GPU's nobody waits for."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = torch.empty_like(numbers, device="cpu", pin_memory=numbers.is_cuda)
        self.numbers.copy_(numbers, non_blocking=True)
        self.event = torch.cuda.Event() if numbers.is_cuda else None
        if self.event is not None:
            self.event.record()

    def there(self) -> bool:
        """Whether they can be read without waiting."""
        return self.event is None or self.event.query()

    def read(self) -> Any:
        """The number, or a list of them."""
        if self.event is not None:
            self.event.synchronize()
        return self.numbers.tolist()
