"""Programs run in the interpreter of every Triton that they run with."""

import torch
from triton.runtime import interpreter

from mocapsnet import ops
from mocapsnet.ops.interpreter import count_loops


def test_loops_are_counted_in_triton_3_6(monkeypatch):
    newer = interpreter._patch_lang_tensor

    def as_in_3_6(tensor, scope):
        newer(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", as_in_3_6)
    count_loops()
    u, W = torch.randn(2, 5, 4), torch.randn(3, 5, 4, 4)
    torch.testing.assert_close(ops.sda(u, W, backend="fused"), ops.sda(u, W, backend="reference"))
