"""The commands serve, check and demo: what they find wrong, and what they tell a supervisor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.errors import BrokerError, DdlSyntaxError, ListenFailedError, SettingError, StoreUnavailableError
from broker.workers.channel import WorkerFailedError
from tests.support.command import run


def test_the_demo_wants_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = run("demo", "--directory", tmp_path)

    assert 2 == result.exit_code
    assert "is not empty: name a new directory" in result.stderr


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
    configuration.write_text('[endpoint]\nmax_hopz = 3\nmax_frame = "1KiB"\n')

    result = run("check", "-c", configuration)

    lines = result.stderr.splitlines()
    assert 1 == result.exit_code
    assert [f"{configuration}:2:1: endpoint.max_hopz", f"{configuration}:3:13: endpoint.max_frame"] == [
        ": ".join(line.split(": ")[:2]) for line in lines
    ]
    assert "" == result.stdout


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
    plain, first, line, caret = result.stderr.splitlines()
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

    rows = json.loads(result.stdout)
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
    assert f"warning: {script}: and 1,005 more `duplicate-route`" == lines[-1]
    assert (1001, 25) == (sum(row["more"] == 0 for row in rows), rows[-1]["more"])
    assert ("duplicate-route", str(script), None) == (rows[-1]["code"], rows[-1]["file"], rows[-1]["line"])


def test_check_counts_mistakes_as_well(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("x; " * 1500)

    lines = run("check", "-c", configuration, "--offline").stderr.splitlines()

    assert 20 == sum(": error 102: " in line for line in lines)
    assert f"{tmp_path / 'a.sql'}: and 980 more `setting`" in lines
    assert any('a.sql" has 1,000 mistakes, and what comes after them is not read' in line for line in lines)


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


@pytest.mark.parametrize(("command", "code"), [("serve", 78), ("check", 1), ("status", 1)])
def test_a_configuration_that_is_not_there(command: str, code: int, tmp_path: Path) -> None:
    result = run(command, "-c", tmp_path / "none.toml")

    assert code == result.exit_code
    assert result.stderr.endswith("name a TOML file that exists and may be read\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ListenFailedError("127.0.0.1:4022", "in use"), 75),
        (StoreUnavailableError("a.db", "locked"), 75),
        (WorkerFailedError(1, "it has ended"), 75),
        (SettingError("endpoint.listen", "is wrong"), 78),
        (DdlSyntaxError(102, "incorrect syntax"), 78),
    ],
    ids=lambda value: type(value).__name__,
)
def test_serve_tells_a_supervisor_whether_trying_again_may_help(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, error: BrokerError, code: int
) -> None:
    def fail(settings: object) -> None:
        raise error

    monkeypatch.setattr("broker.daemon.run", fail)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", configuration)

    assert (code, f"{error}\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(("workers", "where"), [(1, "broker.daemon"), (2, "broker.workers.supervisor")])
def test_serve_of_several_workers_is_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, where: str
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(f"[endpoint]\nworkers = {workers}\n")
    ran: list[str] = []
    for module in ("broker.daemon", "broker.workers.supervisor"):
        monkeypatch.setattr(f"{module}.run", lambda _, module=module: ran.append(module))
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", path)

    assert (0, [where]) == (result.exit_code, ran)
