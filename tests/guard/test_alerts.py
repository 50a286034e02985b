"""Alerts, against real servers: some hang, redirect, answer 500 or send byte by byte."""

import dataclasses
import fcntl
import json
import os
import resource
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ciuic.config.load import load_settings
from ciuic.errors import ConfigError
from ciuic.guard.alerts.channels import Channel, parse_alert
from ciuic.guard.alerts.deliver import deliver, start_delivery
from ciuic.guard.alerts.message import Message
from ciuic.guard.alerts.send import NotSent, send
from ciuic.store.store import open_store
from ciuic.system.clock import SystemClock
from tests.kit.box import Box
from tests.kit.clock import ManualClock
from tests.kit.daemon import wait_until
from tests.kit.hooks import Hook
from tests.kit.installed import run
from tests.kit.jobs import WITHOUT_CGROUP, Run

MESSAGE = Message(
    "began",
    "critical",
    "ciuic/h/j/1/failure",
    "job <j> failed",
    "h",
    "2026-01-01T00:00:00Z",
    {"step": 7},
)


@pytest.fixture
def hooks() -> Iterator[Any]:
    made: list[Hook] = []

    def start(*statuses: int | str) -> Hook:
        made.append(Hook(*statuses))
        return made[-1]

    yield start
    for hook in made:
        hook.close()


def webhook(url: str, **more: str) -> Channel:
    return parse_alert("hook", {"type": "webhook", "url": url, **more})


def test_a_webhook_gets_one_document(hooks: Any) -> None:
    hook = hooks(204)
    send(webhook(hook.url), MESSAGE)

    ((path, document),) = hook.got
    assert path == "/hook?a=b"
    assert document == {
        "step": 7,
        "event": "began",
        "severity": "critical",
        "key": "ciuic/h/j/1/failure",
        "text": "job <j> failed",
        "host": "h",
        "time": "2026-01-01T00:00:00Z",
    }


def test_slack_and_pagerduty_get_their_own_forms(hooks: Any, tmp_path: Path) -> None:
    hook = hooks(200)
    key = tmp_path / "key"
    key.write_text("R0UT1NG\n")
    key.chmod(0o600)
    address = tmp_path / "url"
    address.write_text(hook.url + "\n")
    address.chmod(0o600)
    send(parse_alert("s", {"type": "slack", "url_file": str(address)}), MESSAGE)
    pager = parse_alert("p", {"type": "pagerduty", "url": hook.url, "key_file": str(key)})
    send(pager, MESSAGE)
    send(pager, Message("ended", *[getattr(MESSAGE, name) for name in MESSAGE.__slots__[1:]]))

    slack, began, ended = [document for _, document in hook.got]
    assert slack == {"text": "[critical] job &lt;j&gt; failed (h)"}
    assert began["routing_key"] == "R0UT1NG"
    assert (began["event_action"], ended["event_action"]) == ("trigger", "resolve")
    assert began["dedup_key"] == ended["dedup_key"] == MESSAGE.key
    assert began["payload"]["severity"] == "critical"
    assert began["payload"]["summary"] == "[critical] job <j> failed (h)"
    assert began["payload"]["source"] == "h"


def test_an_hour_of_500_is_waited_out_with_longer_and_longer_pauses(hooks: Any) -> None:
    hook = hooks(*[500] * 18, 200)
    clock = ManualClock()
    began_s = clock.monotonic_s()

    assert deliver(webhook(hook.url), MESSAGE, clock) is None
    assert len(hook.got) == 19
    assert clock.monotonic_s() - began_s > 3000


def test_the_end_of_a_fault_never_arrives_before_its_beginning(hooks: Any) -> None:
    hook = hooks(500, 200)
    last: dict[tuple[str, str], int] = {}
    pids = []
    for number, event in enumerate(("began", "ended", "began")):
        message = dataclasses.replace(MESSAGE, event=event, text=str(number))
        pids += start_delivery([webhook(hook.url)], message, last)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 3
    (handle,) = last.values()
    os.close(handle)
    assert [one["text"] for _, one in hook.got] == ["0", "0", "1", "2"]


def test_the_wait_for_the_message_before_is_part_of_the_time_to_give_up(hooks: Any) -> None:
    hook = hooks(503)
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(old[0], 4096), old[1]))
    with subprocess.Popen(["sleep", "60"]) as process:
        low = os.pidfd_open(process.pid)
        high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 2000)
        try:
            why = deliver(webhook(hook.url), MESSAGE, SystemClock(), give_up_s=0.1, before=high)
            assert why == "it answered with status 503"
            assert process.poll() is None
            assert len(hook.got) == 1
        finally:
            process.kill()
            os.close(low)
            os.close(high)
            resource.setrlimit(resource.RLIMIT_NOFILE, old)
    with subprocess.Popen(["sleep", "5"]) as process:

        class Waited(ManualClock):
            """The first look ends the process before, and then ten seconds have passed."""

            def monotonic_s(self) -> float:
                if process.poll() is not None:
                    return 1010.0
                process.kill()
                return 1000.0

        handle = os.pidfd_open(process.pid)
        # There would be time for a second attempt if it began when that process has ended.
        deliver(webhook(hook.url), MESSAGE, Waited(), give_up_s=10.5, before=handle)
        os.close(handle)
    assert len(hook.got) == 2


def test_a_message_whose_process_cannot_be_started_keeps_the_order_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle = os.pidfd_open(os.getpid())
    last = {("hook", MESSAGE.key): handle}
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(FileNotFoundError):
        start_delivery([webhook("http://127.0.0.1:1/")], MESSAGE, last)
    assert last == {("hook", MESSAGE.key): handle}
    os.close(handle)


def test_a_server_that_never_recovers_is_given_up(hooks: Any) -> None:
    hook = hooks(503)
    assert deliver(webhook(hook.url), MESSAGE, ManualClock()) == "it answered with status 503"
    assert 20 < len(hook.got) < 50


@pytest.mark.parametrize(
    ("status", "said"),
    [(301, "a redirect (301), which is not followed"), (307, "(307)"), (403, "status 403")],
)
def test_a_redirect_or_a_refusal_is_not_tried_again(hooks: Any, status: int, said: str) -> None:
    hook = hooks(status)
    why = deliver(webhook(hook.url), MESSAGE, ManualClock())

    assert why is not None
    assert said in why
    assert len(hook.got) == 1


@pytest.mark.parametrize("how", ["hangs", "drips"])
def test_a_server_that_hangs_or_sends_byte_by_byte_costs_a_limited_time(
    hooks: Any, how: str
) -> None:
    hook = hooks(how)
    with pytest.raises(NotSent, match="no answer in time") as caught:
        send(webhook(hook.url), MESSAGE, limit_s=1.0)
    assert not caught.value.is_final
    wait_until("the server got it", lambda: len(hook.got) == 1)


def test_rubbish_and_a_closed_port_are_tried_again(hooks: Any) -> None:
    with pytest.raises(NotSent, match="not that of a web server"):
        send(webhook(hooks("rubbish").url), MESSAGE)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        with pytest.raises(NotSent, match="Connection refused") as caught:
            send(webhook(url), MESSAGE)
    assert not caught.value.is_final


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        (None, 0o600, "cannot be read: No such file"),
        (b"http://127.0.0.1/s3cr3t", 0o644, "other users can read"),
        (b"", 0o600, "does not hold one line of text"),
        (b"http://127.0.0.1/a\nhttp://b/", 0o600, "does not hold one line of text"),
        (b"\xff\xfe", 0o600, "does not hold one line of text"),
        (b"ftp://127.0.0.1/s3cr3t", 0o600, "it begins with https://"),
    ],
)
def test_a_bad_secret_is_named_and_never_shown(
    tmp_path: Path, content: bytes | None, mode: int, said: str
) -> None:
    file = tmp_path / "url"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    channel = parse_alert("s", {"type": "slack", "url_file": str(file)})
    with pytest.raises(NotSent) as caught:
        send(channel, MESSAGE)

    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.is_final


def test_a_command_gets_the_message_as_environment_and_document(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = f"echo $CIUIC_ALERT_SEVERITY $CIUIC_ALERT_STEP > {out}; cat >> {out}"
    send(parse_alert("c", {"type": "command", "command": command}), MESSAGE)

    first, _, rest = out.read_text().partition("\n")
    assert first == "critical 7"
    assert json.loads(rest)["text"] == MESSAGE.text
    with pytest.raises(NotSent, match="failed with exit status 3"):
        send(parse_alert("c", {"type": "command", "command": "exit 3"}), MESSAGE)
    with pytest.raises(NotSent, match="took too long and was killed"):
        send(parse_alert("c", {"type": "command", "command": "sleep 60"}), MESSAGE, limit_s=0.3)


class Mail(socketserver.ThreadingTCPServer):
    """A mail server that takes messages, or refuses their receivers."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, *, answer: str = "250 ok") -> None:
        super().__init__(("127.0.0.1", 0), _Dialogue)
        self.answer = answer
        self.mails: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class _Dialogue(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.wfile.write(b"220 hello\r\n")
        while line := self.rfile.readline().decode().strip():
            word = line[:4].upper()
            if word == "DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                self.server.mails.append(b"".join(lines).decode())
            answer = self.server.answer if word == "RCPT" else "250 ok"
            if not answer:
                return  # the connection ends
            self.wfile.write(f"{'221 bye' if word == 'QUIT' else answer}\r\n".encode())


def test_mail_goes_to_a_real_server_and_a_refusal_is_final() -> None:
    for answer in ("250 ok", "550 no such user"):
        with Mail(answer=answer) as server:
            values = {
                "type": "email",
                "server": f"127.0.0.1:{server.server_address[1]}",
                "from": "ciuic@example.org",
                "to": "a@example.org, b@example.org",
                "security": "none",
            }
            why = deliver(parse_alert("m", values), MESSAGE, ManualClock())
            server.shutdown()
        if answer.startswith("250"):
            assert why is None
            (mail,) = server.mails
            assert "Subject: [critical] job <j> failed (h)\r\n" in mail
            assert "To: a@example.org, b@example.org\r\n" in mail
            assert "step: 7\r\n" in mail
        else:
            assert why == "the mail server refused the message"


def test_a_name_that_is_not_text_keeps_no_mail_back() -> None:
    with Mail() as server:
        values = {
            "type": "email",
            "server": f"127.0.0.1:{server.server_address[1]}",
            "from": "ciuic@example.org",
            "to": "a@example.org",
            "security": "none",
        }
        text = f"there is no snapshot of {os.fsdecode(b'/data/run' + bytes([255]))}"
        send(parse_alert("m", values), dataclasses.replace(MESSAGE, text=text, facts={"job": text}))
        server.shutdown()
    (mail,) = server.mails
    assert mail.count("no snapshot of /data/run\\udcff") == 3


def test_a_receiver_that_is_refused_for_now_and_a_lost_connection_are_tried_again() -> None:
    for answer, said in (("450 come back", "refused"), ("", "closed the connection")):
        with Mail(answer=answer) as server:
            values = {
                "type": "email",
                "server": f"127.0.0.1:{server.server_address[1]}",
                "from": "ciuic@example.org",
                "to": "a@example.org",
                "security": "none",
            }
            with pytest.raises(NotSent, match=said) as caught:
                send(parse_alert("m", values), MESSAGE)
            server.shutdown()
        assert not caught.value.is_final


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("type = fax\n", 2, "type of [alert a]: 'fax' is not one of webhook, slack"),
        ("url = http://h/\n", 1, "[alert a] lacks the key 'type'"),
        ("type = webhook\n", 2, "it needs either url or url_file"),
        ("type = webhook\nurl = ftp://h/s3cret\n", 3, "url of [alert a]: it is not the address"),
        ("type = webhook\nurl = https://u:s3cret@h/\n", 3, "it has a user or a password in it"),
        ("type = slack\nurl_file = s3cret\n", 3, "is not an absolute path"),
        ("type = pagerduty\n", 2, "it lacks the key 'key_file'"),
        ("type = command\n", 2, "it lacks the key 'command'"),
        ("type = command\ncommand = x\nto = a@b\n", 4, "of the type command has no such key"),
        ("type = email\nserver = h\nfrom = a\nto = b@c\n", 4, "'a' is not an address"),
        (f"type = email\nserver = h:{'9' * 5000}\nfrom = a@b\nto = b@c\n", 3, "is not HOST or"),
        ("type = email\nserver = h:x\nfrom = a@b\nto = b@c\n", 3, "'h:x' is not HOST or"),
        (
            "type = email\nserver = h\nfrom = a@b\nto = b@c\nuser = u\npassword_file = /p\n"
            "security = none\n",
            8,
            "would send the password unencrypted",
        ),
        ("type = command\ncommand = x\nseverity = loud\n", 4, "not one of warning, critical"),
        ("typ = command\n", 2, "unknown key 'typ'"),
    ],
)
def test_a_mistake_in_an_alert_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    config = tmp_path / "ciuic.conf"
    config.write_text(f"[alert a]\n{text}")
    with pytest.raises(ConfigError) as caught:
        load_settings(str(config))

    assert caught.value.message.startswith(f"{config}:{line}: ")
    assert said in caught.value.message
    assert "s3cret@" not in caught.value.message


def with_alerts(box: Box, *sections: str) -> None:
    with open(box.config, "a") as file:
        file.writelines(sections)


def test_a_job_that_fails_sends_one_alert_to_those_who_want_it(
    box: Box, tmp_path: Path, hooks: Any
) -> None:
    (box.source / "a").write_bytes(b"a")
    hook, out = hooks(500, 200), tmp_path / "alerts"
    with_alerts(
        box,
        f"[alert hook]\ntype = webhook\nurl = {hook.url}\nseverity = critical\n",
        f"[alert file]\ntype = command\ncommand = cat >> {out}; echo >> {out}\n",
    )
    done = box.ciuic("run", "--job", "seven", "--", "sh", "-c", "exit 3")

    assert done.code == 3
    wait_until("the server got it again after its 500", lambda: len(hook.got) == 2)
    (document,) = [json.loads(line) for line in out.read_text().splitlines()]
    assert document == hook.got[0][1] == hook.got[1][1]
    assert document["text"] == "job seven failed with exit status 3"
    assert (document["job"], document["event"]) == ("seven", "began")


@pytest.mark.root
def test_an_alert_on_its_way_outlives_the_restarts_of_the_job(box: Box, tmp_path: Path) -> None:
    (box.source / "a").write_bytes(b"a")
    gate, out, runs = tmp_path / "gate", tmp_path / "alerts", tmp_path / "runs"
    command = f"test -e {gate} && cat >> {out}.$CIUIC_ALERT_EVENT"
    with_alerts(box, f"[alert file]\ntype = command\ncommand = {command}\n")
    job = f"echo >> {runs}; test $(wc -l < {runs}) -lt 3 || touch {gate}; exit 3"
    words = ["--config", box.config, "run", "--job", "seven", "--restart", "2", "--"]
    with Run(*words, "sh", "-c", job, wrapper=WITHOUT_CGROUP) as run:
        assert run.end() == 3
    began = out.with_name("alerts.began")
    said = '"text": "job seven failed with exit status 3"'
    # One of each of the three failures; the first waited for the gate from the beginning.
    wait_until("the alerts came", lambda: began.exists() and began.read_text().count(said) == 3)


def test_a_rule_sends_one_alert_when_it_fires_and_one_when_it_ends(
    tmp_path: Path, hooks: Any
) -> None:
    hook = hooks(200)
    log = tmp_path / "log"
    config = tmp_path / "ciuic.conf"
    config.write_text(
        "[rule high]\nwhen = loss > 5\nseverity = warning\n"
        f"[alert all]\ntype = webhook\nurl = {hook.url}\n"
        f"[alert some]\ntype = webhook\nurl = {hook.url}&some\nseverity = critical\n"
    )
    lines = [json.dumps({"step": at, "loss": one}) for at, one in enumerate([1, 9, 9, 1])]
    write = f"cat > {log} <<END\n" + "\n".join(lines) + "\nEND\n"
    arguments = ["--config", config, "run", "--job", "j", "--log", log, "--", "sh", "-c", write]
    with Run(*arguments) as job:
        assert job.end() == 0
    wait_until("both came", lambda: len(hook.got) >= 2)

    found = sorted((one["event"], one["severity"], path) for path, one in hook.got)
    assert found == [("began", "warning", "/hook?a=b"), ("ended", "warning", "/hook?a=b")]
    assert len({one["key"] for _, one in hook.got}) == 1


def test_doctor_tests_each_alert_and_shows_no_secret(box: Box, tmp_path: Path, hooks: Any) -> None:
    good, bad = hooks(200), hooks(404)
    with_alerts(
        box,
        f"[alert good]\ntype = slack\nurl = {good.url}\n",
        f"[alert bad]\ntype = slack\nurl = {bad.url}\n",
    )
    done = box.ciuic("doctor", "--test-alerts")

    assert done.code == 1
    assert "alert good: the test message was handed over" in done.out
    assert "alert bad: the test message was not sent: it answered with status 404" in done.out
    assert "hook?a=b" not in done.out + done.err
    assert good.got[0][1]["text"].startswith("[test] this is a test message")
    assert len(good.got) == len(bad.got) == 1
    box.ciuic("doctor")
    assert len(good.got) == 1


def test_a_training_program_with_modules_of_the_same_names_is_in_no_ones_way(
    box: Box, tmp_path: Path
) -> None:
    """The guard starts Python in the directory of the training."""
    (box.source / "a").write_bytes(b"a")
    place, out = tmp_path / "place", tmp_path / "out"
    place.mkdir()
    for name in ("json", "ssl", "signal", "smtplib", "ciuic", "socket"):
        (place / f"{name}.py").write_text("raise SystemExit('the wrong module')\n")
    with_alerts(box, f"[alert file]\ntype = command\ncommand = cat > {out}\n")
    done = run("ciuic", "--config", box.config, "run", "--", "sh", "-c", "exit 3", cwd=place)

    assert (done.code, out.exists()) == (3, True), done.err
    assert [one.tags for one in box.snapshots()] == [("emergency",)]


def test_what_the_last_lines_say_is_told_before_the_store_is_waited_for(
    box: Box, tmp_path: Path
) -> None:
    """ciuic pins and tags snapshots at the end: that waits up to 30 s for another writer."""
    (box.source / "a").write_bytes(b"a")
    log, out = tmp_path / "log", tmp_path / "alert"
    with_alerts(
        box,
        "[rule high]\nwhen = loss > 5\n",
        f"[alert file]\ntype = command\ncommand = cat > {out}.new; mv {out}.new {out}\n",
    )
    job = f"echo '{json.dumps({'step': 1, 'loss': 9})}' > {log}"
    words = ["--config", box.config, "run", "--job", "j", "--log", log, "--", "sh", "-c", job]
    with open_store(str(box.store), write=True), Run(*words) as run:
        wait_until("the alert came", out.exists)
        assert not run.ended
        assert "could not be pinned" not in run.err, "it still waits"
        assert json.loads(out.read_bytes())["rule"] == "high"
