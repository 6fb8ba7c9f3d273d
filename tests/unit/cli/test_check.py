"""`broker check`: how a report is printed, for people, programs and workflows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import run

# Of an instance that listens nowhere, behind [endpoint].
_QUIET = 'encryption = "disabled"\nlisten = []\n[instance]\nstate_dir = "state"\n[observe]\nlisten = ""\n'


def test_check_of_a_good_configuration_says_so(configuration: Path) -> None:
    result = run("check", "-c", configuration, "--offline")

    assert (0, "the configuration is good\n") == (result.exit_code, result.stdout)


def test_check_tells_what_is_unwise_and_calls_it_good(configuration: Path) -> None:
    text = configuration.read_text().replace('"127.0.0.1:0"]', '"0.0.0.0:4022"]\nencryption = "disabled"')
    configuration.write_text(text)

    result = run("check", "-c", configuration, "--offline")

    assert 0 == result.exit_code
    assert result.stderr.startswith(f"warning: {configuration}:4:11: endpoint.listen[0]: ")


def test_check_tells_everything_wrong_in_one_run_with_its_place(configuration: Path) -> None:
    configuration.write_text(f'[endpoint]\nmax_hopz = 3\nmax_frame = "1KiB"\n{_QUIET}')

    result = run("check", "-c", configuration)

    later = f"not checked until this is corrected: {configuration}:2:1: endpoint.max_hopz"
    assert (1, "") == (result.exit_code, result.stdout)
    assert [
        f'{configuration}:2:1: endpoint.max_hopz: unknown key; did you mean "max_hops"?',
        "max_hopz = 3",
        "^^^^^^^^",
        f'{configuration}:3:13: endpoint.max_frame: "1KiB" is out of range; allowed is 4KiB to 16MiB',
        'max_frame = "1KiB"',
        "            ^^^^^^",
        (
            f"{later}: everything on this machine, what is legal but not advisable, and whether the names of next hops"
            " resolve"
        ),
    ] == result.stderr.splitlines()


def test_what_has_to_wait_for_a_correction_is_a_row_for_programs(configuration: Path) -> None:
    configuration.write_text(f"[endpoint]\nmax_hopz = 3\n{_QUIET}")

    rows = json.loads(run("check", "-c", configuration, "-o", "json").stdout)

    assert [("error", 2, 1), ("skipped", 2, 1)] == [(row["level"], row["line"], row["column"]) for row in rows]


def test_check_reads_the_scripts(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREAT QUEUE a;")

    result = run("check", "-c", configuration, "--offline")

    assert 1 == result.exit_code
    assert f"{tmp_path / 'a.sql'}:1:1: " in result.stderr
    assert "did you mean CREATE?" in result.stderr


def test_check_tells_what_scripts_mean_and_calls_them_good(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n")

    result = run("check", "-c", configuration, "--offline")

    assert (0, "the configuration is good\n") == (result.exit_code, result.stdout)
    plain, _, _, first, line, caret, *_ = result.stderr.splitlines()
    assert plain.endswith(
        'endpoint.encryption: is "disabled": connections are not encrypted; set encryption = "required"'
    )
    assert first.startswith(f"warning: {tmp_path / 'a.sql'}:1:14: weight-unused: ")
    assert ("CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;", "             ^") == (line, caret)


def test_check_gives_code_and_place_as_json(configuration: Path, tmp_path: Path) -> None:
    text = configuration.read_text().replace('"127.0.0.1:0"]', '"0.0.0.0:4022"]\nencryption = "disabled"')
    configuration.write_text(text + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREATE ROUTE r WITH ADDRESS = 'tcp://x', WEIGHT = 2;\n")

    result = run("check", "-c", configuration, "--offline", "-o", "json")

    rows = [row for row in json.loads(result.stdout) if row["level"] != "skipped"]
    assert [("setting", str(configuration), 4, 11), ("weight-unused", str(tmp_path / "a.sql"), 1, 14)] == [
        (row["code"], row["file"], row["line"], row["column"]) for row in rows
    ]
    assert {"warning"} == {row["level"] for row in rows}
    assert (
        "the WEIGHT of [r] has no effect: shares are between broker instances, and it names none; name the"
        " BROKER_INSTANCE it leads to, or leave WEIGHT out"
    ) == rows[1]["text"]
    assert rows[0]["text"].startswith("endpoint.listen[0]: ")
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


def test_check_takes_several_configurations_and_walks_through_them(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{name}.sql").write_text(f"CREATE ROUTE r WITH ADDRESS = 'tcp://{other}';\n")
        (tmp_path / f"{name}.toml").write_text(
            f"[instance]\nname = '{name}'\nstate_dir = '{name}'\n[routes]\nfiles = ['{name}.sql']\n"
            f"[endpoint]\nlisten = []\nadvertise = ['tcp://{name}']\nmessage_forwarding = true\n"
        )

    result = run("check", "-c", tmp_path / "a.toml", "-c", tmp_path / "b.toml", "--offline")

    assert (0, "the configurations are good\n") == (result.exit_code, result.stdout)
    assert f"{tmp_path}/a.sql:1:14: routing-loop: " in result.stderr
    assert "a -> b -> a" in result.stderr


def test_check_tells_what_it_has_not_looked_at(configuration: Path) -> None:
    result = run("check", "-c", configuration, "--offline")
    rows = json.loads(run("check", "-c", configuration, "--offline", "-o", "json").stdout)

    skipped = [row["text"] for row in rows if row["level"] == "skipped"]
    lines = [line for line in result.stderr.splitlines() if line.startswith("not checked, --offline: ")]
    assert len(skipped) == len(lines)
    assert all(line.endswith(text) for line, text in zip(lines, skipped, strict=True))
    assert 'endpoint.listen[0]: whether "127.0.0.1:0" can be bound' in skipped


def test_check_prints_annotations_of_a_workflow(configuration: Path) -> None:
    configuration.write_text(f"[endpoint]\nmax_hopz = 3\n{_QUIET}")

    result = run("check", "-c", configuration, "-o", "github", "--offline")

    assert 1 == result.exit_code
    where = f"file={configuration},line=2,col=1,title=setting"
    sentence = 'endpoint.max_hopz: unknown key; did you mean "max_hops"?'
    assert f"::error {where}::{sentence}" == result.stdout.splitlines()[0]


@pytest.mark.parametrize(("text", "escaped"), [("a,b:c%", "a%2Cb%3Ac%25"), ("a\nb", "a%0Ab")])
def test_annotation_is_escaped(text: str, escaped: str) -> None:
    from broker.cli.check import _annotation

    row = {"level": "skipped", "code": "setting", "file": text, "line": None, "column": None, "text": "50%"}

    assert f"::notice file={escaped},title=setting::50%25" == _annotation(row)


def test_check_of_nothing_asks_for_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", tmp_path / "none.toml")

    result = run("check")

    assert 2 == result.exit_code
    assert "nothing says what to run: name a configuration file with -c FILE" in result.stderr
