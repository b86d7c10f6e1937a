"""The paper's tables, as they are printed."""

from collections import Counter

import pytest

from mocapsnet.paper.printed import Cell, cells


def test_every_cell_of_the_five_tables_is_there():
    counts = Counter(cell.table for cell in cells())
    assert counts == {"table-1": 32, "table-2": 32, "table-3": 27, "table-4": 48, "table-5": 12}
    assert len(set(cells())) == 151


# Sums of columns and rows, added up from the paper's pages.
@pytest.mark.parametrize(
    ("table", "dataset", "model", "values", "stds"),
    [
        ("table-1", "mnist", "rescapsnet", 794.72, 0.30),
        ("table-1", "mnist", "mocapsnet", 794.96, 0.61),
        ("table-1", "svhn", "rescapsnet", 738.99, 3.33),
        ("table-1", "svhn", "mocapsnet", 738.08, 8.02),
        ("table-2", "cifar10", "rescapsnet", 570.58, 5.69),
        ("table-2", "cifar10", "mocapsnet", 570.09, 4.69),
        ("table-2", "cifar100", "rescapsnet", 8.00, 0.0),
        ("table-2", "cifar100", "mocapsnet", 280.42, 1.08),
        ("table-3", "cifar10", "rescapsnet", 875.40, 0.0),
        ("table-3", "cifar10", "mocapsnet", 881.47, 0.0),
        ("table-4", "mnist", "rescapsnet", 41195, 0.0),
        ("table-4", "mnist", "mocapsnet", 35292, 0.0),
        ("table-4", "cifar10", "rescapsnet", 65948, 0.0),
        ("table-4", "cifar10", "mocapsnet", 61325, 0.0),
        ("table-4", "svhn", "rescapsnet", 63631, 0.0),
        ("table-4", "svhn", "mocapsnet", 59070, 0.0),
        ("table-5", "cifar10", "rescapsnet", 439.27, 0.0),
        ("table-5", "cifar10", "mocapsnet", 440.88, 0.0),
    ],
)
def test_rows_add_up(table, dataset, model, values, stds):
    found = [cell for cell in cells() if (cell.table, cell.dataset, cell.model) == (table, dataset, model)]
    assert sum(cell.value for cell in found) == pytest.approx(values)
    assert sum(cell.std or 0 for cell in found) == pytest.approx(stds)


@pytest.mark.parametrize(
    "cell",
    [
        Cell("table-1", "mnist", "mocapsnet", 7, 99.54, 0.23),
        Cell("table-1", "svhn", "mocapsnet", 3, 93.00, 0.65),
        Cell("table-1", "svhn", "rescapsnet", 4, 91.87, 0.95),
        Cell("table-2", "cifar10", "mocapsnet", 4, 70.29, 0.06),
        Cell("table-2", "cifar100", "mocapsnet", 8, 43.48, 0.06),
        Cell("table-2", "cifar100", "rescapsnet", 5, 1.00, None, about=True),
        Cell("table-3", "cifar10", "mocapsnet", 5, 75.46, routing="sda"),
        Cell("table-3", "cifar10", "rescapsnet", 5, 69.07, routing="sda", optimizer="ranger21"),
        Cell("table-3", "cifar10", "capsnet-2conv-ensemble", 0, 71.50),
        Cell("table-4", "cifar10", "rescapsnet", 8, 9179),
        Cell("table-4", "mnist", "mocapsnet", 6, 4546),
        Cell("table-5", "cifar10", "mocapsnet", 2, 68.98, None, "rba", "ranger21", 0.1, 32, 128),
        Cell("table-5", "cifar10", "rescapsnet", 2, 74.83, None, "rba", "ranger21", 0.01, 64, 128),
    ],
    ids=str,
)
def test_a_cell_is_as_it_is_printed(cell):
    assert cell in cells()
