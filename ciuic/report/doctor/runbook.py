"""The page with the steps of a recovery: this machine's own paths, store, people and commands.

It is Markdown that reads well as plain text. Its reader may have nothing else, so every command on
it is complete. The commands for this machine name the configuration, because only it says where the
copies are, and how to reach a bucket. Those for another machine need the store alone.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ciuic.model import SnapshotSummary
from ciuic.store.index.places import DrillRecord
from ciuic.system.clock import local_time_text
from ciuic.system.machine import Machine
from ciuic.units import format_bytes, format_duration, format_files

__all__ = ["Facts", "Reach", "runbook"]


@dataclass(frozen=True, slots=True)
class Reach:
    """A store or a copy of it, and what another machine needs to reach it.

    Attributes:
        address: A directory, or the URL of a bucket.
        endpoint: The URL of the bucket's server; empty: the usual one.
        region: The region of the bucket; empty: the usual one.
        credentials_file: The file with the key; empty: the configuration names none.
        path_style: The bucket is a part of the path, as it is without a configuration.
    """

    address: str
    endpoint: str = ""
    region: str = ""
    credentials_file: str = ""
    path_style: bool = True


@dataclass(frozen=True, slots=True)
class Facts:
    """What the page is made of.

    Attributes:
        machine: This machine.
        version: The version of ciuic.
        config_path: The configuration.
        program: The command with the options that name the configuration, or else the store.
        store: The store.
        roots: The directories that snapshots cover.
        schedules: How often snapshots are taken and which stay, a line for each schedule.
        drill_interval_s: How often the daemon practices; 0: never.
        contacts: Who can help; empty: the configuration does not say.
        channels: The names of the alerts.
        copies: The stores that the configuration keeps as copies of this one.
        newest: The newest snapshot of this machine.
        last_drill: The last drill.
        now_ns: The time.
    """

    machine: Machine
    version: str
    config_path: str
    program: Sequence[str]
    store: Reach
    roots: Sequence[str]
    schedules: Sequence[str]
    drill_interval_s: float
    contacts: str
    channels: Sequence[str]
    copies: Sequence[Reach]
    newest: SnapshotSummary | None
    last_drill: DrillRecord | None
    now_ns: int


def runbook(facts: Facts) -> str:
    """Return the page."""
    parts = (_head(facts), _protected(facts), _files(facts), _damage(facts), _machine(facts))
    return "\n".join(line for part in parts for line in part) + "\n"


def _head(facts: Facts) -> Iterator[str]:
    yield f"# Recovery of {facts.machine.name}"
    yield ""
    yield f"Written by ciuic {facts.version} on {local_time_text(facts.now_ns)}. Print it, or"
    yield "keep it on another machine: 'ciuic runbook > FILE'. Write it again after a change of the"
    yield f"configuration, {facts.config_path}."
    yield ""
    yield "## People"
    yield ""
    if facts.contacts:
        yield from (f"- {contact.strip()}" for contact in facts.contacts.split(","))
    else:
        yield f"The configuration names none: set 'contacts' in {facts.config_path}."
    yield ""


def _protected(facts: Facts) -> Iterator[str]:
    yield "## What is protected"
    yield ""
    for root in facts.roots:
        yield f"- {root}"
    yield ""
    yield f"Snapshots go to the store {facts.store.address}."
    yield from facts.schedules
    newest = facts.newest
    if newest is None:
        yield "There was no snapshot of this machine when this page was written."
    else:
        size = f"{format_files(newest.files)}, {format_bytes(newest.logical_bytes)}"
        yield f"Newest snapshot: {newest.id} of {local_time_text(newest.taken_ns)}, {size}."
    last = facts.last_drill
    if last is None:
        yield "No recovery has been practiced: run 'ciuic drill'."
    else:
        came_back = "every chosen file came back as it was" if last.files else "nothing to restore"
        outcome = last.outcome or came_back
        amount = f"{format_files(last.files)}, {format_bytes(last.restored_bytes)}"
        yield (
            f"Last drill: {local_time_text(last.done_ns)}, {amount} in"
            f" {format_duration(last.restore_s)}: {outcome}."
        )
    how = f"every {format_duration(facts.drill_interval_s)}" if facts.drill_interval_s else "never"
    yield f"The daemon practices a recovery {how}."
    alerts = ", ".join(facts.channels) or "none: ciuic sends no message about a fault"
    yield f"Alerts: {alerts}."
    yield ""


def _files(facts: Facts) -> Iterator[str]:
    root = facts.roots[0] if facts.roots else "/"
    yield "## Files are lost or wrong"
    yield ""
    yield "1. Stop the training, so that it writes no more broken files."
    yield "2. See what there is, and what changed:"
    yield ""
    yield f"       {_ciuic(facts, 'list')}"
    yield f"       {_ciuic(facts, 'log', f'{root}/FILE')}"
    yield ""
    yield "3. Check the snapshot that you want to go back to. It must say that it is sound:"
    yield ""
    yield f"       {_ciuic(facts, 'verify', 'ID', '--checksum')}"
    yield ""
    yield "4. Restore beside the original first, look at it, and only then in place:"
    yield ""
    restore = ("restore", "-s", "ID", "-p", f"{root}/FILE")
    yield f"       {_ciuic(facts, *restore, '-d', 'DIR')}"
    yield f"       {_ciuic(facts, *restore, '--overwrite')}"
    yield ""
    yield "   For the newest valid versions of all broken checkpoints at once. TIME is before the"
    yield "   first of them broke, such as '2026-06-15 14:30'; without --since, ciuic looks only at"
    yield "   files that changed since the newest snapshot:"
    yield ""
    yield f"       {_configured(facts, 'recover', '--since', 'TIME', '--dry-run')}"
    yield f"       {_configured(facts, 'recover', '--since', 'TIME')}"
    yield ""
    yield "5. Start the training again."
    yield ""


def _damage(facts: Facts) -> Iterator[str]:
    yield "## The store is damaged"
    yield ""
    yield "Delete nothing. The first command shows what is damaged and what can be repaired:"
    yield ""
    yield f"    {_ciuic(facts, 'repair')}"
    yield f"    {_ciuic(facts, 'repair', '--apply')}"
    yield ""
    yield "A path that stays damaged comes from the newest older snapshot that has it undamaged:"
    yield ""
    yield f"    {_ciuic(facts, 'restore', '-s', 'ID', '-p', 'PATH', '-d', 'DIR', '--fallback')}"
    yield ""


def _machine(facts: Facts) -> Iterator[str]:
    yield "## The machine is gone"
    yield ""
    yield "The store is all that is needed: its disk, or a copy of it. On another machine:"
    yield ""
    yield from _reaching(facts.store)
    store = ("ciuic", "--store", facts.store.address)
    # Its long name: a machine that replaces it may have its name, and snapshots.
    host = ("--host", facts.machine.long_name)
    yield f"    {shlex.join([*store, 'list', *host])}"
    yield f"    {shlex.join([*store, 'verify', 'latest', *host, '--checksum'])}"
    for root in facts.roots:
        words = ["restore", "-s", "latest", *host, "-p", root, "-d", "DIR"]
        yield f"    {shlex.join([*store, *words])}"
    yield ""
    if facts.copies:
        yield f"If {facts.store.address} is gone too, name a copy in its place:"
        yield ""
        yield from (f"- copy: {copy.address}" for copy in facts.copies)
        yield ""
    for copy in facts.copies:
        yield from _reaching(copy)
    yield "## Afterwards"
    yield ""
    yield f"    {_configured(facts, 'doctor')}"
    yield f"    {_configured(facts, 'drill')}"


def _reaching(place: Reach) -> Iterator[str]:
    """Say what a machine without the configuration needs for a bucket."""
    scheme, _, rest = place.address.partition("://")
    if not rest:
        return
    file = place.credentials_file
    if scheme == "s3":
        variables = {
            "AWS_ENDPOINT_URL": place.endpoint,
            "AWS_REGION": place.region,
            "AWS_SHARED_CREDENTIALS_FILE": file,
        }
        key = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    elif scheme == "gs":
        variables = {"GOOGLE_APPLICATION_CREDENTIALS": file}
        key = "GOOGLE_APPLICATION_CREDENTIALS"
    else:
        variables = {}
        key = "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
    yield f"Before the commands for {place.address}:"
    yield ""
    for name, value in variables.items():
        if value:
            yield f"    export {name}={shlex.quote(value)}"
    if file:
        yield f"    # {file} has the key: keep a copy of it where you keep this page"
    else:
        yield f"    # and set {key}: keep the key where you keep this page"
    if not place.path_style:
        yield "    # the server wants 'store_path_style = no': write it into a configuration"
    yield ""


def _ciuic(facts: Facts, *arguments: str) -> str:
    return shlex.join([*facts.program, *arguments])


def _configured(facts: Facts, *arguments: str) -> str:
    return shlex.join(["ciuic", "--config", facts.config_path, *arguments])
