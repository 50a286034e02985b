"""``ciuic runbook``: what the page names, and that its commands work as written."""

import shlex

import pytest

from tests.kit.daemon import Machine
from tests.kit.program import ciuic


@pytest.fixture
def recovered(tmp_path) -> Machine:
    machine = Machine(tmp_path)
    machine.source = machine.directory / "a place, 'quoted'"
    (machine.directory / "source").rename(machine.source)
    roots = str(machine.source).replace(",", "\\,")
    machine.configure(
        snapshot_paths=roots,
        contacts="Ada <ada@example.org>, 0123 456",
        copies="/mnt/nas/ciuic, s3://bucket/a",
    )
    assert ciuic("--config", machine.config, "init").code == 0
    return machine


def page(machine: Machine) -> str:
    outcome = ciuic("--config", machine.config, "runbook")
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out


def commands(text: str) -> list[list[str]]:
    """Return the commands of the page, without the name of the program."""
    lines = (line.strip() for line in text.splitlines() if line.startswith("    "))
    return [shlex.split(line)[1:] for line in lines if line.startswith("ciuic ")]


def test_the_page_names_people_paths_store_and_what_is_missing(recovered: Machine) -> None:
    text = page(recovered)
    for said in ("- Ada <ada@example.org>", "- 0123 456", f"- {recovered.source}"):
        assert f"\n{said}\n" in text
    assert f"to the store {recovered.store}." in text
    assert "There was no snapshot" in text
    assert "No recovery has been practiced" in text
    assert "Alerts: none" in text
    assert "- copy: /mnt/nas/ciuic\n- copy: s3://bucket/a\n" in text

    assert ciuic("--config", recovered.config, "snapshot").code == 0
    assert ciuic("--config", recovered.config, "drill").code == 0
    text = page(recovered)
    newest = recovered.snapshots()[0].id
    assert f"Newest snapshot: {newest} of " in text
    assert "Last drill: " in text
    assert "every chosen file came back as it was" in text

    recovered.configure(snapshot_paths="/srv", snapshot_interval="auto from 10m to 6h")
    assert "Snapshots are taken at least every 6 h 00 m, as the daemon chooses" in page(recovered)
    assert f"set 'contacts' in {recovered.config}" in page(recovered)


def test_every_command_of_the_page_works_as_it_is_written(recovered: Machine, tmp_path) -> None:
    assert ciuic("--config", recovered.config, "snapshot").code == 0
    newest = recovered.snapshots()[0].id
    known = {
        "ID": newest,
        "PATH": str(recovered.source),
        "TIME": "2026-06-15 14:30",
        f"{recovered.source}/FILE": f"{recovered.source}/weights.bin",
    }
    found = commands(page(recovered))
    assert len(found) > 10
    for number, call in enumerate(found):
        places = {"DIR": tmp_path / f"{number}"}
        outcome = ciuic(*(places.get(word, known.get(word, word)) for word in call))
        # 'doctor' may have something to say about this machine.
        assert outcome.code == 0 or call[-1] == "doctor", (call, outcome.err)
        assert "Traceback" not in outcome.err
