"""The report: from results alone, the same byte for byte, on its own, with every cell of the paper."""

import csv
import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from evidences import evidence, runs

from mocapsnet.cli import main
from mocapsnet.errors import BrokenFile
from mocapsnet.paper.claims import printed_value
from mocapsnet.paper.evidence import read
from mocapsnet.paper.plan import TABLES
from mocapsnet.paper.printed import cells
from mocapsnet.paper.recipe import Recipe
from mocapsnet.paper.recipes import control, recipe
from mocapsnet.paper.report import counts, write_report
from mocapsnet.paper.rules import AllOf
from mocapsnet.paper.tables import paper_tables
from mocapsnet.paper.trained import Chance, Trained
from mocapsnet.paper.verdicts import VERDICTS, ledger

REPOSITORY = Path(__file__).parent.parent.parent


def write_run(
    results: Path, blocks: int, seed: int, accuracy: float | None, of: Recipe | None = None
) -> None:
    of = of or recipe("stable", "cifar10", "mocapsnet", blocks)
    told = asdict(of)
    run = {"recipe": told, "seed": seed, "hardware": {"device": "NVIDIA H200", "threads": 1}}
    if accuracy is None:
        run["error"] = "NotFinite: step 7"
    else:
        config = {**of.training, "network": {"capsules": 32, **of.network}}
        run["curve"] = [{"epoch": of.training["epochs"], "test_accuracy": accuracy}]
        run |= {"test_accuracy": accuracy, "seconds": 61.4, "parameters": 13_494_944, "config": config}
    folder = results / "accuracy" / ("" if accuracy is not None else "failed")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{told['name']}-s{seed}-nvidia-h200.json").write_text(json.dumps(run))


@pytest.fixture
def results(tmp_path) -> Path:
    for seed, accuracy in enumerate((0.7611, 0.7622, 0.7633)):
        write_run(tmp_path, 1, seed, accuracy)
    write_run(tmp_path, 2, 0, None)
    (tmp_path / "speed").mkdir()
    with (tmp_path / "speed" / "step-b128-c32-nvidia-h200.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["network", "blocks", "seconds", "peak_bytes", "dataset", "device"])
        for model, slope in (("mocapsnet", 2), ("rescapsnet", 5), ("naive", 50)):
            writer.writerows(
                [model, blocks, 0.001 * blocks, (900 + slope * blocks) * 2**20, "cifar10", "NVIDIA H200"]
                for blocks in range(1, 9)
            )
    return tmp_path


def test_it_is_the_same_byte_for_byte(results):
    first = [path.read_bytes() for path in write_report(results)]
    figures = {path.name: path.read_bytes() for path in (results / "figures").iterdir()}
    assert [path.read_bytes() for path in write_report(results)] == first
    assert {path.name: path.read_bytes() for path in (results / "figures").iterdir()} == figures
    assert sorted(figures) == [f"figure-{number}.svg" for number in (1, 2, 3, 4)]


def test_runs_stand_beside_the_printed_number(results):
    page = write_report(results)[0].read_text()
    assert (
        "| 1 | MoCapsNet | 72.18 ± 0.62 | not run | not run | 76.22 ± 0.11 (n 3, 61 s, H200) | not run |"
        in page
    )
    assert "| 2 | MoCapsNet | 71.65 ± 0.62 | not run | not run | failed: NotFinite (NVIDIA H200) |  |" in page
    assert "| CIFAR-10 | MoCapsNet | ours, peak MiB (H200) | 902 | 904 |" in page
    assert "3 finished runs, 3 of them by recipe, 1 failed runs" in page


def test_in_short_there_are_the_introductions_depths_and_those_of_best(tmp_path):
    for name, blocks in (("best", 1), ("stable", 1), ("stable", 2), ("stable", 8)):
        write_run(tmp_path, blocks, 0, 0.5, recipe(name, "cifar100", "mocapsnet", blocks))
    write_run(tmp_path, 2, 0, 0.5)
    short = next(table for table in paper_tables(read(tmp_path)) if table.link == "In short")
    assert [[entry.text for entry in row[:3]] for row in short.rows] == [
        ["CIFAR-100", "MoCapsNet", "1"],
        ["CIFAR-100", "MoCapsNet", "8"],
    ]


@pytest.mark.parametrize(("column", "value"), [("batch", "512"), ("memory", "store"), ("channels", "64")])
def test_only_the_networks_of_the_paper_are_drawn(results, column, value):
    (path,) = (results / "speed").glob("*.csv")
    assert read(results).measured
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},{column}", *(f"{row},{value}" for row in rows)]))
    assert not read(results).measured


def test_svhn_has_cifar10s_figures_until_it_has_its_own(results):
    page, html = (path.read_text() for path in write_report(results))
    assert "| SVHN | MoCapsNet | ours, peak MiB (H200, measured on CIFAR-10) | 902 | 904 |" in page
    assert '<td class="number again">904</td>' in html
    assert "ours: 904 MiB allocated; measured on CIFAR-10 |" in page
    assert "ours: 904 MiB allocated |" in page
    (path,) = (results / "speed").glob("*.csv")
    rows = path.read_text().replace("cifar10", "svhn").replace(str(902 * 2**20), str(800 * 2**20))
    (results / "speed" / "step-svhn.csv").write_text(rows)
    page = write_report(results)[0].read_text()
    assert "| SVHN | MoCapsNet | ours, peak MiB (H200) | 800 | 904 |" in page
    assert "measured on CIFAR-10" not in page
    assert "| CIFAR-10 | MoCapsNet | ours, peak MiB (H200) | 902 | 904 |" in page
    # The released networks are others, which SVHN still has not.
    released = path.read_text().replace("mocaps", "released-mocaps")
    (results / "speed" / "step-released.csv").write_text(released)
    assert "| 904 MiB allocated; measured on CIFAR-10 | ours: 904 MiB" in write_report(results)[0].read_text()


def test_a_measurement_fills_one_cell_however_often_it_stands_there(results):
    """Table 2 has two cells, of which table 3 repeats one, and table 4 two rows, which SVHN repeats."""
    told = counts(evidence := read(results), paper_tables(evidence))
    sizes = told["sizes filled"].split(" of ")[1]
    assert told["accuracies filled"].startswith("2 of ")
    assert told["sizes filled"] == f"{2 * 8} of {sizes}"
    (path,) = (results / "speed").glob("*.csv")
    (results / "speed" / "step-svhn.csv").write_text(path.read_text().replace("cifar10", "svhn"))
    again = counts(evidence := read(results), paper_tables(evidence))
    assert again == {**told, "sizes filled": f"{2 * 2 * 8} of {sizes}"}


def write_written(results: Path, *accuracies: float) -> None:
    for seed, accuracy in enumerate(accuracies):
        write_run(results, 1, seed, accuracy, recipe("written", "cifar10", "mocapsnet", 1))


def test_a_number_has_its_spreads_verdict_beside_its_own(results):
    write_written(results, 0.7611, 0.7622, 0.7633)
    page, html = (path.read_text() for path in write_report(results))
    row = "CIFAR-10, MoCapsNet, 1 block: 72.18 ± 0.62 % (table 2) |"
    assert f"| does not hold | holds | {row} no, 76.22 ± 0.11 (n 3); std yes, 0.06 to 0.69 (n 3) |" in page
    assert "<dt>printed ±</dt><dd>holds</dd>" in html
    write_written(results, 0.73, 0.76, 0.79)
    page = write_report(results)[0].read_text()
    assert f"| holds | does not hold | {row} yes, 76.00 ± 3.00 (n 3); std no, 1.56 to 18.85 (n 3) |" in page


def test_verdicts_are_counted_by_kind(results):
    write_written(results, 0.7611, 0.7622, 0.7633)
    page = write_report(results)[0].read_text()
    assert "| verdict | sentences | numbers | standard deviations |" in page
    assert "| in all | 71 | 151 | 56 |" in page
    assert re.search(r"\| holds \| \d+ \| 0 \| 1 \|", page)


def test_figures_say_what_was_measured_on(results):
    write_report(results)
    for name in ("figure-3", "figure-4"):
        assert (
            "blocks of two capsule layers, on NVIDIA H200"
            in (results / "figures" / f"{name}.svg").read_text()
        )
    figure = results / "figures" / "figure-3.svg"
    assert "; measured on CIFAR-10 for SVHN too: memory, training step<" in figure.read_text()
    (path,) = (results / "speed").glob("*.csv")
    (results / "speed" / "step-svhn.csv").write_text(path.read_text().replace("cifar10", "svhn"))
    write_report(results)
    assert "for SVHN too" not in figure.read_text()
    (results / "speed" / "inference.csv").write_text(path.read_text())
    write_report(results)
    assert "; measured on CIFAR-10 for SVHN too: inference of a batch<" in figure.read_text()


def test_what_waits_for_the_backward_pass_stands_under_the_peak(results):
    (results / "memory").mkdir()
    head = "variant,blocks,kept_bytes,batch,capsules,routing,dataset,device"
    slopes = {"exact-store": 2, "exact-reverse": 0, "torch-checkpoint": 1, "residual": 3}
    rows = [
        f"{variant},{blocks},{(50 + slope * blocks) * 2**20},128,32,rba,cifar10,NVIDIA H200"
        for variant, slope in slopes.items()
        for blocks in (1, 2, 4, 8, 64)
    ]
    (results / "memory" / "memory-network-b128.csv").write_text("\n".join([head, *rows]))
    page = write_report(results)[0].read_text()
    assert "| CIFAR-10 | MoCapsNet | ours, kept MiB (H200) | 50 | 50 | not run | 50 |" in page
    assert "| CIFAR-10 | ResCapsNet | ours, kept MiB (H200) | 53 | 56 | not run | 62 |" in page
    assert "| CIFAR-10 | MoCapsNet, storing all | ours, kept MiB (H200) | 52 | 54 | not run | 58 |" in page
    assert re.search(r"\| holds \| Activations of blocks .* 0 against 2 MiB per block \(4 depths\)", page)


@pytest.mark.parametrize("name", ["speed/step-x.csv", "memory/memory-network-x.csv"])
def test_a_bench_that_cannot_be_read_is_named(results, name):
    path = results / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("network,variant,dataset,blocks\nmocapsnet,exact-reverse,cifar10,many\n")
    with pytest.raises(BrokenFile, match=f"{path.name} is not what mocapsnet bench writes"):
        read(results)


def test_a_gpu_counts_before_a_cpu_with_more_depths(results):
    (path,) = (results / "speed").glob("*.csv")
    rows = [f"mocapsnet,{blocks},0.5,,cifar10,a CPU" for blocks in range(1, 21)]
    (results / "speed" / "step-cpu.csv").write_text("\n".join([path.read_text().splitlines()[0], *rows]))
    assert {row.device for row in read(results).steps("step", model="mocapsnet")} == {"NVIDIA H200"}


def test_a_report_of_a_smoke_runs_benches_alone_says_so(tmp_path):
    (tmp_path / "speed").mkdir()
    rows = "network,blocks,seconds,peak_bytes,dataset,device,batch,channels\n"
    file = tmp_path / "speed" / "step-mnist-b4-channels-8-nvidia-h200.csv"
    for batch, channels, smoke in ((4, 8, True), (128, 256, False)):
        file.write_text(f"{rows}mocapsnet,1,0.001,1048576,mnist,NVIDIA H200,{batch},{channels}\n")
        assert ("This is a smoke run" in write_report(tmp_path)[0].read_text()) == smoke


def test_what_nvidia_smi_read_is_not_judged_by_what_was_allocated(tmp_path):
    (tmp_path / "speed").mkdir()
    lines = ["network,blocks,seconds,peak_bytes,dataset,device,batch,channels,backend,memory,arithmetic"]
    lines += [
        f"released-mocapsnet,{n},0.1,{size * 2**20},cifar10,NVIDIA H200,128,256,reference,reverse,float"
        for n, size in ((1, 7653), (2, 9999))
    ]
    (tmp_path / "speed" / "step-cifar10-b128-nvidia-h200.csv").write_text("\n".join(lines) + "\n")
    found = {j.claim.says: j for j in ledger(read(tmp_path))}
    for says, told in (("1 block: 7653", "7,653 MiB allocated"), ("2 blocks: 7657", "9,999 MiB allocated")):
        judged = found[f"CIFAR-10, MoCapsNet, {says} MB"]
        assert (judged.verdict, judged.findings["released"].mark()) == ("indicative", told)
    assert found["CIFAR-10, MoCapsNet, 3 blocks: 7660 MB"].findings["released"].mark() == "not run"


def test_of_many_that_are_asked_those_that_fail_are_told():
    networks = [Trained("cifar10", "mocapsnet", blocks) for blocks in (1, 3, 5, 8)]
    found = [runs(which, 10.0 if which.blocks == 5 else 76.0) for which in networks]
    rule = AllOf([Chance([which], learns=True) for which in networks])
    told = rule.find(evidence(*found), "stable").told
    assert told == "3 of 4 confirm it; not: CIFAR-10 MoCapsNet, 5 blocks: 10.00; n 1"


def test_a_note_of_a_run_is_told(results):
    assert "Notes on runs" not in write_report(results)[0].read_text()
    path = next((results / "accuracy").glob("*-s0-*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "From other files."}))
    assert "| From other files. | CIFAR-10 | 1 |" in write_report(results)[0].read_text()


def test_every_planned_control_has_its_row(tmp_path):
    page = write_report(tmp_path)[0].read_text().split("## Controls")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith(("| Res", "| Mo"))]
    assert len(rows) == len(TABLES["controls"]) + 2
    assert len({(network, changed) for network, changed, _ in rows}) == len(rows)
    assert {last for *_, last in rows} == {"not run |"}


def test_everything_planned_has_a_cell(tmp_path):
    """Ours: with a run of every recipe no cell is empty, each run stands in one, and none is left over."""
    planned = {recipe.name: recipe for table in TABLES.values() for recipe in table}
    for number, of in enumerate(planned.values()):
        write_run(tmp_path, 0, 0, 0.1 + number / 1e4, of)
    page = write_report(tmp_path)[0].read_text()
    assert "## Other runs" not in page
    tables = page[page.index("## Table 1") : page.index("## Figures")]
    before, memory, after = re.split("(## Table 4.*?)(?=\n## )", tables, flags=re.DOTALL)
    assert "not run" in memory
    assert "not run" not in before + after
    for number in range(len(planned)):
        assert f"| {10 + number / 100:.2f} (n 1," in before + after


def test_controls_stand_under_the_network_that_they_change(results):
    write_run(results, 8, 0, 0.4367, recipe("released", "cifar100", "mocapsnet", 8))
    for change, accuracy in (({"doubled": False, "routing_bias": 0.1}, 0.15), ({"doubled": False}, 0.02)):
        write_run(results, 8, 0, accuracy, control("cifar100", "mocapsnet", **change))
    page = write_report(results)[0].read_text()
    rows = (
        "| MoCapsNet | nothing | 43.67 (n 1, 61 s, H200) |\n"
        "| MoCapsNet | no doubled skip | 2.00 (n 1, 61 s, H200) |\n"
        "| MoCapsNet | no doubled skip, a bias of 0.1 | 15.00 (n 1, 61 s, H200) |\n"
    )
    assert rows in page
    # Once each: here, and not among the other runs as well.
    assert page.count("15.00") == 1


def test_other_evidence_changes_the_page(results):
    before = write_report(results)[1].read_text()
    write_run(results, 1, 3, 0.71)
    assert write_report(results)[1].read_text() != before


def test_every_cell_of_the_paper_is_on_the_page(tmp_path):
    page, html = (path.read_text() for path in write_report(tmp_path))
    for cell in cells():
        assert re.search(rf"\| {re.escape(printed_value(cell))} \|", page), cell
        assert f">{printed_value(cell)}</td>" in html, cell
    assert page.count("| not run |") > 100


class Links(HTMLParser):
    """What a page points to, and the names it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.names, self.tags = [], set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        for name, value in attributes:
            if name in ("href", "src", "srcset", "data", "action", "poster"):
                self.links.append(value)
            if name == "id":
                self.names.add(value)


def test_the_page_asks_for_nothing_outside(results):
    html = write_report(results)[1].read_text()
    found = Links(html)
    assert found.links
    for link in found.links:
        assert link.startswith("#")
        assert link[1:] in found.names
    assert not {"script", "link", "img", "iframe", "object", "base"} & found.tags
    assert re.findall(r"url\((.*?)\)", html) == ["#tip"] * html.count("url(")
    assert "@import" not in html
    assert {*re.findall(r"https?://[^\"'\s<]+", html)} <= {"http://www.w3.org/2000/svg"}


def test_figures_are_well_formed_and_say_what_was_not_run(results):
    write_report(results)
    for path in (results / "figures").iterdir():
        ElementTree.parse(path)
    third, fourth = ((results / "figures" / f"figure-{number}.svg").read_text() for number in (3, 4))
    # Two of nine panels have lines, of two networks each, and SVHN has the same two.
    assert third.count(">not run<") == 8
    assert third.count('<path d="M') >= 4
    assert "MoCapsNet 2.000 MiB (paper 3.643 MB)" in fourth
    assert "CapsNet not run (paper 174.2 MB)" in fourth
    assert "MoCapsNet 0.391 s per epoch (paper 1.882)" in fourth


def test_what_blocks_add_is_drawn_above_one_block_only(results):
    (path,) = (results / "speed").glob("*.csv")
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *(row for row in rows if ",1,0.001," not in row)]))
    write_report(results)
    third, fourth = ((results / "figures" / f"figure-{number}.svg").read_text() for number in (3, 4))
    assert third.count(">not run<") == 8
    assert fourth.count(">not run<") == 2


def test_the_committed_report_is_the_one_that_results_give(tmp_path):
    committed = REPOSITORY / "results"
    for part in ("accuracy", "speed", "memory"):
        (tmp_path / part).symlink_to(committed / part)
    for path in write_report(tmp_path):
        assert path.read_bytes() == (committed / path.name).read_bytes(), "run mocapsnet reproduce report"
    for path in (tmp_path / "figures").iterdir():
        assert path.read_bytes() == (committed / "figures" / path.name).read_bytes()


def test_evidence_files_of_the_committed_ledger_are_there():
    committed = REPOSITORY / "results"
    judged = ledger(read(committed))
    assert {j.verdict for j in judged} <= {*VERDICTS}
    assert any(j.files() for j in judged)
    for j in judged:
        for name in j.files():
            assert (committed / name).is_file()


def test_a_broken_record_is_named(tmp_path):
    (tmp_path / "accuracy").mkdir()
    (tmp_path / "accuracy" / "x.json").write_text("{}")
    with pytest.raises(BrokenFile, match=r"x\.json is not a run's record"):
        write_report(tmp_path)


def test_the_smoke_run_goes_the_whole_way(tmp_path, capsys):
    words = [
        "reproduce",
        "table-2",
        "--smoke",
        "true",
        "--only",
        "stable cifar10 blocks=1 rba",
        "--device",
        "cpu",
    ]
    main([*words, "--output", str(tmp_path)])
    told = capsys.readouterr().out
    assert "0 failed" in told
    html = (tmp_path / "report.html").read_text()
    assert "This is a smoke run" in html
    assert "1 CPU thread" in html
    # The claims have a run now, and one seed only hints.
    assert f'<li class="v{VERDICTS.index("indicative")}"><b>0</b>' not in html.split("Table 1")[0]
    main([*words, "--output", str(tmp_path)])
    assert "runs: 0 finished" in capsys.readouterr().out
