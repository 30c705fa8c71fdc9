"""A report of real and hostile runs: whole, small, alone, and harmless."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lab.__main__ import main
from lab.run import prices
from lab.run.sides import Name
from lab.show import report as report_module
from lab.show.report import Report, Table, report
from lab.show.report_html import to_html
from lab.show.report_markdown import to_markdown
from tests.show.conftest import DONE, FAILED, KV_CACHE, LLM_LOAD, QUANTIZATION, STOPPED

CPU = "lambda-us-east-1-cpu-4vcpu-16gib-x1-on-demand"
HOSTILE = (
    "</style></script><script>alert(1)</script><img src=//x.example/a onerror=alert(1)> | [a](javascript:alert(1))"
)


class Tags(HTMLParser):
    """Every tag with its attributes, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def made(*runs: str, **more: object) -> Report:
    return report([Name.read(run) for run in runs], price=prices.find(CPU), **more)


@pytest.mark.parametrize("run", [DONE, STOPPED, FAILED, KV_CACHE, LLM_LOAD])
def test_every_kind_of_run_makes_a_whole_report(run: str, full_home: Path) -> None:
    found = made(run)
    titles = [section.title for section in found.sections]
    assert titles[0] == "Method"
    for title in ("Figures", "Cost at the objective", "What makes it doubtful", "Where it was measured"):
        assert title in titles
    assert titles[-2:] == ["What a reviewer would ask", "Run it again"]
    html, markdown = to_html(found), to_markdown(found)
    words = " ".join(line.removeprefix("- ") for line in markdown.replace("\\", "").split("\n") if line)
    assert found.verdict in words.replace("**Verdict:** ", "") and run in html
    assert len(html.encode()) < 5_000_000
    assert "svg" in html


def test_it_needs_nothing_from_outside_and_runs_nothing(full_home: Path) -> None:
    html = to_html(made(DONE))
    tags = Tags(html).found
    assert not {tag for tag, _ in tags} & {"script", "img", "link", "iframe", "object", "embed", "form", "a"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    assert not re.findall(r"(?:src|href)=|url\(|@import", html)
    assert "default-src 'none'" in html


@pytest.mark.parametrize("run", [DONE, KV_CACHE, QUANTIZATION])
def test_the_method_says_each_field_once_and_in_words(run: str, full_home: Path) -> None:
    declared = made(run).sections[0].blocks[-1]
    assert isinstance(declared, Table)
    told = dict(zip(declared.columns["field"], declared.columns["value"], strict=True))
    assert not [words for words in told.values() if re.search(r"[{}\[\]]", words)]
    varied = {field.removesuffix(" (varied)") for field in told if field.endswith(" (varied)")}
    assert varied and not varied & set(told)
    assert told["workload.arrival.kind"] in ("poisson", "closed")


def test_fields_of_fields_are_rows_of_their_own() -> None:
    steps = {"kind": "steps", "rates_rps": [5.0, 0], "at": None, "phases": [{"rate_rps": 2.0, "none": None}, [1, 2]]}
    assert report_module._fields("workload.arrival", steps, {"workload.arrival.kind"}) == {
        "workload.arrival.rates_rps": "5.0, 0",
        "workload.arrival.phases": "rate_rps 2.0; 1, 2",
    }


def test_hostile_words_of_a_run_stay_words(full_home: Path) -> None:
    path = full_home / "runs" / LLM_LOAD / "run.json"
    document = json.loads(path.read_text())
    document["experiment"]["question"] = HOSTILE
    document["environment"]["cpu"] = HOSTILE
    document["settings"] = [f"model.name={HOSTILE}"]
    path.write_text(json.dumps(document))
    found = made(LLM_LOAD, claim=HOSTILE, waivers={"seed": HOSTILE})
    tags = Tags(to_html(found)).found
    assert not {tag for tag, _ in tags} & {"script", "img", "a"}
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]
    markdown = to_markdown(found)
    assert not re.search(r"(?<!\\)<(?:script|img)", markdown.partition("```")[0])
    assert not re.search(r"(?<!\\)\[a(?<!\\)\]\(", markdown.partition("```")[0])


def test_two_runs_are_compared_first(full_home: Path) -> None:
    found = made(f"{DONE}.2", f"{DONE}.5")
    assert found.sections[0].title == "The runs beside each other"
    assert found.verdict.startswith(("B: ", "They were asked differently", "No detectable"))
    assert f"What a reviewer would ask of {DONE}" in [section.title for section in found.sections]


def test_the_quality_of_a_format_stands_beside_its_speed(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(QUANTIZATION)
    assert "Memory and quality of each format" in [section.title for section in found.sections]
    assert "perplexity" in to_html(found)
    assert main(["compare", f"{QUANTIZATION}.0", f"{QUANTIZATION}.1"]) == 0
    assert "answers otherwise than its baseline: " in capsys.readouterr().out


def test_the_hashes_are_those_of_the_files(full_home: Path) -> None:
    import hashlib

    expected = hashlib.sha256((full_home / "runs" / DONE / "requests-0.arrows").read_bytes()).hexdigest()
    assert expected in to_html(made(DONE)) and expected in to_markdown(made(DONE))


def test_the_command_measures_the_same_again(full_home: Path) -> None:
    html = to_html(made(DONE))
    assert "python -m lab run batching --quick" in html
    assert "python -m lab load --model llm --" in to_html(made(LLM_LOAD))


def test_the_command_line_writes_it(full_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "review.html"
    assert main(["report", DONE, "-o", str(out), "--price", CPU, "--waive", "seed=Ann: one draw will do"]) == 0
    assert "questions stay open" in capsys.readouterr().out
    assert "Waived: Ann: one draw will do" in out.read_text()
    assert main(["report", DONE, "-o", str(tmp_path / "review.md")]) == 0
    assert (tmp_path / "review.md").read_text().startswith("# ")


def test_without_any_option_it_lies_here_and_has_the_cost_of_the_nearest_machine(
    full_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", DONE]) == 0
    text = (tmp_path / f"report-{DONE}.html").read_text()
    assert "Cost at the objective" in text and "What does the cost stand on?" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["report", "does-not-exist", "-o", "x.html"], "there is no run"),
        (["report", DONE, "-o", "x.pdf"], "--out 'x.pdf': allowed: a name that ends in .html or .md"),
        (["report", DONE, "-o", "/no/such/place/x.html"], "allowed: a file that can be written"),
        (["report", DONE, "-o", "x.html", "--price", "gold"], "price 'gold': there is none"),
        (["report", DONE, "-o", "x.html", "--waive", "seed"], "--waive 'seed': allowed is QUESTION=WHO AND WHY"),
        (["report", DONE, "-o", "x.html", "--waive", "sede=Ann"], 'did you mean "seed"'),
        (["compare", DONE], "compare: 1 runs; allowed: 2 to 6"),
        (["compare", DONE, f"{DONE}.99"], "it has the cells 0 to"),
        (["show", DONE, "--price", "gold"], "price 'gold': there is none"),
    ],
)
def test_what_cannot_be_written_is_refused_in_one_line(
    options: list[str],
    said: str,
    full_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(options) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list(tmp_path.glob("*.html")) == []


def test_show_says_what_it_cost_in_words_and_in_json(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", LLM_LOAD, "--price", CPU]) == 0
    assert "A million good tokens (within " in capsys.readouterr().out
    assert main(["show", LLM_LOAD, "--price", CPU, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rate = document["summary"]["output_tokens_per_s"]
    assert document["cost"]["usd_per_million_tokens"] == pytest.approx(0.2 / 3600 / rate * 1e6)
    assert document["price"]["measured_on_it"] is False
    assert main(["show", DONE, "--price", CPU, "--json"]) == 0
    assert "usd_per_good_request" in json.loads(capsys.readouterr().out)["cells"][0]["cost"]


def test_compare_prints_what_the_page_says(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", f"{DONE}.2", f"{DONE}.5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [d["field"] for d in document["differences"]]
    assert document["against_the_first"][0]["effects"][0]["verdict"]
    assert main(["compare", f"{DONE}.2", f"{DONE}.5"]) == 0
    assert document["against_the_first"][0]["text"] in capsys.readouterr().out


def test_prices_are_listed_with_their_age(full_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices"]) == 0
    assert "days old" in capsys.readouterr().out
    assert main(["prices", "--json"]) == 0
    assert {"id", "source", "as_of", "age_days"} <= json.loads(capsys.readouterr().out)["prices"][0].keys()
