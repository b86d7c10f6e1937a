"""Data sets as one uint8 tensor, and what happens to a batch of it on the device."""

from mocapsnet.data.dataset import Dataset, Split, load

__all__ = ["Dataset", "Split", "load"]
