"""Data sets as one uint8 tensor, and what happens to a batch of it on the device."""

from mocapsnet.data.catalog import load
from mocapsnet.data.dataset import Dataset, Split

__all__ = ["Dataset", "Split", "load"]
