"""`broker check`: how a report is printed, for people, programs and workflows."""

import json
from pathlib import Path

import pytest

from tests.support.command import run

# Of an instance that listens nowhere, behind [endpoint].
_QUIET = 'encryption = "disabled"\nlisten = []\n[instance]\nstate_dir = "state"\n[observe]\nlisten = ""\n'


def test_errors_have_their_place(configuration: Path) -> None:
    configuration.write_text(f'[endpoint]\nmax_hopz = 3\nmax_frame = "1KiB"\n{_QUIET}')

    result = run("check", "-c", configuration)
    rows = json.loads(run("check", "-c", configuration, "-o", "json").stdout)

    unknown, *caret, _, _, _, last = result.stderr.splitlines()
    assert (1, "") == (result.exit_code, result.stdout)
    assert f'{configuration}:2:1: endpoint.max_hopz: unknown key; did you mean "max_hops"?' == unknown
    assert ["max_hopz = 3", "^^^^^^^^"] == caret
    assert last.startswith(f"{configuration}:2:1: endpoint.max_hopz: scripts and everything else are not checked")
    assert [("error", 2, 1), ("error", 3, 13), ("skipped", 2, 1)] == [
        (row["level"], row["line"], row["column"]) for row in rows
    ]


def test_warnings_of_settings_and_scripts_are_told_and_called_good(configuration: Path, tmp_path: Path) -> None:
    text = configuration.read_text().replace('"127.0.0.1:0"]', '"0.0.0.0:4022"]\nencryption = "disabled"')
    configuration.write_text(text + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n")

    result = run("check", "-c", configuration, "--offline")
    rows = json.loads(run("check", "-c", configuration, "--offline", "-o", "json").stdout)

    assert (0, "no errors, 2 warnings\n") == (result.exit_code, result.stdout)
    assert f"warning: {configuration}:4:11: endpoint.listen[0]: " in result.stderr
    caret = "CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n             ^\n"
    assert f"\nwarning: {tmp_path / 'a.sql'}:1:14: weight-unused: " in result.stderr
    assert caret in result.stderr
    warnings = [row for row in rows if row["level"] == "warning"]
    assert [("setting", str(configuration), 4, 11), ("weight-unused", str(tmp_path / "a.sql"), 1, 14)] == [
        (row["code"], row["file"], row["line"], row["column"]) for row in warnings
    ]
    assert warnings[0]["text"].startswith("endpoint.listen[0]: ")
    assert warnings[1]["text"].startswith("the WEIGHT of [r] has no effect: ")
    assert {0} == {row["more"] for row in rows}


def test_check_shows_the_first_of_each_kind_and_counts_the_others(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    script = tmp_path / "a.sql"
    script.write_text(
        "".join(f"CREATE ROUTE r{n} WITH SERVICE_NAME = 'S', ADDRESS = 'tcp://x';\n" for n in range(1026))
    )

    lines = run("check", "-c", configuration, "--offline").stderr.splitlines()
    rows = json.loads(run("check", "-c", configuration, "--offline", "-o", "json").stdout)

    assert 20 == sum(": duplicate-route: " in line for line in lines)
    (more,) = [row for row in rows if row["more"]]
    assert f"warning: {script}: and 1,005 more `duplicate-route`" in lines
    assert (1001, 25) == (sum(row["level"] == "warning" and not row["more"] for row in rows), more["more"])
    assert ("duplicate-route", str(script), None) == (more["code"], more["file"], more["line"])


def test_check_counts_the_other_mistakes_of_a_script(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREATE ROUTE;\n" * 28)

    result = run("check", "-c", configuration, "--offline")

    assert f"{tmp_path / 'a.sql'}: and 8 more mistakes" in result.stderr.splitlines()


def test_check_prints_annotations_of_a_workflow(tmp_path: Path) -> None:
    configuration = tmp_path / "a,b:c%.toml"
    configuration.write_text(f"[endpoint]\nmax_hopz = 3\n{_QUIET}")

    result = run("check", "-c", configuration, "-o", "github", "--offline")

    error, later, *_ = result.stdout.splitlines()
    where = f"file={tmp_path}/a%2Cb%3Ac%25.toml,line=2,col=1,title=setting"
    assert 1 == result.exit_code
    assert f'::error {where}::endpoint.max_hopz: unknown key; did you mean "max_hops"?' == error
    assert later.startswith(f"::notice {where}::")


def test_check_of_nothing_asks_for_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", tmp_path / "none.toml")

    result = run("check")

    assert 2 == result.exit_code
    assert "nothing says what to run: name a configuration file with -c FILE" in result.stderr
