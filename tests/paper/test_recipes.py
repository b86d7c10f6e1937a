"""Recipes: complete, distinct, buildable; each differs from the others in what it says."""

import inspect
import json
import re
import shlex
from dataclasses import replace

import pytest
import torch

import mocapsnet as mc
from mocapsnet.data.classes import shape_of
from mocapsnet.paper.grid import chosen
from mocapsnet.paper.others import convnet, sabour, sabour_ensemble, xi_capsnet, xi_ensemble, xi_two_conv
from mocapsnet.paper.plan import TABLES
from mocapsnet.paper.recipes import (
    NAMED,
    ablation,
    best,
    best_ensemble,
    control,
    deep,
    figure_2_skip,
    recipe,
    released,
)
from mocapsnet.train.classify import accuracy, lengths_of
from mocapsnet.train.fit import fit

PAPERS = [*NAMED.values(), control, deep, figure_2_skip, ablation, best_ensemble]
OTHERS = [convnet, xi_capsnet, xi_two_conv, xi_ensemble, sabour, sabour_ensemble]
EVERY = {cell.name: cell for cells in TABLES.values() for cell in cells}


@pytest.fixture(autouse=True)
def few_pictures(monkeypatch):
    """Curves take longer than the training; reconstructions differ between networks and stay."""
    monkeypatch.setattr("mocapsnet.train.pictures.draw_curves", lambda *_: None)


@pytest.fixture(scope="module")
def digits():
    whole = mc.data.load("mnist6k")
    return replace(whole, test=whole.test.take(torch.arange(40)))


def test_a_name_says_it_all_and_fits_a_file():
    for cells in TABLES.values():
        assert len({cell.name for cell in cells}) == len(cells)
        # A model that is in two tables is the same one.
        assert all(EVERY[cell.name] == cell for cell in cells)
    told = {json.dumps([r.kind, r.network, r.training, r.dataset, r.members]) for r in EVERY.values()}
    assert len(told) == len(EVERY)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in EVERY)


def test_the_tables_have_the_paper_s_cells():
    def cells(table, kind, **fields):
        return [
            r
            for r in TABLES[table]
            if r.recipe == kind and all(getattr(r, n) == v for n, v in fields.items())
        ]

    for table, datasets in (("table-1", ("mnist", "svhn")), ("table-2", ("cifar10", "cifar100"))):
        for kind in ("written", "released", "stable"):
            for dataset in datasets:
                for model in ("rescapsnet", "mocapsnet"):
                    found = cells(table, kind, dataset=dataset, model=model)
                    assert [r.blocks for r in found] == list(range(1, 9))
    for kind in ("written", "released", "stable"):
        for routing in ("rba", "sda"):
            assert len(cells("table-3", kind, routing=routing, optimizer="ranger21")) == 6
        assert len(cells("table-5", kind)) == 12
    assert {r.model: r.members for r in TABLES["table-3"] if r.members > 1} == {
        "capsnet-2conv-ensemble": 4,
        "sabour-ensemble": 7,
    }


def test_epochs_and_rates_are_the_paper_s():
    for r in EVERY.values():
        if r.recipe in ("written", "stable") and r.kind in ("CapsNet", "ResCapsNet", "MoCapsNet"):
            special = "epochs" in r.name
            assert r.training["epochs"] == (100 if special else 30 if r.dataset == "mnist" else 60)
            assert special or r.training["lr"] == (1e-3 if r.optimizer == "adam" else 1e-2)
        assert r.training["batch"] == 128 or "batch" in r.name


def test_written_and_stable_differ_in_the_start_alone():
    written, stable = (recipe(kind, "cifar10", "mocapsnet", 5) for kind in ("written", "stable"))
    assert written.training == stable.training
    assert written.network == {"blocks": 5, "routing": "rba", "weight_std": 0.01, "routing_bias": None}
    assert stable.network == {"blocks": 5, "routing": "rba", "weight_std": 0.1, "routing_bias": 0.1}
    assert recipe("written", "cifar10", "mocapsnet", 5, "em").network["routing_bias"] == 0.1


def test_released_is_what_facts_say():
    r = recipe("released", "cifar100", "mocapsnet", 8)
    assert r.training["lr"] == 1e-4
    assert recipe("released", "cifar10", "mocapsnet", 8).training["lr"] == 1e-3
    assert recipe("released", "svhn", "mocapsnet", 20).training["lr"] == 1e-4
    assert recipe("released", "cifar10", "mocapsnet", optimizer="ranger21").training["steps_told"] == 128
    model = r.build((3, 32, 32), 100, seed=0)
    assert model.config["doubled"]
    assert model.caps1.bias is None
    assert model.caps1.W.std().item() == pytest.approx(0.01, rel=0.01)
    assert not recipe("released", "cifar10", "rescapsnet").build((3, 32, 32), 10, 0).config["doubled"]
    with pytest.raises(ValueError, match="routes by 'rba' or 'sda', got 'em'"):
        recipe("released", "cifar10", "mocapsnet", routing="em")


def test_controls_change_one_thing_at_a_time_or_that_and_the_bias():
    for r in TABLES["controls"]:
        base = recipe("released", r.dataset, r.model, r.blocks)
        changed = {
            name
            for told, was in ((r.network, base.network), (r.training, base.training))
            for name in told
            if was.get(name) != told[name]
        }
        assert len(changed - {"routing_bias"}) == 1 or changed == {"routing_bias"}


def test_the_best_recipes_read_the_test_set_once():
    assert all(r.training["test"] == "end" for r in TABLES["best"])
    assert not any("test" in r.training for r in EVERY.values() if r.recipe != "best")


def test_digits_are_never_mirrored():
    for dataset in ("mnist", "svhn", "cifar10", "cifar100"):
        flipped = recipe("best", dataset, "mocapsnet").training.get("flip", False)
        assert flipped == dataset.startswith("cifar")


def test_every_recipe_names_arguments_that_exist_and_builds():
    for r in EVERY.values():
        assert set(r.training) <= set(inspect.signature(fit).parameters)
        with torch.device("meta"):
            model = r.build(*shape_of(r.dataset), seed=0)
        assert model.config["classes"] == shape_of(r.dataset)[1]
        assert model.config.items() >= r.network.items()


def test_the_seed_draws_the_weights():
    r = recipe("stable", "mnist", "mocapsnet", capsules=4, channels=8)
    one, same, other = (r.build((1, 28, 28), 10, seed).caps1.W for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_changes_are_told_by_the_name_and_unknown_ones_refused():
    r = recipe("stable", "cifar10", "rescapsnet", 2, lr=0.1, capsules=64)
    assert r.name == "cifar10-rescapsnet-rba-adam-b2-stable-lr0.1-capsules64"
    assert (r.training["lr"], r.network["capsules"]) == (0.1, 64)
    with pytest.raises(ValueError, match=r"'capsule'.*did you mean 'capsules'"):
        recipe("stable", "cifar10", "rescapsnet", capsule=64)
    with pytest.raises(ValueError, match="'stabel'; did you mean 'stable'"):
        recipe("stabel", "cifar10", "rescapsnet")


def test_every_family_says_how_it_is_run_and_what_to_expect():
    for function in (*PAPERS, *OTHERS):
        assert "Command: mocapsnet reproduce" in function.__doc__
        assert "expected" in function.__doc__


@pytest.mark.parametrize("function", [*PAPERS, *OTHERS], ids=lambda function: function.__name__)
def test_the_command_of_a_family_trains_it(function):
    (words,) = re.findall("Command: mocapsnet reproduce (.*)", function.__doc__)
    what, *rest = shlex.split(words)
    found = chosen(TABLES, what, rest[1] if rest else "")
    assert rest[:1] in ([], ["--only"])
    told = {
        "control": ("cifar100", "mocapsnet"),
        "ablation": ("stable", "mocapsnet"),
        "convnet": ("cifar10",),
    }
    told |= {"deep": ("svhn",)} | dict.fromkeys(
        ("written", "released", "stable", "best"), ("cifar10", "mocapsnet")
    )
    one = function(*told.get(function.__name__, ()))
    assert [r for r in found if (r.recipe, r.model, r.kind) == (one.recipe, one.model, one.kind)]
    assert len(found) < len(EVERY) / 4


@pytest.mark.parametrize(
    "r",
    [best("cifar10", "mocapsnet"), released("cifar10", "mocapsnet"), sabour(), convnet("cifar10")],
    ids=["best", "released", "sabour", "convnet"],
)
def test_a_recipe_trains_in_a_folder_that_loads(digits, tmp_path, r):
    r = r.smoke()
    run = r.fit(digits, seed=1, device="cpu", output=tmp_path)
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["seed"] == 1
    assert told["config"].items() >= {**r.training}.items()
    assert told["config"]["network"].items() >= r.network.items()
    found = mc.load(tmp_path)
    if not r.training.get("crop_test"):
        assert accuracy(found, digits.test) == run.test_accuracy


def test_an_ensemble_trains_its_members_with_seeds_of_their_own(digits, tmp_path):
    r = xi_ensemble().smoke()
    run = r.fit(digits, seed=3, device="cpu", output=tmp_path)
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["config"]["seeds"] == [6, 7]
    assert told["step"] == {"compiled": False, "graph": False}
    members = [mc.load(tmp_path / f"member-{n}") for n in range(2)]
    images = digits.test.images
    seen = (lengths_of(members[0], images) + lengths_of(members[1], images)).argmax(1)
    assert run.test_accuracy == told["test_accuracy"] == (seen == digits.test.labels).double().mean().item()
    before = (tmp_path / "member-0" / "model.safetensors").stat().st_mtime_ns
    assert r.fit(digits, seed=3, device="cpu", output=tmp_path) == run
    assert (tmp_path / "member-0" / "model.safetensors").stat().st_mtime_ns == before
