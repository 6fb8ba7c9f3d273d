"""The command of the demo."""

from pathlib import Path

from click.testing import CliRunner

from examples.demo.__main__ import main


def test_the_demo_wants_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = CliRunner().invoke(main, ["--directory", str(tmp_path)])

    assert 2 == result.exit_code
    assert "is not empty: name a new directory" in result.stderr
