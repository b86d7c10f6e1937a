"""Tensors in, tensors out: squash, the routings, the momentum step. No modules, no I/O, no global state."""

from mocapsnet.ops.routing import em, rba, sda
from mocapsnet.ops.squash import length, squash

__all__ = ["em", "length", "rba", "sda", "squash"]
