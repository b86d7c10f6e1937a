import inspect

import pytest
import torch
from torch.testing import assert_close

from mocapsnet import ops

u, W, bias = torch.randn(2, 6, 3), torch.randn(4, 6, 5, 3), torch.randn(4, 5)


@pytest.fixture(params=[ops.rba, ops.sda, ops.em], ids=["rba", "sda", "em"])
def op(request):
    return request.param


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"u": u[0]}, ["u must be [B, I, D]", "(6, 3)"]),
        ({"W": W[0]}, ["W must be [J, I=6, E, D=3]", "(6, 5, 3)"]),
        ({"W": W[:, :5]}, ["I=6", "(4, 5, 5, 3)"]),
        ({"W": W[..., :2]}, ["D=3", "(4, 6, 5, 2)"]),
        ({"W": W[:0]}, [">= 1", "(0, 6, 5, 3)"]),
        ({"W": W[:, :, :0], "bias": None}, [">= 1", "(4, 6, 0, 3)"]),
        ({"u": u[:, :0], "W": W[:, :0]}, [">= 1", "(4, 0, 5, 3)"]),
        ({"bias": bias[0]}, ["bias must be [J=4, E=5] or None", "(5,)"]),
        ({"bias": bias.T}, ["J=4, E=5", "(5, 4)"]),
        ({"iterations": 0}, ["iterations", ">= 1", "got 0"]),
        ({"iterations": -3}, [">= 1", "got -3"]),
        ({"iterations": 2.5}, ["whole number", "got 2.5"]),
        ({"iterations": True}, ["whole number", "got True"]),
        ({"gradient": "lst"}, ["'last', 'all'", "got 'lst'", "did you mean 'last'?"]),
        ({"gradient": None}, ["'last', 'all'", "got None"]),
        ({"backend": "cuda"}, ["'auto', 'reference', 'fused'", "got 'cuda'"]),
        ({"backend": "referense"}, ["did you mean 'reference'?"]),
    ],
)
def test_a_wrong_argument_is_refused_with_its_value_and_the_limit(op, arguments, parts):
    with pytest.raises(ValueError, match=r"must be|>= 1") as error:
        op(**({"u": u, "W": W, "bias": bias} | arguments))
    assert all(part in str(error.value) for part in parts), str(error.value)


@pytest.mark.parametrize("backend", ["reference", "auto", "fused"])
@pytest.mark.parametrize("name", ["W", "bias", "beta_a", "beta_u"])
def test_what_is_on_another_device_is_refused(op, name, backend):
    given = {"u": u, "W": W, "bias": bias}
    if name.startswith("beta"):
        op, given = ops.em, {**given, name: torch.zeros(4)}
    given[name] = given[name].to("meta")
    with pytest.raises(ValueError, match=f"{name} must be on cpu as u is, got meta"):
        op(**given, backend=backend)


def test_a_wrong_scope_is_refused():
    with pytest.raises(ValueError, match=r"scope must be one of 'sample', 'batch', got 'image'"):
        ops.sda(u, W, bias, scope="image")


@pytest.mark.parametrize("name", ["beta_a", "beta_u"])
@pytest.mark.parametrize("beta", [torch.zeros(5), torch.zeros(()), torch.zeros(1, 4)], ids=str)
def test_betas_of_the_wrong_shape_are_refused(name, beta):
    with pytest.raises(ValueError, match=rf"{name} must be \[J=4\] or None, got shape") as error:
        ops.em(u, W, bias, **{name: beta})
    assert str(tuple(beta.shape)) in str(error.value)


def test_the_fused_backend_says_why_it_cannot_run(op, monkeypatch):
    monkeypatch.setattr("mocapsnet.ops.backend.INTERPRETED", False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"backend='fused' cannot run: .*use backend='auto'"):
        op(u, W, bias, backend="fused")


def test_the_default_is_auto_and_close_to_the_reference(route):
    assert torch.equal(route(u, W, bias), route(u, W, bias, backend="auto"))
    assert_close(route(u, W, bias), route(u, W, bias, backend="reference"), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_output_has_the_shape_and_dtype_of_the_inputs(route, dtype):
    v = route(u.to(dtype), W.to(dtype), bias.to(dtype))
    assert v.shape == (2, 4, 5)
    assert v.dtype == dtype
    assert v.isfinite().all()


@pytest.mark.parametrize("backend", ["auto", "reference", "fused"])
def test_a_bias_of_another_dtype_does_not_change_the_capsules_dtype(op, backend):
    found = op(u, W, bias.double(), backend=backend)
    assert found.dtype == torch.float32
    assert torch.equal(found, op(u, W, bias, backend=backend))


def test_auto_does_not_round_a_bias_to_what_capsules_are():
    errors = {"kept": [], "rounded": []}
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        small, large, offset = (torch.randn(x.shape, generator=draw) for x in (u, W, bias))
        small, large = small.bfloat16(), large.bfloat16()
        exact = ops.rba(small.double(), large.double(), offset.double(), backend="reference")
        for name, given in (("kept", offset), ("rounded", offset.bfloat16())):
            errors[name].append((ops.rba(small, large, given).double() - exact).norm())
    kept, rounded = (torch.stack(found).median() for found in errors.values())
    assert kept < rounded


@pytest.mark.parametrize("name", ["u", "W", "bias"])
def test_whole_numbers_are_refused(name):
    tensors = {"u": u, "W": W, "bias": bias}
    with pytest.raises(ValueError, match=rf"{name} must be of floating point, got torch\.int64"):
        ops.rba(**{**tensors, name: tensors[name].long()})


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "float64"), ("float16", "bfloat16")])
def test_two_dtypes_become_the_one_that_holds_both(op, dtypes, backend):
    one, other = (getattr(torch, dtype) for dtype in dtypes)
    both = torch.promote_types(one, other)
    for given in ((u.to(one), W.to(other)), (u.to(other), W.to(one))):
        v = op(*given, bias.to(both), backend=backend)
        assert v.dtype == both
        assert torch.equal(v, op(*(tensor.to(both) for tensor in (*given, bias)), backend=backend))


def test_an_empty_batch_gives_an_empty_batch(op):
    assert op(u[:0], W, bias).shape == (0, 4, 5)


@pytest.mark.parametrize(
    ("op", "defaults"),
    [
        (ops.rba, {"bias": None, "iterations": 3, "backend": "auto", "leaky": False, "gradient": "last"}),
        (ops.sda, {"bias": None, "iterations": 3, "scope": "sample", "gradient": "all", "backend": "auto"}),
        (
            ops.em,
            {
                "bias": None,
                "iterations": 3,
                "beta_a": None,
                "beta_u": None,
                "gradient": "all",
                "backend": "auto",
            },
        ),
    ],
)
def test_the_documented_defaults_hold(op, defaults):
    parameters = inspect.signature(op).parameters
    assert list(parameters) == ["u", "W", *defaults]
    assert {name: parameters[name].default for name in defaults} == defaults
