"""The report on the paper: its page in a real Chromium, its text, and the command that writes them."""

import copy
import csv
import json
import pathlib
import re
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from evenprune import paper_comparison, paper_page, paper_results, paper_text, paper_wording
from evenprune.paper_comparison import PaperReport
from tests import audit_documents, paper_documents
from tests.browsing import contrasts, page_colour, until
from tests.commands import Done, called

MEGABYTE = 1_000_000
HOSTILE = list(audit_documents.HOSTILE_NAMES)
Documents = dict[str, dict]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def few() -> Documents:
    """All tables, with 8 groups and 3 seeds."""
    return {
        "cifar100.json": paper_documents.document(seeds=range(3), groups=8),
        "cifar100_multipliers.json": paper_documents.traces(700),
    }


def report_of(documents: Documents, folder: pathlib.Path) -> PaperReport:
    paths = []
    for name, document in documents.items():
        paths.append(folder / name)
        paths[-1].write_text(json.dumps(document), encoding="utf-8")
    return paper_comparison.compare(paper_results.read(paths))


@pytest.fixture(scope="module")
def report(few, folder) -> PaperReport:
    return report_of(few, folder)


@pytest.fixture(scope="module")
def partial(few, folder) -> PaperReport:
    """One method at one sparsity, two seeds, nothing but what must be there."""
    document = copy.deepcopy(few["cifar100.json"])
    kept = [r for r in document["runs"] if (r["method"], r["sparsity"]) == ("NFT", 0.925) and r["seed"] < 2]
    bare = ("dataset", "target", "group", "method", "sparsity", "seed", "train", "test")
    return report_of({"part.json": {"runs": [{key: run[key] for key in bare} for run in kept]}}, folder)


@pytest.fixture(scope="module")
def everything(folder) -> PaperReport:
    """The real size: 100 groups, faces too."""
    documents = {
        "cifar100.json": paper_documents.document(seeds=range(2)),
        "cifar100_multipliers.json": paper_documents.traces(),
        "utkface.json": paper_documents.faces(seeds=range(2)),
        **paper_documents.variants(seeds=range(2), groups=100),
    }
    return report_of(documents, folder)


def line(page: str, table: int, method: str, name: str) -> list[str]:
    """The cells of one line ("here", "paper", …) of a method, as text."""
    of_table = page.split('<table class="cells">')[1 + table]
    body = next(b for b in of_table.split("<tbody>") if f"<b>{method}</b>" in b)
    row = next(r for r in body.split("<tr") if f">{name}</th>" in r)
    return [re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", c)).strip() for c in re.findall(r"<td.*?</td>", row)]


def values(few: Documents, method: str, sparsity: float, split: str, key: str) -> list[float]:
    runs = [r for r in few["cifar100.json"]["runs"] if r["fleet"] > 1]
    if method == "CEAG":
        runs = [r for r in runs if r["buffer"] == 40]
    return [100 * r[split][key] for r in runs if (r["method"], r["sparsity"]) == (method, sparsity)]


# --- the file ---


def test_table_one_holds_means_deviations_and_the_printed_numbers(few, report):
    page = paper_page.to_html(report)
    keys = [(s, m) for s in ("train", "test") for m in ("accuracy", "pairwise_disparity", "max_excess_gap")]
    for method in ("NFT", "CEAG"):
        told = [values(few, method, 0.925, *key) for key in keys]
        here = [f"{statistics.fmean(v):.2f} ± {statistics.stdev(v):.2f}" for v in told]
        assert line(page, 1, method, "here") == here
    assert line(page, 1, "NFT", "paper") == [
        "99.8 ± 0.02", "3.7 ± 0.86", "3.0 ± 0.87", "64.9 ± 0.39", "26.2 ± 5.22", "14.3 ± 3.39",
    ]  # fmt: skip
    own = values(few, "NFT", 0.925, "test", "accuracy")
    error = (statistics.variance(own) / 3 + 0.39**2 / 5 + 0.1**2 / 12) ** 0.5
    difference = statistics.fmean(own) - 64.9
    said = f"{difference:+.2f} {difference / error:+.1f} se".replace("-", "−")
    assert line(page, 1, "NFT", "difference")[3] == said


def test_every_test_disparity_stands_beside_its_floor(report):
    page = paper_page.to_html(report)
    table = [table for table in report.tables if table.task.dataset == "cifar100"][1]
    for cell in table.cells:
        shown = line(page, 1, cell.method, "noise floor")
        assert shown[:4] == ["", "", "", ""]
        for text, key in zip(shown[4:], ("pairwise_disparity", "max_excess_gap"), strict=True):
            floor = cell.figures["test"][key].floor
            assert floor is not None
            assert text == f"{100 * floor.mean:.1f} {100 * floor.low:.1f}–{100 * floor.high:.1f}"


def test_differences_are_shaded_by_standard_errors(report):
    page = paper_page.to_html(report)
    shades = {"near": (0, 2), "apart": (2, 3), "far": (3, 1e9)}
    found = re.findall(r'<td class="num (near|apart|far)[^"]*"><b>[^<]*</b> <small>([^<]+) se</small>', page)
    assert len(found) > 108
    for shade, text in found:
        low, high = shades[shade]
        assert low - 0.051 <= abs(float(text.replace("−", "-"))) <= high + 0.051


def test_circles_stand_in_the_order_of_the_seeds(few, folder):
    document = copy.deepcopy(few["cifar100.json"])
    for run in document["runs"]:
        if (run["method"], run["sparsity"], run["seed"]) == ("CEAG", 0.925, 0):
            run["train"]["max_excess_gap"] = 0.02286  # the first seed alone is beyond the tolerance
    page = paper_page.to_html(report_of({"beyond_first.json": document}, folder))
    glance = page.split('<table class="glance met">')[1].split("</table>")[0]
    rows = re.findall(r'<span class="pips" role="img" aria-label="([^"]*)">(.*?)</span>', glance)
    drawn = [(label, re.findall(r'<i class="(on)?" title="([^"]*)"></i>', marks)) for label, marks in rows]
    assert [len(marks) for _, marks in drawn] == [3] * 18
    gaps = values(few, "CEAG", 0.925, "train", "max_excess_gap")[1:]
    told = ["seed 0: 2.29 > 2", *(f"seed {seed}: {gap:.2f} ≤ 2" for seed, gap in enumerate(gaps, start=1))]
    assert ("; ".join(told), [("on" if "≤" in text else "", text) for text in told]) in drawn
    for label, marks in drawn:
        assert [text for _, text in marks] == label.split("; ")
        assert [bool(on) for on, _ in marks] == ["≤" in text for _, text in marks]


def test_partial_results_show_a_dash_beside_the_papers_number(partial):
    page = paper_page.to_html(partial)
    assert line(page, 1, "CEAG", "here") == ["–"] * 6
    assert line(page, 1, "CEAG", "paper")[0] == "99.6 ± 0.04"
    assert "±" in line(page, 1, "NFT", "here")[0]
    assert "noise floor</th>" not in page  # no run kept counts
    assert "1 of 18 cells of CIFAR-100 run again" in page
    assert "No multipliers were kept step by step" in page
    assert "Table 3" not in page


def test_the_summary_says_what_the_tables_say(few, report):
    near = {"train": 0, "test": 0}
    paper = [cell for table in report.tables if table.task.dataset == "cifar100" for cell in table.cells]
    for split, limit in (("train", 1.0), ("test", 1.5)):
        for cell in paper:
            figure = cell.figures[split]["accuracy"]
            near[split] += abs(100 * (figure.here.mean - figure.paper.mean)) <= limit
    assert paper_wording.headline(report) == (
        "All 18 cells of CIFAR-100 run again: training accuracy within 1 point of the paper's in "
        f"{near['train']}, test accuracy within 1.5 points in {near['test']}."
    )
    met = [
        sum(gap <= limit for gap in values(few, "CEAG", at, "train", "max_excess_gap"))
        for at, limit in ((0.9, 1), (0.925, 2), (0.95, 5))
    ]
    assert paper_wording.summary_sentences(report)[0] == (
        f"CIFAR-100: CEAG kept every group within its tolerance in {met[0]} of 3 seeds at 90 %, {met[1]} of "
        f"3 seeds at 92.5 % and {met[2]} of 3 seeds at 95 % "
        "(by its means, the paper: 90 % yes, 92.5 % yes, 95 % no)."
    )


def test_runs_of_no_printed_cell_are_a_page_too(few, folder):
    one = few["cifar100.json"]["runs"][0] | {"method": "Mine"}
    page = paper_page.to_html(report_of({"mine.json": {"runs": [one]}}, folder))
    assert "No run here has the settings of a table of the paper." in page
    assert "Further runs" in page


@pytest.mark.slow
def test_it_stays_under_a_megabyte(everything):
    page = paper_page.to_html(everything)
    assert len(page.encode()) < MEGABYTE
    assert page == paper_page.to_html(everything)


def test_runs_that_diverged_are_told_of(few, folder):
    document = json.loads(json.dumps(few["cifar100.json"]))
    for run in document["runs"]:
        if (run["method"], run["sparsity"], run["seed"]) == ("EL", 0.95, 0):
            run["diverged"] = 40
    told = paper_documents.traces(700)
    for trace in told["traces"]:
        if trace["method"] == "PW":
            trace["diverged"] = 41
    made = report_of({"cifar100.json": document, "cifar100_multipliers.json": told}, folder)
    cells = [cell for table in made.tables for cell in table.cells]
    assert [cell.method for cell in cells if cell.diverged] == ["EL"]
    page = paper_page.to_html(made)
    assert page.count("1 of 3 seeds diverged") == 1
    assert page.count("buffer of 40, diverged in epoch 41") == 1


def test_long_traces_are_thinned(few, report, folder):
    one = {"runs": few["cifar100.json"]["runs"][:1]}
    long = {"one.json": one, "long.json": paper_documents.traces(17_550)}
    page = paper_page.to_html(replace(report, traces=10 * report_of(long, folder).traces))
    assert len(page.encode()) < MEGABYTE


def test_the_page_refers_to_nothing_outside(report):
    page = paper_page.to_html(report)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert " style=" not in page
    addresses = set(re.findall(r"""(?:https?:)?//[a-z][^\s"'<>]*""", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of a language, not a place


def test_its_style_is_what_is_in_the_package(report):
    style = paper_page.to_html(report).split("<style>\n")[1].split("</style>")[0]
    package = pathlib.Path(paper_page.__file__).parent
    shared = [(package / name).read_text(encoding="utf-8") for name in ("page_base.css", "paper_page.css")]
    assert style == "".join(shared)


def hostile(few: Documents) -> Documents:
    documents = copy.deepcopy(few)
    main, traces = documents["cifar100.json"], documents["cifar100_multipliers.json"]
    main["dense"] |= {"groups": HOSTILE[:8], "weights": HOSTILE[0], "recipe": {HOSTILE[1]: HOSTILE[0]}}
    main["runs"].append(main["runs"][0] | {"method": HOSTILE[0], "dataset": HOSTILE[1]})
    main["runs"][0] |= {"versions": {"device": HOSTILE[0], "torch": HOSTILE[1]}, "commit": HOSTILE[0]}
    main["runs"][0]["test"]["max_excess_gap"] = 0.9  # a doubt, which names the run
    main["note"] = HOSTILE[0]
    for trace in traces["traces"]:
        trace |= {"group": HOSTILE[0], "method": HOSTILE[1]}
    return documents


@pytest.fixture(scope="module")
def of_hostile_names(few, folder) -> PaperReport:
    return report_of(hostile(few), folder)


def test_names_cannot_leave_their_place(of_hostile_names):
    page = paper_page.to_html(of_hostile_names)
    assert page.count("<script") == 3  # theme, data, program
    assert page.count("</script>") == 3
    assert "<img" not in page
    assert not set("<>&\u2028\u2029") & set(page.split('id="data">')[1].split("</script>")[0])
    page.encode("utf-8")


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(53.2, "53 × faster"), (2.44, "2.4 × faster"), (1, "1.0 × faster"), (0.8, "1.2 × slower")],
)
def test_ratios_of_times_say_which_is_faster(ratio, said):
    assert paper_wording.faster(ratio) == said


# --- text ---


def test_the_text_is_a_table_that_fits(few, report):
    text = paper_text.to_text(report)
    assert max(map(len, text.splitlines())) <= paper_text.WIDTH
    assert "…" not in text
    own = values(few, "CEAG", 0.925, "train", "accuracy")
    rows = [row.split() for row in text.splitlines() if " CEAG  " in row]
    assert rows[1][1:4] == [f"{statistics.fmean(own):.2f}", "±", f"{statistics.stdev(own):.2f}"]
    assert rows[1][4] == "99.6"
    assert "k = 20" in text
    times = text.split("seconds per run (median) on NVIDIA H200\n")[1].split("\n\n")[0].splitlines()
    assert max(map(len, times)) <= 80
    alone = next(i for i, row in enumerate(times) if row.startswith("NFT "))
    assert " ".join(" ".join(times[alone : alone + 2]).split()) == (
        "NFT 70.5 3,793 54 × faster one run alone, scaled from 6 epochs"
    )
    assert any(row.split()[0].startswith("21.") and "fleet of 30" in row for row in times)
    met = next(c for t in report.tables for c in t.cells if (t.sparsity, c.method) == (0.925, "CEAG"))
    marks = "".join("●" if one.met else "○" for one in met.met_by_seed)
    assert f"{marks}  " in text.split("tolerance and worst group")[1].split("92.5 %")[1]


def test_hostile_names_are_plain_text(of_hostile_names):
    text = paper_text.to_text(of_hostile_names)
    assert "\x1b" not in text


# --- the command ---


def command(*arguments: object, cwd: pathlib.Path) -> Done:
    return called("report", "paper", *arguments, cwd=cwd)


@pytest.fixture
def home(few, tmp_path) -> pathlib.Path:
    (tmp_path / "paper" / "results").mkdir(parents=True)
    for name, document in few.items():
        (tmp_path / "paper" / "results" / name).write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def test_the_command_finds_the_results_and_writes_page_and_numbers(home):
    done = command("--json", "all.json", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "CIFAR-100, every class a group: test data" in done.stdout
    assert f"Page: {home / 'paper.html'}" in done.stdout
    assert "Multipliers of" in (home / "paper.html").read_text(encoding="utf-8")
    document = json.loads((home / "all.json").read_text(encoding="utf-8"))
    assert document["made_with"]["runs"] == len(
        json.loads((home / "paper/results/cifar100.json").read_text())["runs"]
    )


def test_named_files_and_json_on_the_screen(home):
    done = command("paper/results/cifar100.json", "-o", "here.html", "--json", "-", cwd=home)
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "evenprune.paper/1"
    assert "Multipliers of" in (home / "here.html").read_text(encoding="utf-8")  # found beside the file


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.json"], "none.json cannot be read"),
        (["-o", "nowhere/x.html"], "does not exist"),
        (["-o", "paper"], "is a folder"),
        (["-o", "paper/results/cifar100.json"], "is the same file as the results file"),
        (["-o", "x", "--json", "./x"], "is the same file as that of --output"),
    ],
)
def test_what_the_command_refuses(home, arguments, said):
    done = command(*arguments, cwd=home)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("evenprune: ")
    assert not (home / "paper.html").exists()


def test_no_results_at_all(tmp_path):
    done = command(cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder paper/results here" in done.stderr


def test_the_report_loads_no_torch(home):
    code = "import sys; sys.argv = ['evenprune', 'report', 'paper']; from evenprune.cli import app\n"
    code += "try:\n    app()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")


# --- in a browser ---


@pytest.fixture
def show(visit, tmp_path):
    """Open a report as a page."""

    def opened(report, **options):
        path = tmp_path / "paper.html"
        path.write_text(paper_page.to_html(report), encoding="utf-8")
        return visit(path, **options)

    return opened


@pytest.mark.browser
def test_the_tables_are_there(show, report):
    page = show(report)
    assert page.locator(".cells").count() == 3 + 1 + 1 + 12  # table 1, buffers, further runs, tasks not run
    assert page.locator(".glance tbody tr").count() == 12
    assert page.locator("#table-2 tbody tr").count() == 8
    assert page.locator("#table-2 .timing").count() == 2 + 8  # two methods alone, all in a fleet
    assert page.locator(".pips i").first.get_attribute("title").startswith("seed 0: ")
    assert page.locator("#floor-0 .line:not(.head)").count() == 36
    assert page.locator("#table-4 .lines").count() == 6
    named = page.locator("#contents a").all_inner_texts()
    assert named[:2] == ["At a glance: CIFAR-100", "Table 1: CIFAR-100"]
    assert page.locator("#unrun .cells").first.is_hidden()


@pytest.mark.browser
def test_the_floor_plot_is_drawn_to_scale(show, report):
    """Positions of the marks of the means, read from the screen, are a straight line in the means."""
    page = show(report)
    middle = "const box = m.getBoundingClientRect(); return box.left + box.width / 2;"
    marks = page.locator("#floor-0 .floors").first.locator("path.here")
    drawn = marks.evaluate_all(f"(marks) => marks.map((m) => {{ {middle} }})")
    tables = [table for table in report.tables if table.task.dataset == "cifar100"]
    means = [c.figures["test"]["max_excess_gap"].here.mean for t in tables for c in t.cells]
    low, high = means.index(min(means)), means.index(max(means))
    for mean, x in zip(means, drawn, strict=True):
        share = (mean - means[low]) / (means[high] - means[low])
        assert x == pytest.approx(drawn[low] + share * (drawn[high] - drawn[low]), abs=0.7)


@pytest.mark.browser
def test_groups_can_be_looked_at_by_place_and_split(show, report):
    page = show(report)
    assert page.locator("#gap-panels .chart").count() == 6
    assert page.locator("#gap-panels .spot").count() == 6 * 8
    assert page.locator("#gap-panels .band").count() == 6
    page.locator("#split button").first.click()
    assert page.locator("#gap-panels .band").count() == 0
    page.select_option("#place", "2")
    table = report.groups[2]
    gaps = next(g for g in table.methods["train"] if g.method == "EL")
    worst = max(range(8), key=lambda i: gaps.mean[i])
    heading = page.locator("#gap-panels h3").nth(2).inner_text()
    assert heading.startswith(f"EL {table.names[worst]} {100 * gaps.mean[worst]:.1f}")
    page.locator("#gap-panels .chart").nth(2).hover(position={"x": 40, "y": 50})
    assert table.names[worst] in page.inner_text("#tip")


@pytest.mark.browser
def test_without_script_the_tables_are_the_same(show, browser, report):
    with_script = show(report).locator("#table-1-0").inner_text()
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_content(paper_page.to_html(report))
    assert page.locator("#table-1-0").inner_text() == with_script
    assert page.locator("#table-4 .curve").count() == 12
    assert page.locator("#gaps").is_hidden()
    context.close()


@pytest.mark.browser
@pytest.mark.parametrize("which", ["report", "partial"])
def test_no_window_scrolls_sideways(show, request, which):
    page = show(request.getfixturevalue(which), viewport={"width": 320, "height": 800})
    for width in (320, 400, 700, 1000, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        until(page, f"innerWidth === {width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
@pytest.mark.slow
def test_at_phone_width_the_tables_fit_without_scrolling(show, everything):
    page = show(everything, viewport={"width": 400, "height": 800})
    boxes = "(all) => all.filter((e) => e.offsetParent).map((e) => [e.scrollWidth, e.clientWidth])"
    for table in (".glance", ".cells", ".times"):
        for needed, there in page.locator(f".scroll:has({table})").evaluate_all(boxes):
            assert needed <= there, table


@pytest.mark.browser
def test_colours_follow_the_reader_and_the_button(show, report):
    light, dark = show(report, color_scheme="light"), show(report, color_scheme="dark")
    assert page_colour(light) != page_colour(dark)
    light.click("#theme")
    assert page_colour(light) == page_colour(dark)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_background(show, report, scheme):
    """Contrast of 4.5 or more (WCAG AA), on shaded cells too."""
    page = show(report, color_scheme=scheme)
    ratios = contrasts(
        page, "h1, h2, h3, p, td, th, td b, td small, th small, .fact, .keys li, a, li, em, .tick"
    )
    assert len(ratios) > 500
    assert min(ratios) >= 4.5


@pytest.mark.browser
def test_it_prints_in_light_colours_on_one_page_width(show, report):
    page = show(report, color_scheme="dark", viewport={"width": 720, "height": 1000})
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("nav").is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    assert page.pdf().startswith(b"%PDF")


@pytest.mark.browser
def test_hostile_names_stay_text(show, of_hostile_names):
    page = show(of_hostile_names)
    assert page.locator("main img, main script").count() == 0
    assert HOSTILE[0] in page.inner_text("#further")
    assert HOSTILE[0] in page.inner_text("#sources")
    page.locator("#gap-panels .chart").first.hover(position={"x": 60, "y": 50})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.browser
def test_the_csv_has_every_number(show, few, report, tmp_path):
    page = show(report)
    with page.expect_download() as download:
        page.click("#csv")
    download.value.save_as(tmp_path / "all.csv")
    with open(tmp_path / "all.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 68 * 6
    row = next(r for r in rows if (r["dataset"], r["sparsity"], r["method"]) == ("cifar100", "0.925", "EL"))
    own = values(few, "EL", 0.925, "train", "accuracy")
    assert float(row["mean"]) == pytest.approx(statistics.fmean(own) / 100, rel=1e-4)
    assert (row["split"], row["measure"], row["seeds"], row["paper_mean"]) == (
        "train",
        "accuracy",
        "3",
        "0.985",
    )
