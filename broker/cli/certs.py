"""
`broker certs`: makes, shows and renews keys and certificates; `docs/how-to/certificates.md` says when to use which.

The commands work on files and ask no daemon. They refuse to replace a file, or to cut peers off, without an option for
it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from broker.cli.access import read_settings
from broker.cli.exit_codes import ExitCode, fail
from broker.cli.options import DIRECTORY, FILE, OUTPUT_DIRECTORY, PATH, Config, Group, Output, RowsOutput
from broker.cli.output import readable, show_lines, show_rows
from broker.config.toml import render_value
from broker.net.certificates import certificate_uses
from broker.security.certificate_files import (
    ROOTS,
    Content,
    Pair,
    authority_files,
    bundle_of,
    is_trusted_itself,
    read_authority,
    read_certificates,
    read_pair,
    refuse_expired,
    renewed,
    store_files,
    with_new_sealing,
    with_sealing_of,
)
from broker.security.identity import Use, hosts_of, key_of, use_of, who_of
from broker.security.issue import (
    Authority,
    CertificateSubject,
    Validity,
    issue_database,
    issue_endpoint,
    make_authority,
    renew_authority,
)

AUTHORITY_DAYS, LEAF_DAYS, LEAF_DAYS_MAX = 3650, 365, 825
_WHERE_NAMED = "certificate and trust in [endpoint] and [admin], certificate and peers in [databases.NAME]"
SUBJECT_MAX = 256  # characters that are shown
SKEW = timedelta(minutes=5)  # a new certificate is valid at once also where a clock is slow

_force_option = click.option("--force", is_flag=True, help="Replace files that are there, keys included.")
_host_option = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="A name or address that peers dial; several times for several.",
)
_spiffe_option = click.option(
    "--spiffe", metavar="URI", default="", show_default=False, help="A SPIFFE id: spiffe://domain/path."
)
_days_option = click.option(
    "--days", type=click.IntRange(1), help=f"Days of validity, at most {LEAF_DAYS_MAX}; {LEAF_DAYS} if left out."
)
_ca_option = click.option("--ca", "authority", type=DIRECTORY, help="Directory of the authority that signs.")


@click.group(cls=Group)
def certs() -> None:
    """
    Make, show and renew keys and certificates.

    Examples:
        broker certs init ca
        broker certs issue gateway-a --host gateway-a.example --ca ca --out tls
    """


@certs.command()
@click.option(
    "--ca/--self-signed",
    "is_authority",
    default=True,
    show_default=False,
    help="An authority, or one identity on its own. [--ca]",
)
@click.option("--name", help="The common name; by default broker CA, or the host name.")
@_host_option
@_spiffe_option
@click.option("--days", type=click.IntRange(1), help=f"Days of validity; {AUTHORITY_DAYS} for an authority.")
@_force_option
@click.argument("directory", type=OUTPUT_DIRECTORY)
def init(directory: Path, name: str | None, output: Output, *, is_authority: bool, force: bool, **of: Any) -> None:
    """
    Make an authority, or a self-signed identity.

    DIRECTORY gets ca.pem and ca.key of an authority that signs for others (keep ca.key where no instance runs), or
    NAME.pem and NAME.key of one endpoint. Exit codes: 0 made, 1 cannot be written, 6 a file is there already.

    Examples:
        broker certs init shop-ca --name "shop CA"
        broker certs init --self-signed tls --name gateway-b --host gateway-b.example
    """
    if is_authority and (of["hosts"] or of["spiffe"]):
        raise click.UsageError("an authority has neither hosts nor a SPIFFE id: they belong to what it issues")
    if not is_authority:
        _issue(name or socket.gethostname(), directory, None, output, force=force, **of)
        return
    made = make_authority(_subject(name or "broker CA").name, _validity(of["days"] or AUTHORITY_DAYS))
    lines = [f"# sign with --ca {directory}; every peer trusts:", f"trust = [{_value(directory / 'ca.pem')}]"]
    _store(authority_files(made, directory), made.roots, lines, output, force=force)


@certs.command()
@click.option(
    "--database", metavar="NAME", help="The identity of a database, for sealed dialogs, instead of an endpoint's."
)
@_host_option
@_spiffe_option
@_days_option
@_ca_option
@click.option("--out", "directory", type=OUTPUT_DIRECTORY, default=".", help="Directory for the files.")
@_force_option
@click.argument("name", required=False)
def issue(
    name: str | None, database: str | None, authority: Path | None, directory: Path, output: Output, **how: Any
) -> None:
    """
    Make a certificate and its key.

    NAME is an endpoint and becomes NAME.pem and NAME.key, signed by the authority. A database gets NAME.dialog.pem,
    which others may have, and NAME.dialog.key; without --ca it is signed by itself. Exit codes: 0 made, 1 the authority
    cannot be used, 6 a file is there already.

    Examples:
        broker certs issue gateway-c --host gateway-c.example --host 192.0.2.7 --ca ca --out tls
        broker certs issue --database billing --out tls
    """
    if (name is None) == (database is None):
        raise click.UsageError("give either the NAME of an endpoint or --database NAME")
    if database is not None and how["hosts"]:
        raise click.UsageError("a database is on no host: --host belongs to an endpoint")
    if name is not None and authority is None:
        raise click.UsageError("give --ca DIRECTORY, or run broker certs init --self-signed DIRECTORY without one")
    _issue(database or name or "", directory, authority, output, is_database=database is not None, **how)


def _issue(
    name: str, directory: Path, authority: Path | None, output: str, *, is_database: bool = False, **how: Any
) -> None:
    """Make a certificate and its key, and print them with the settings that use the files."""
    holder = _subject(name, how["hosts"], how["spiffe"])
    make, stem = (issue_database, f"{name}.dialog") if is_database else (issue_endpoint, name)
    issued = make(holder, _leaf_validity(how["days"]), _authority(authority))
    pair = Pair(directory / f"{stem}.pem", directory / f"{stem}.key")
    lines = [f"certificate = {_value(pair.certificate)}", f"private_key = {_value(pair.private_key)}"]
    if is_database:
        lines = [f"[databases.{name}]", *lines, f"# peers get {pair.certificate} and name it in their `peers`"]
    else:
        lines = ["[endpoint]", 'encryption = "required"', 'authentication = "certificate"', *lines]
        at = None if authority is None else _value(authority / "ca.pem")
        lines.append(f"trust = [{at}]" if at else f"# peers name {pair.certificate} in their `peers`")
    _store(pair.files(issued), issued.certificates, lines, output, force=how["force"])


@certs.command()
@click.argument("files", nargs=-1, type=PATH, metavar="[FILE]...")
def show(config: Config, files: tuple[Path, ...], output: RowsOutput) -> None:
    """
    Show whose certificates are in files.

    With a configuration also which setting uses a file; without FILE, every file that it names. Exit codes: 0 shown, 1
    a file cannot be used.

    Examples:
        broker certs show tls/gateway-a.pem
        broker certs show -c config/gateway.toml
    """
    if not files and config is None:
        raise click.UsageError("name files, or a configuration with -c FILE")
    uses: Mapping[Path, tuple[str, ...]] = {}
    if config is not None:
        uses = certificate_uses(read_settings(config))
    rows: list[dict[str, Any]] = []
    for file in files or tuple(uses):
        setting = {"setting": ", ".join(uses.get(file.absolute(), ()))} if config is not None else {}
        rows += [{"file": str(file)} | _row(one) | setting for one in read_certificates(file)]
    if not rows:
        click.echo(f"{config} names no certificate that is there: {_WHERE_NAMED} would", err=True)
    if rows or output == "json":
        show_rows(rows, output)


@certs.command()
@click.option("--key", "private_key", type=PATH, help="Its private key; by default next to it, as FILE.key.")
@_ca_option
@_days_option
@click.option("--signing", is_flag=True, help="Of a database: the key that signs as well, not only the one to seal to.")
@click.option(
    "--prepare", is_flag=True, help="Make the new one next to the old one; the next renewal puts it in place."
)
@click.option("--at-once", is_flag=True, help="Put a self-signed one in place although no peer can trust it yet.")
@click.argument("file", type=FILE)
def renew(file: Path, private_key: Path | None, authority: Path | None, output: Output, **how: Any) -> None:
    """
    Replace a certificate by one with a new key.

    FILE is an endpoint's, a database's (a new key to seal to; with --signing both) or an authority's ca.pem. The new
    one is valid at once and the old one until its end. Peers that trust the certificate itself need the new one first:
    --prepare, hand out NAME.trust.pem, then renew again. Exit codes: 0 renewed, 1 cannot be used, 6 refused because
    peers would be cut off.

    Examples:
        broker certs renew tls/gateway-a.pem --ca ca
        broker certs renew tls/billing.dialog.pem
    """
    use = use_of(read_certificates(file)[0])
    if use is Use.AUTHORITY:
        _renew_authority(file, how["days"], output)
        return
    pair = Pair(file, private_key or file.with_suffix(".key"))
    if use is Use.SIGNING and not how["signing"] and not pair.prepared.certificate.exists():
        new = with_new_sealing(read_pair(pair), _leaf_validity(how["days"]), now=datetime.now(UTC))
        lines = [f"# the old key stays in the file; peers that have this {pair.certificate} seal to the new one"]
        if new.certificates[0].not_valid_after_utc in {one.not_valid_after_utc for one in new.certificates[1:]}:
            lines.append("# it ends with the certificate that signs: renew that with --signing before")
        _store(pair.files(new), new.certificates, lines, output)
        return
    _renew_pair(pair, authority, how["days"], output, is_prepared=how["prepare"], at_once=how["at_once"])


def _renew_pair(
    pair: Pair, authority: Path | None, days: int | None, output: str, *, is_prepared: bool, at_once: bool
) -> None:
    old, now = read_pair(pair), datetime.now(UTC)
    is_waiting = pair.prepared.certificate.exists() and not is_prepared
    if is_trusted_itself(old) != (authority is None) and not is_waiting:
        hint = "leave out --ca, which did not sign it" if authority else "give its authority with --ca DIRECTORY"
        raise click.UsageError(f"{pair.certificate} is signed by {'itself' if authority else 'an authority'}: {hint}")
    if is_trusted_itself(old) and not (is_waiting or is_prepared or at_once):
        hint = "begin with --prepare, or say --at-once"
        sentence = f"{pair.certificate} is trusted itself and no peer has a new one yet, so all would be cut off"
        fail(f"{sentence}: {hint}", ExitCode.HARMFUL)
    new = read_pair(pair.prepared) if is_waiting else renewed(old, _leaf_validity(days), _authority(authority))
    if is_prepared:
        files = {**pair.prepared.files(new), pair.bundle: bundle_of(new, old, now=now)}
        current = with_sealing_of(old, new, now=now)
        if current != old:
            files |= pair.files(current)
        line = f"# hand {pair.bundle} to the peers, and when all of them have it: broker certs renew {pair.certificate}"
        _store(files, new.certificates, [line], output)
        return
    files = pair.files(with_sealing_of(new, old, now=now))
    if is_waiting or is_trusted_itself(old):
        files[pair.bundle] = bundle_of(new, old, now=now)
    lines = ["# a running instance uses it by itself, for new connections and dialogs"]
    _store(files, new.certificates, lines, output, gone=pair.prepared)


def _renew_authority(file: Path, days: int | None, output: str) -> None:
    if file.name != ROOTS:
        raise click.UsageError(f"an authority is renewed in its own directory: name its {ROOTS}")
    old = read_authority(file.parent)
    new = renew_authority(old, _validity(days or AUTHORITY_DAYS), now=datetime.now(UTC))
    lines = [
        f"# {file} holds the new certificate and the old one: hand it to every peer while the old one is valid",
        "# peers that have only the old one also trust what is issued from now on",
    ]
    _store(authority_files(new, file.parent), new.roots, lines, output)


def _value(path: Path) -> str:
    """A path as a value of a configuration file, which may be in any directory."""
    return render_value(str(path.absolute()))


def _subject(name: str, hosts: tuple[str, ...] = (), uri: str = "") -> CertificateSubject:
    try:
        return CertificateSubject(name, hosts, uri)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _validity(days: int) -> Validity:
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        return Validity(now - SKEW, now + timedelta(days=days))
    except OverflowError:
        raise click.UsageError(f"{days} days from now is beyond the last day there is") from None


def _leaf_validity(days: int | None) -> Validity:
    if (days or 0) > LEAF_DAYS_MAX:
        raise click.UsageError(f"--days {days} is above {LEAF_DAYS_MAX}: what lives longer is never renewed in time")
    return _validity(days or LEAF_DAYS)


def _authority(directory: Path | None) -> Authority | None:
    if directory is None:
        return None
    found = read_authority(directory)
    hint = f"renew it first: broker certs renew {directory / ROOTS}"
    refuse_expired(found.roots[0], str(directory / ROOTS), now=datetime.now(UTC), hint=hint)
    return found


def _store(
    files: Mapping[Path, Content],
    certificates: tuple[Any, ...],
    lines: list[str],
    output: str,
    *,
    force: bool = True,
    gone: Pair | None = None,
) -> None:
    """Write what was made, remove the pair that is in place now, and print both with some lines."""
    try:
        store_files(files, is_replacing=force)
    except FileExistsError as error:
        fail(f"{error.filename} is there already: say --force to replace it, or choose another name", ExitCode.HARMFUL)
    for path in (gone.certificate, gone.private_key) if gone else ():
        path.unlink(missing_ok=True)
    rows = [_row(one) for one in certificates]
    parts = (
        (f"{row['for']} {row['subject']}", row["hosts"], f"until {row['ends']}", row["fingerprint"]) for row in rows
    )
    told = [readable("# " + ", ".join(filter(None, one))) for one in parts]
    told += [f"# {path}{' (private)' if content.is_secret else ''}" for path, content in files.items()]
    show_lines({"files": [str(path) for path in files], "certificates": rows}, output, [*told, *lines])


def _row(certificate: Any) -> dict[str, Any]:
    who, ends = who_of(certificate), certificate.not_valid_after_utc
    return {
        "for": str(use_of(certificate)),
        "subject": who.subject[:SUBJECT_MAX],
        "hosts": ", ".join([*hosts_of(certificate), *who.uris]),
        "fingerprint": f"sha256:{who.fingerprint}",
        "issuer": certificate.issuer.rfc4514_string()[:SUBJECT_MAX],
        "key": key_of(certificate),
        "begins": f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S}",
        "ends": f"{ends:%Y-%m-%d %H:%M:%S}",
        "days_left": (ends - datetime.now(UTC)).days,
    }
