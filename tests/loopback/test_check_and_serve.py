"""
Whatever keeps `serve` from starting, `check` tells before; where `serve` starts, `check` finds nothing.

Real processes: each mistake of a hurried operator is tried with both commands, on a directory of its own. The message
says what is wrong and what to do, the exit code is the documented one, and there is never a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.topology import Topology
from tests.support import hurried
from tests.support.hurried import Mistake, Place, place

EX_TEMPFAIL, EX_CONFIG = 75, 78

# The mistake, the exit code of `serve`, what `serve` says, and what `check` says where that differs.
CASES: list[tuple[Mistake, int, str, str]] = [
    (hurried.unknown_key, EX_CONFIG, 'endpoint.lisen: unknown key; did you mean "listen"?', ""),
    (hurried.half_written_file, EX_CONFIG, "broker.toml:5:12: TOML: Unterminated string; correct the syntax", ""),
    (hurried.several_mistakes, EX_CONFIG, "dialog.window: 0 is out of range; allowed is 1 to", ""),
    (hurried.no_such_script, EX_CONFIG, '/none.sql" does not exist, or is not a regular file; correct the path', ""),
    (hurried.wrong_script, EX_CONFIG, "incorrect syntax near 'ROUT'; expected", ""),
    (hurried.plain_text_not_spelled_out, EX_CONFIG, 'set encryption = "required" with certificate and private_key', ""),
    (hurried.certificate_without_key, EX_CONFIG, "there is no private_key; name the file in private_key", ""),
    (hurried.key_without_certificate, EX_CONFIG, "there is no certificate; name the file in certificate", ""),
    (hurried.missing_key_file, EX_CONFIG, "a.key: cannot be read: No such file or directory; name a file that", ""),
    (hurried.key_of_another_certificate, EX_CONFIG, "is not the key of", ""),
    (hurried.swapped_certificate_and_key, EX_CONFIG, "name a file with -----BEGIN CERTIFICATE----- in it", ""),
    (hurried.key_with_a_password, EX_CONFIG, "is protected by a password; store it without one", ""),
    (hurried.expired_certificate, EX_CONFIG, "UTC; renew it", ""),
    (hurried.certificate_of_tomorrow, EX_TEMPFAIL, "UTC; set the clock of this machine, which says 2", ""),
    (hurried.database_certificate_without_key, EX_CONFIG, "and private_key is not; give private_key, or neither", ""),
    (hurried.port_taken, EX_TEMPFAIL, "Address already in use; stop what listens there", ""),
    (hurried.port_of_another_machine, EX_TEMPFAIL, "choose an address of this machine (see ip address)", ""),
    (hurried.name_that_does_not_resolve, EX_TEMPFAIL, "correct the name, or write an address", ""),
    (hurried.observe_port_taken, EX_TEMPFAIL, "Address already in use; stop what listens there", ""),
    (hurried.admin_port_taken, EX_TEMPFAIL, "Address already in use; stop what listens there", ""),
    (hurried.socket_is_a_file, EX_TEMPFAIL, "the file exists and is not a socket", ""),
    (hurried.socket_is_answered, EX_TEMPFAIL, "another instance answers there", ""),
    (hurried.socket_in_no_directory, EX_TEMPFAIL, 'run" does not exist', ""),
    (hurried.socket_path_too_long, EX_CONFIG, "a socket path has at most 107; choose a shorter path", ""),
    (hurried.unknown_group, EX_CONFIG, "there is no group 'no-such-group' on this machine; make the group", ""),
    (hurried.unknown_user, EX_CONFIG, "there is no user 'no-such-user' on this machine; make the user", ""),
    (hurried.tokens_that_others_may_read, EX_CONFIG, "its mode is 0644; chmod 600", ""),
    (hurried.tokens_of_another_format, EX_CONFIG, "line 1 is not a token; remove the line", ""),
    (hurried.state_is_a_file, EX_CONFIG, "is not a directory; create it for the user", ""),
    (hurried.state_below_a_file, EX_CONFIG, "is not a directory; create it for the user", ""),
    (hurried.state_in_proc, EX_TEMPFAIL, '"/proc" cannot be written: ', ""),
    (hurried.msdb_is_no_database, EX_TEMPFAIL, "put back a backup", "is not an SQLite file; move it away"),
    (hurried.msdb_is_newer, EX_TEMPFAIL, "this release knows", ""),
    (hurried.msdb_is_of_no_release, EX_TEMPFAIL, "this release knows", ""),
    (hurried.msdb_is_damaged, EX_TEMPFAIL, "the file is damaged: stop whoever uses it, and put back a backup", ""),
    (hurried.msdb_is_locked, EX_TEMPFAIL, "another daemon has it open", ""),
    (hurried.record_is_damaged, EX_TEMPFAIL, "restore it, or remove it", ""),
    (hurried.database_is_no_database, EX_TEMPFAIL, "put back a backup", "is not an SQLite file; name an SQLite file"),
    (hurried.database_is_a_directory, EX_CONFIG, "is not a regular file", ""),
    (hurried.database_is_a_device, EX_CONFIG, '"/dev/null" is not a regular file', ""),
    (hurried.database_in_no_directory, EX_TEMPFAIL, 'directory" does not exist', ""),
    (hurried.database_is_newer, EX_TEMPFAIL, "this release knows", ""),
    (hurried.database_is_locked, EX_TEMPFAIL, "another daemon has it open", ""),
    (hurried.database_of_another_identity, EX_TEMPFAIL, "the configuration says 5b0f3c1e-", ""),
    (hurried.database_is_a_copy, EX_CONFIG, "error 9772: the file is a copy", ""),
    (hurried.database_lost_its_file, EX_TEMPFAIL, "put the file back beside it", ""),
    (hurried.database_has_two_names, EX_TEMPFAIL, "remove the others; a symbolic link does no harm", ""),
    (hurried.two_databases_one_file, EX_CONFIG, "is also the file of databases.a; give each database its own", ""),
    (hurried.journal_in_a_file, EX_CONFIG, "is not a directory; name a directory that the instance may write", ""),
    (hurried.unknown_kernel, EX_CONFIG, "'rust' is not a kernel; say compiled or python, or nothing", ""),
    (hurried.variable_of_no_key, EX_CONFIG, "endpoint.max_hopz (BROKER_ENDPOINT__MAX_HOPZ): unknown key; did you", ""),
    (hurried.variable_that_is_no_text, EX_CONFIG, "instance.name (BROKER_INSTANCE__NAME):", ""),
]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path) as found:
        yield found


@pytest.mark.parametrize(("mistake", "code", "said", "checked"), CASES, ids=[case[0].__name__ for case in CASES])
def test_what_keeps_serve_from_starting_is_told_by_check(
    one: Place, mistake: Mistake, code: int, said: str, checked: str
) -> None:
    mistake(one)
    one.write()

    found, report = one.check()
    served, words = one.serve()

    assert (code, 1) == (served, found), f"{words}\n{report}"
    assert said in words
    assert (checked or said) in report
    assert "Traceback" not in words + report


def test_check_changes_nothing(one: Place) -> None:
    one.write()
    before = sorted(path.name for path in one.directory.rglob("*"))

    one.check()

    assert before == sorted(path.name for path in one.directory.rglob("*"))


def test_check_beside_the_running_instance_finds_its_ports_and_files_its_own(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True, databases=["orders"])
        net.start()
        checking = ["check", "-c", str(daemon.config)]
        environ = daemon.environ

        code, report = hurried.command(*checking, environ=environ, directory=tmp_path)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "link").symlink_to(daemon.config.parent)
        ways = [f"../{daemon.config.relative_to(tmp_path)}", f"link/{daemon.config.name}"]
        others = [
            hurried.command("check", "-c", way, environ=environ, directory=tmp_path / "elsewhere") for way in ways
        ]
        offline, untold = hurried.command(*checking, "--offline", environ=environ, directory=tmp_path)
        second, words = hurried.command("serve", "-c", str(daemon.config), environ=environ, directory=tmp_path)
        daemon.stop()
        after, again = hurried.command(*checking, environ=environ, directory=tmp_path)

    assert (0, True, False) == (code, "note: an instance runs from " in report, "Traceback" in report), report
    assert (EX_TEMPFAIL, 0) == (second, after), words
    assert [(0, True)] * 2 == [(code, "note: an instance runs from " in text) for code, text in others], others
    assert (0, True) == (offline, "whether it is this instance that has them open" in untold), untold
    assert "note: an instance runs from " not in again


def test_check_of_a_copied_configuration_finds_the_ports_of_the_first_one_taken(tmp_path: Path) -> None:
    with Topology(tmp_path) as net:
        daemon = net.add("a", forwarding=True)
        net.start()
        environ = {**daemon.environ, "BROKER_INSTANCE__STATE_DIR": str(tmp_path / "other")}

        code, report = hurried.command("check", "-c", str(daemon.config), environ=environ, directory=tmp_path)

    assert 1 == code
    assert "endpoint.listen[0]: cannot listen on " in report
