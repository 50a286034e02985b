"""The unit under a real systemd: sandbox, readiness, reload, stop, and restart."""

import contextlib
import fcntl
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ciuicd.logs.journal import MESSAGE_IDS
from tests.kit.daemon import REPOSITORY, wait_until

UNIT = REPOSITORY / "systemd" / "ciuicd.service"
METRICS_UNIT = UNIT.with_name("ciuic-metrics.service")
ALERTS_UNIT = UNIT.with_name("ciuic-alerts.service")
COPY_UNIT = UNIT.with_name("ciuic-copy.service")
BUCKET = UNIT.with_name("bucket.conf")
TIMERS = [one.with_suffix(".timer") for one in (UNIT, ALERTS_UNIT, COPY_UNIT)]
ONCE = UNIT.with_name("once.conf")
SLICE = UNIT.with_name("ciuic.slice")
UNITS = [UNIT, METRICS_UNIT, ALERTS_UNIT, COPY_UNIT, COPY_UNIT.with_suffix(".path"), SLICE, *TIMERS]
BOOT = REPOSITORY / "tests" / "kit" / "boot_systemd.sh"
CANNOT_BOOT = 77
BOOT_S = 120.0
"""A system boots many units: 30 s were too short beside other tests."""
STOP_S = 5.0

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("systemctl") is None, reason="systemd is not installed"),
]


class Booted:
    """A systemd for the test."""

    def __init__(self, process_id: int) -> None:
        self._enter = ["nsenter", "--target", str(process_id), "--all", "--"]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside, and wait for its end."""
        return subprocess.run(
            [*self._enter, *command], capture_output=True, text=True, timeout=BOOT_S, check=False
        )

    def begin(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command inside."""
        return subprocess.Popen([*self._enter, *command])

    def output(self, *command: str) -> str:
        """Return the output of a command that must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.journal()}"
        return done.stdout

    def show(self, name: str) -> str:
        """Return a property of the service."""
        return self.output("systemctl", "show", "--value", "--property", name, "ciuicd").strip()

    def journal(self) -> str:
        """Return the log of the services."""
        units = ("--unit", "ciuicd", "--unit", "ciuic-alerts")
        return self.run("journalctl", *units, "--output", "cat", "--no-pager").stdout

    def wait_for_journal(self, text: str, count: int = 1) -> None:
        """Wait until ``text`` was logged ``count`` times."""
        try:
            wait_until(f"'{text}' in the journal", lambda: self.journal().count(text) >= count)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.journal()}") from None


def lay_out(files: Path, config: str | None) -> None:
    """Install ciuic, and write a source. A new machine has only the program."""
    program = files / "usr/local/bin/ciuicd"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!{sys.executable}\n"
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
        "from ciuicd.__main__ import main; sys.exit(main())\n"
    )
    program.chmod(0o755)
    if config is not None:
        unit = files / "etc/systemd/system/ciuicd.service"
        unit.parent.mkdir(parents=True)
        for one in [*UNITS, ONCE]:
            shutil.copy(one, unit.parent)
        (files / "etc/ciuic.conf").write_text(config)
    for name, mode, owner in (("mine", 0o600, 0), ("theirs", 0o600, 1234)):
        path = files / "srv/training" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(300_000))
        path.chmod(mode)
        os.chown(path, owner, owner)
    (files / "srv/training").chmod(0o700)
    os.chown(files / "srv/training", 1234, 1234)


@pytest.fixture
def boot(tmp_path) -> Iterator:
    running: list[subprocess.Popen] = []

    def boot_with(config: str | None) -> Booted:
        files = tmp_path / "files"
        lay_out(files, config)
        log = tmp_path / "boot.log"
        # Not /usr: the program is installed there, and a distribution has its Python there.
        shown = {sys.prefix, sys.base_prefix, str(REPOSITORY)} - {"/usr"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(BOOT), str(files), *sorted(shown)], stdout=output, stderr=output
            )
        running.append(process)

        def systemd() -> list[psutil.Process]:
            children = psutil.Process(process.pid).children()
            return [child for child in children if child.name() == "systemd"]

        wait_until("systemd runs", lambda: process.poll() is not None or bool(systemd()))
        if process.poll() is not None:
            reason = log.read_text().strip()
            if process.returncode == CANNOT_BOOT:
                pytest.skip(reason)
            raise AssertionError(f"systemd did not boot: {reason}")
        booted = Booted(systemd()[0].pid)
        wait_until(
            "systemd has booted",
            lambda: (
                booted.run("systemctl", "is-system-running", "--wait").stdout.strip()
                in {"running", "degraded"}
            ),
            deadline_s=BOOT_S,
        )
        return booted

    # Two of them would share a control group, and find each other's processes in it.
    with Path(shutil.which("systemctl") or BOOT).open("rb") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield boot_with
        for process in running:
            if process.poll() is None:
                process.kill()
            process.wait(30)


CONF = "/etc/ciuic.conf"
CONFIG = "snapshot_paths = /srv/training\nsnapshot_interval = 365d\n"
ELSEWHERE = CONFIG + "snapshot_dir = /data/deep/store\n"
IN_BUCKET = CONFIG + (
    "snapshot_dir = s3://bucket/run7\nstore_endpoint = http://127.0.0.1:9\n"
    "store_allow_http = yes\nstore_credentials = /etc/ciuic.key\n"
)
"""The server is not there."""
KEY = "[default]\naws_access_key_id = a\naws_secret_access_key = b\n"


@pytest.mark.parametrize("source", UNITS[:4], ids=lambda unit: unit.stem)
def test_systemd_finds_no_mistake_in_a_unit(tmp_path, source):
    unit = tmp_path / source.name
    unit.write_text(source.read_text().replace("/usr/local/bin/ciuicd", sys.executable))
    command = ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    unit.write_text(unit.read_text().replace("ProtectClock=yes", "ProtectClok=yes"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("source", [UNIT, ALERTS_UNIT], ids=lambda unit: unit.stem)
def test_the_drop_in_for_a_bucket_fits_the_unit(tmp_path, source):
    unit = tmp_path / source.name
    unit.write_text(source.read_text().replace("/usr/local/bin/ciuicd", sys.executable))
    added = tmp_path / f"{source.name}.d" / "bucket.conf"
    added.parent.mkdir()
    shutil.copy(BUCKET, added)
    command = ["systemd-analyze", "verify", "--recursive-errors=no", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")

    added.write_text(added.read_text().replace("IPAddressDeny=", "IPAddressDeny=nowhere"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "nowhere" in done.stderr


def test_without_the_drop_in_a_bucket_is_one_sentence_that_names_it(boot):
    systemd = boot(IN_BUCKET)
    systemd.output("sh", "-c", f"umask 077; printf '%s' '{KEY}' > /etc/ciuic.key")

    assert systemd.run("systemctl", "start", "ciuicd").returncode != 0

    assert systemd.show("Result") == "exit-code"
    assert systemd.show("ExecMainStatus") == "2"  # systemd does not try again
    assert systemd.journal().count("this process may not use the network") == 1
    drop_in = "/etc/systemd/system/ciuicd.service.d/bucket.conf"
    assert drop_in in systemd.journal()

    systemd.output("install", "-D", "-m", "644", str(BUCKET), drop_in)
    systemd.output("systemctl", "daemon-reload")
    systemd.output("rm", "-rf", "/var/cache/ciuic")
    assert systemd.run("systemctl", "start", "ciuicd").returncode != 0

    # It gives up before systemd does, and says why.
    assert systemd.show("Result") == "exit-code"
    systemd.wait_for_journal("cannot read s3://bucket/run7/ciuic-store.json: the server ")
    assert systemd.run("test", "-d", "/var/cache/ciuic").returncode == 0


STARTS = f"""#!{sys.executable}
import sys; sys.path.insert(0, {str(REPOSITORY)!r})
from ciuic.system.clock import SystemClock
from ciuicd.jobs.child import in_child
from ciuicd.jobs.steps import all_steps
from tests.kit import works
work = works.ThreadedWork.do
steps = in_child(work, clock=SystemClock(), is_cancelled=lambda: False, starts=True)
print("threads:", all_steps(steps))
"""
"""Does some work as the daemon of a store in a bucket does."""


def test_the_sandbox_lets_the_daemon_start_a_process_with_threads(boot):
    systemd = boot(ELSEWHERE)
    program = "/usr/local/bin/starts"
    systemd.output("sh", "-c", f"echo {shlex.quote(STARTS)} > {program}; chmod 755 {program}")
    drop_in = "/etc/systemd/system/ciuicd.service.d/starts.conf"
    text = f"[Service]\nType=oneshot\nRestart=no\nExecStart=\nExecStart={program}\n"
    systemd.output("install", "-D", "-m", "644", "/dev/null", drop_in)
    systemd.output("sh", "-c", f"printf {shlex.quote(text)} > {drop_in}")
    systemd.output("systemctl", "daemon-reload")

    assert systemd.run("systemctl", "start", "ciuicd").returncode == 0, systemd.journal()

    systemd.wait_for_journal("threads: 2")


@pytest.mark.parametrize(
    ("unit", "limit"),
    [(UNIT, 25), (METRICS_UNIT, 11), (ALERTS_UNIT, 35), (COPY_UNIT, 40)],
)
def test_the_exposure_of_the_sandbox_has_not_grown(unit, limit):
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={limit}", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-300:]


def test_every_setting_of_the_unit_has_a_comment():
    service = UNIT.read_text().split("[Service]")[1].split("[Install]")[0]
    lines = [line for line in service.splitlines() if line]
    for above, line in itertools.pairwise(lines):
        if not line.startswith("#") and not line.startswith("ExecStart="):
            assert above.startswith("#"), line


@pytest.mark.parametrize("config", [CONFIG, ELSEWHERE], ids=["default store", "another store"])
def test_the_whole_life_of_the_service(boot, config):
    systemd = boot(config)
    store = "/data/deep/store" if config is ELSEWHERE else "/.ciuic_snapshots"

    # The command returns after READY=1, when the socket exists.
    systemd.output("systemctl", "start", "ciuicd")
    assert systemd.show("ActiveState") == "active"
    assert systemd.run("test", "-S", f"{store}/control.sock").returncode == 0
    systemd.wait_for_journal("snapshot cs-")
    assert "(base): 2 files, 586 KiB" in systemd.journal()
    assert "no warnings" in systemd.journal()
    selected = (f"MESSAGE_ID={MESSAGE_IDS['snapshot']}", f"STORE={store}")
    (line,) = systemd.output("journalctl", "--output", "json", *selected).splitlines()
    entry = json.loads(line)
    assert entry["MESSAGE"].startswith(f"snapshot {entry['SNAPSHOT_ID']} (base): 2 files")
    assert (entry["FILES"], entry["KIND"], entry["TROUBLE_COUNT"]) == ("2", "base", "0")
    assert (entry["_SYSTEMD_UNIT"], entry["PRIORITY"]) == ("ciuicd.service", "6")
    wait_until("its state is shown", lambda: "last snapshot cs-" in systemd.show("StatusText"))
    assert systemd.show("WatchdogUSec") == "3min"

    # In the sandbox, the daemon can read every file, and write only in the store.
    main = systemd.show("MainPID")
    inside = ("nsenter", "--target", main, "--mount", "--")
    assert systemd.run(*inside, "touch", f"{store}/tmp/probe").returncode == 0
    for place in ("/srv/training", "/etc", "/root", "/data", "/usr", "/var/tmp", "/tmp"):
        done = systemd.run(*inside, "touch", f"{place}/probe")
        if place != "/data" or config is ELSEWHERE:
            assert "Read-only file system" in done.stderr, place
    systemd.output("rm", "-f", f"{store}/tmp/probe")  # a writer that opens the store tidies there

    # A broken configuration changes nothing; a good one is used.
    assert systemd.run("sh", "-c", "echo nonsense >> /etc/ciuic.conf").returncode == 0
    refused = systemd.run("systemctl", "reload", "ciuicd")
    assert refused.returncode != 0
    assert "failed" in refused.stderr
    systemd.wait_for_journal("the old configuration stays in effect: /etc/ciuic.conf:")
    assert systemd.show("ActiveState") == "active"
    assert systemd.show("ReloadResult") == "exit-code"
    assert systemd.show("MainPID") == main
    systemd.output("sed", "-i", "s/^nonsense$/trash = 2d/", "/etc/ciuic.conf")
    systemd.output("systemctl", "reload", "ciuicd")
    assert systemd.show("ReloadResult") == "success"
    systemd.wait_for_journal("reloaded /etc/ciuic.conf")
    assert systemd.show("MainPID") == main

    # After a kill it restarts by itself, and takes no snapshot that exists already.
    systemd.output("systemctl", "kill", "--signal=KILL", "ciuicd")
    wait_until(
        "it comes back",
        lambda: systemd.show("NRestarts") == "1" and systemd.show("ActiveState") == "active",
    )
    assert systemd.show("MainPID") != main
    systemd.wait_for_journal("serves", count=2)
    assert systemd.journal().count("snapshot cs-") == 1

    # After a stop the exit code is 0, and the socket is gone.
    systemd.output("systemctl", "stop", "ciuicd")
    assert systemd.show("ActiveState") == "inactive"
    assert systemd.show("Result") == "success"
    assert systemd.show("ExecMainStatus") == "0"
    assert systemd.run("test", "-e", f"{store}/control.sock").returncode == 1

    # A missing store, as on an unmounted disk, is created again neither before nor in the sandbox.
    systemd.output("mv", store, "/gone")
    assert systemd.run("systemctl", "start", "ciuicd").returncode != 0
    systemd.wait_for_journal(f"{store} no longer holds a store; it used to hold store ")
    assert systemd.run("test", "-e", store).returncode == 1
    systemd.output("systemctl", "stop", "ciuicd")
    systemd.output("mv", "/gone", store)
    systemd.output("systemctl", "start", "ciuicd")
    assert systemd.show("ActiveState") == "active"
    assert "Traceback" not in systemd.journal()


def test_the_lines_of_the_readme_install_the_units_and_keep_changed_files(boot):
    readme = (REPOSITORY / "README.md").read_text().split("## Install")[1].split("##")[0]
    lines = [line.split("  #")[0].strip() for line in readme.splitlines()]
    units, config, reload, enable = (
        next(line for line in lines if line.startswith(begin))
        for begin in ("install -D", "cp -n", "systemctl daemon-reload", "systemctl enable")
    )
    systemd = boot(None)

    def do(line: str) -> None:
        systemd.output("sh", "-ec", f"cd {REPOSITORY}; {line}")

    assert systemd.run("systemctl", "cat", "ciuicd").returncode != 0
    do(units)
    do(config)
    systemd.output("sed", "-i", "s,^snapshot_paths = .*,snapshot_paths = /srv/training,", CONF)
    do(reload)
    do(enable)
    systemd.wait_for_journal("(base): 2 files")
    assert systemd.show("ControlGroup") == "/ciuic.slice/ciuicd.service"
    assert systemd.show("UnitFileState") == "enabled"
    for unit in [*UNITS[4:], *UNITS[1:4]]:
        loaded = systemd.output("systemctl", "show", "-P", "LoadState", unit.name).strip()
        assert loaded == "loaded", unit.name
    systemd.output("systemctl", "enable", "--now", "ciuic-alerts.timer", "ciuic-copy.path")

    # Again, as for a new version.
    drop_in = "/etc/systemd/system/ciuicd.service.d/mine.conf"
    systemd.output("sh", "-ec", f"mkdir {drop_in[:-10]}; printf '[Service]\nNice=7\n' > {drop_in}")
    before = systemd.output("cat", CONF, drop_in)
    for line in (units, config, reload, enable):
        do(line)
    assert systemd.output("cat", CONF, drop_in) == before
    systemd.output("systemctl", "restart", "ciuicd")
    assert (systemd.show("Nice"), systemd.show("ActiveState")) == ("7", "active")
    assert "Traceback" not in systemd.journal()


def test_a_timer_takes_snapshots_without_a_daemon(boot):
    systemd = boot(CONFIG.replace("365d", "1h"))
    added = "/etc/systemd/system/ciuicd.service.d"
    systemd.output("mkdir", added)
    systemd.output("cp", "/etc/systemd/system/once.conf", added)
    systemd.output("systemctl", "daemon-reload")
    systemd.output("systemctl", "enable", "--now", "ciuicd.timer")
    assert "ciuicd.timer" in systemd.output("systemctl", "list-timers", "--no-pager")

    # The timer runs this command, which returns when the run has ended.
    systemd.output("systemctl", "start", "ciuicd")
    assert (systemd.show("ActiveState"), systemd.show("Result")) == ("inactive", "success")
    assert systemd.journal().count("snapshot cs-") == 1
    assert "no warnings" in systemd.journal()
    systemd.output("systemctl", "start", "ciuicd")
    assert systemd.journal().count("snapshot cs-") == 2
    assert systemd.run("test", "-e", "/.ciuic_snapshots/control.sock").returncode == 1

    # A mistake fails the run, and only the timer tries it again.
    systemd.output("sh", "-c", "echo nonsense >> /etc/ciuic.conf")
    assert systemd.run("systemctl", "start", "ciuicd").returncode != 0
    assert (systemd.show("ActiveState"), systemd.show("NRestarts")) == ("failed", "0")
    assert "Traceback" not in systemd.journal()


def test_metrics_and_alerts_come_from_units_of_their_own(boot):
    path = "/var/lib/node/ciuic.prom"
    alert = "[alert all]\ntype = command\ncommand = cat >> $STATE_DIRECTORY/heard\n"
    systemd = boot(f"{CONFIG}metrics_file = {path}\nmetrics_listen = 127.0.0.1:9741\n{alert}")
    systemd.output("mkdir", "-p", "/var/lib/node")
    systemd.output("systemctl", "start", "ciuicd")
    wait_until("it is written", lambda: systemd.run("test", "-e", path).returncode == 0)
    inside = ("nsenter", "--target", systemd.show("MainPID"), "--mount", "--")
    assert "Read-only" in systemd.run(*inside, "touch", "/var/lib/probe").stderr

    # There is no fault at first; then the store is removed.
    heard = "/var/lib/ciuic-alerts/heard"
    systemd.output("systemctl", "start", "ciuic-alerts")
    assert systemd.run("test", "-e", heard).returncode == 1
    # It may write to what this machine keeps of a bucket.
    assert systemd.output("stat", "-c", "%a", "/var/cache/ciuic").strip() == "700"
    systemd.output("mv", "/.ciuic_snapshots", "/gone")
    systemd.output("systemctl", "start", "ciuic-alerts")
    assert '"event": "began", "severity": "critical"' in systemd.output("cat", heard)
    systemd.output("mv", "/gone", "/.ciuic_snapshots")

    # The interpreter of the tests may be in a home directory, which the unit hides.
    directory = "/etc/systemd/system/ciuic-metrics.service.d"
    systemd.output("mkdir", "-p", directory)
    homes = "[Service]\\nDynamicUser=no\\nPrivateUsers=no\\nProtectHome=no\\n"
    systemd.output(
        "sh", "-c", f"printf '{homes}CapabilityBoundingSet=~\\n' > {directory}/home.conf"
    )
    systemd.output("systemctl", "daemon-reload")
    systemd.output("systemctl", "start", "ciuic-metrics")
    fetch = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9741/metrics').read())"
    wait_until(
        "the first snapshot is served",
        lambda: "ciuic_last_success" in systemd.output(sys.executable, "-c", fetch),
    )
    systemd.output("systemctl", "stop", "ciuic-metrics")
    assert systemd.output("systemctl", "show", "--value", "-p", "Result", "ciuic-metrics") == (
        "success\n"
    )


def test_a_copy_follows_each_snapshot_in_a_unit_of_its_own(boot):
    systemd = boot(f"{CONFIG}copies = /mnt/nas\n")
    systemd.output("systemctl", "start", "ciuicd")
    systemd.wait_for_journal("snapshot cs-")
    systemd.output("systemctl", "start", "ciuic-copy.path")
    # The unit creates no store where a disk may be missing.
    assert systemd.run("systemctl", "start", "ciuic-copy").returncode != 0
    assert systemd.run("test", "-e", "/mnt/nas").returncode == 1
    code = (
        f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); from ciuic.cli import main; main()"
    )
    main = (sys.executable, "-c", code)
    systemd.output(*main, "copy", "--to", "/mnt/nas", "--init")

    for number in (2, 3):
        systemd.output("sh", "-c", f"echo {number} > /srv/training/new")
        systemd.output(*main, "snapshot")
        wait_until(
            "the copy has it",
            lambda number=number: (
                len(systemd.output(*main, "--store", "/mnt/nas", "list").splitlines()) == number + 1
            ),
        )
    snapshot = systemd.output(*main, "pin", "latest").split()[0]
    wait_until(
        "the pin is there",
        lambda: '"pinned": true' in systemd.output(*main, "--store", "/mnt/nas", "list", "--json"),
    )
    assert snapshot in systemd.output(*main, "--store", "/mnt/nas", "list")
    assert systemd.show("IPAddressDeny"), "the daemon itself still has no network"


@pytest.fixture
def block_device(tmp_path) -> Iterator:
    """Make a file system in a file. Its device number is valid in every namespace."""
    made = []

    def make(kind: str) -> str:
        image = tmp_path / f"{kind}.img"
        with image.open("wb") as file:
            file.truncate(512 * 1024 * 1024)
        if shutil.which(f"mkfs.{kind}") is None:
            pytest.skip(f"mkfs.{kind} is not installed")
        subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, timeout=60)
        command = ["losetup", "--find", "--show", str(image)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"there is no loop device: {done.stderr.strip()}")
        made.append(done.stdout.strip())
        return made[-1]

    yield make
    for device in made:
        subprocess.run(["losetup", "--detach", device], check=True)


@pytest.mark.parametrize(("kind", "how"), [("xfs", "reflink"), ("btrfs", "subvolume")])
def test_the_sandbox_lets_the_daemon_freeze_roots_and_name_writers(block_device, boot, kind, how):
    device = block_device(kind)
    systemd = boot(CONFIG.replace("/srv/training", "/srv/disk/training") + "hot_snapshots = 1\n")
    systemd.output("mknod", device, "b", "7", device.removeprefix("/dev/loop"))
    systemd.output("mkdir", "/srv/disk")
    systemd.output("mount", device, "/srv/disk")
    systemd.output("cp", "-a", "/srv/training", "/srv/disk/")
    hold = "exec 3>>/srv/disk/training/theirs; touch /srv/disk/training/held; exec sleep 600"
    writer = ("systemd-run", "--unit=writer", "setpriv", "--reuid=1234", "--clear-groups")
    systemd.output(*writer, "sh", "-c", hold)
    held = "/srv/disk/training/held"
    wait_until("a program writes", lambda: systemd.run("test", "-e", held).returncode == 0)

    systemd.output("systemctl", "start", "ciuicd")
    systemd.wait_for_journal("snapshot cs-")
    assert "theirs: in flux: open for writing by sleep (pid " in systemd.journal()
    manifest = systemd.output("sh", "-c", "cat /.ciuic_snapshots/snapshots/*.json")
    assert f'"capture":"{how}"' in manifest.replace(": ", ":")
    frozen = systemd.output("sh", "-c", "ls -R /srv/disk/.ciuic-frozen")
    assert "cs-" in frozen
    if kind == "btrfs":  # its subvolume proves that nothing has changed, also in the sandbox
        systemd.output("systemctl", "stop", "writer")
        systemd.output("sed", "-i", "s/365d/2s/", "/etc/ciuic.conf")
        systemd.output("systemctl", "reload", "ciuicd")
        systemd.wait_for_journal("nothing had changed, no warnings")

    main = systemd.show("MainPID")
    inside = ("nsenter", "--target", main, "--mount", "--")
    for place in ("/srv/disk", "/srv/disk/training"):
        done = systemd.run(*inside, "touch", f"{place}/probe")
        assert "Read-only file system" in done.stderr, place
    systemd.output("systemctl", "stop", "ciuicd")
    assert "Traceback" not in systemd.journal()


def test_a_bad_configuration_fails_the_start_with_its_line_and_is_not_tried_again(boot):
    systemd = boot(f"{CONFIG}x\n")
    for line, said in (
        ("retention_policy = yearly:3", "retention_policy: 'yearly' is not one of"),
        ("retentionpolicy = 7d", "unknown key 'retentionpolicy'"),
    ):
        systemd.output("sed", "-i", f"3s/.*/{line}/", CONF)
        assert systemd.run("systemctl", "start", "ciuicd").returncode == 1
        assert systemd.show("ActiveState") == "failed"
        assert systemd.show("ExecMainStatus") == "2"
        assert systemd.show("NRestarts") == "0"
        assert systemd.journal().count(f"{CONF}:3: {said}") == 1


def test_the_watchdog_kills_a_daemon_whose_main_thread_hangs_and_systemd_restarts_it(boot):
    systemd = boot(CONFIG)
    directory = "/etc/systemd/system/ciuicd.service.d"
    systemd.output("mkdir", "-p", directory)
    override = f"printf '[Service]\\nWatchdogSec=1s\\nRestartSec=0\\n' > {directory}/quick.conf"
    systemd.output("sh", "-c", override)
    systemd.output("systemctl", "daemon-reload")
    systemd.output("systemctl", "start", "ciuicd")
    systemd.wait_for_journal("no warnings")
    assert systemd.show("NRestarts") == "0"
    os.kill(host_pid(systemd), signal.SIGSTOP)
    wait_until("it is started again", lambda: systemd.show("NRestarts") == "1")
    wait_until("it is active again", lambda: systemd.show("ActiveState") == "active")


def host_pid(systemd: Booted) -> int:
    """Return the daemon's process ID on this machine."""
    inner = systemd.show("MainPID")
    for process in psutil.process_iter():
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            continue
        ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[1:]
        if len(ids) == 2 and ids[1] == inner and "ciuicd" in " ".join(process.cmdline()):
            return process.pid
    raise AssertionError("the daemon is not among the processes")


def test_the_service_becomes_the_new_program_after_an_upgrade_without_a_restart(boot):
    systemd = boot(CONFIG)
    directory = "/etc/systemd/system/ciuicd.service.d"
    lines = [
        f"mkdir -p {directory} /opt/copy",
        f"printf '[Service]\\nRestart=no\\n' > {directory}/quick.conf",
        f"cp -r {REPOSITORY}/ciuic {REPOSITORY}/ciuicd /opt/copy",
        f"sed -i '2s,{REPOSITORY},/opt/copy,' /usr/local/bin/ciuicd",
        "systemctl daemon-reload",
        "systemctl start ciuicd",
    ]
    systemd.output("sh", "-ec", "; ".join(lines))
    systemd.wait_for_journal("no warnings")
    process_id = systemd.show("MainPID")
    lines = [
        "rm -r /opt/copy/ciuic",
        f"cp -r {REPOSITORY}/ciuic /opt/copy",
        "sed -i 's/^__version__ = .*/__version__ = \"99.0\"/' /opt/copy/ciuic/__init__.py",
    ]
    systemd.output("sh", "-ec", "; ".join(lines))
    systemd.wait_for_journal("ciuic was replaced on disk by another version: ciuicd starts again")
    systemd.wait_for_journal("ciuicd 99.0 serves")
    wait_until("it is active", lambda: systemd.show("ActiveState") == "active")
    assert systemd.show("MainPID") == process_id
    assert systemd.journal().count("snapshot cs-") == 1


def test_systemd_waits_for_a_hook_that_runs_longer_than_its_own_limit(boot):
    after = "echo begins; while [ ! -e /srv/gate ]; do sleep 0.05; done; echo ends"
    systemd = boot(f"{CONFIG}after = {after}\n")
    directory = "/etc/systemd/system/ciuicd.service.d"
    lines = [
        f"mkdir -p {directory}",
        f"printf '[Service]\\nTimeoutStopSec={STOP_S}s\\n' > {directory}/quick.conf",
        "systemctl daemon-reload",
        "systemctl start ciuicd",
    ]
    systemd.output("sh", "-ec", "; ".join(lines))
    systemd.wait_for_journal("after: begins")
    systemd.output("systemctl", "stop", "--no-block", "ciuicd")
    late_s = time.monotonic() + 2 * STOP_S
    wait_until("systemd's own limit has passed", lambda: time.monotonic() > late_s)
    assert systemd.show("ActiveState") == "deactivating"
    systemd.output("touch", "/srv/gate")
    wait_until("it has ended", lambda: systemd.show("ActiveState") == "inactive")
    assert systemd.show("Result") == "success"
    assert "after: ends" in systemd.journal()
    assert systemd.journal().count("snapshot cs-") == 1


ASK = (
    f"import sys; sys.path.insert(0, {str(REPOSITORY)!r})\n"
    "from ciuic.control import request_snapshot\n"
    "request_snapshot('/.ciuic_snapshots', tags=('emergency',))"
)
GATE = """\
import os, time
from ciuic.snapshot import hooks
take = hooks.take_snapshot
def wait_and_take(*words, cancelled, **more):
    while not os.path.exists("/srv/gate") and not cancelled():
        time.sleep(0.02)
    return take(*words, cancelled=cancelled, **more)
hooks.take_snapshot = wait_and_take
"""
"""Every snapshot waits in the middle until there is a file."""


class Gated:
    """A machine whose snapshots wait in the middle until ``open``."""

    def __init__(self, systemd: Booted) -> None:
        self.systemd = systemd
        directory = "/etc/systemd/system/ciuicd.service.d"
        lines = "[Service]\\nRestart=no\\n"
        if subprocess.run(["prlimit", "--nice=1:1", "true"], check=False).returncode:
            # A container may keep systemd from raising limits. The capability does the same.
            lines += "CapabilityBoundingSet=CAP_SYS_NICE\\n"
        self.sh(f"mkdir {directory}; printf '{lines}' > {directory}/gated.conf")
        self.sh(f"printf %s {shlex.quote(GATE)} > /srv/gate.py")
        self.sh("sed -i '2s,$,; exec(open(\"/srv/gate.py\").read()),' /usr/local/bin/ciuicd")
        self.sh("systemctl daemon-reload")

    def sh(self, command: str) -> str:
        return self.systemd.output("sh", "-ec", command)

    def start(self, config: str = CONFIG) -> None:
        self.sh(f"printf %s {shlex.quote(config)} > {CONF}; systemctl start ciuicd")
        self._daemon = psutil.Process(host_pid(self.systemd))

    def kill(self) -> None:
        self._daemon.kill()
        wait_until("it has failed", lambda: self.systemd.show("ActiveState") == "failed")

    @property
    def weight(self) -> str:
        shown = self.sh("systemctl show --value --property CPUWeight ciuic.slice").strip()
        return "idle" if shown == "0" else shown

    def wait_for_weight(self, weight: str) -> None:
        wait_until(f"the weight is {weight}", lambda: self.weight == weight)

    def policies(self) -> set[int]:
        """Return how the threads of the snapshot are scheduled; empty: none is taken."""
        found: set[int] = set()
        for child in self._daemon.children():
            with contextlib.suppress(OSError, psutil.Error):
                if child.name() != "systemctl":
                    names = os.listdir(f"/proc/{child.pid}/task")
                    found |= {os.sched_getscheduler(int(name)) for name in names}
        return found

    def wait_for_policy(self, policy: int) -> None:
        wait_until(
            "the snapshot's threads have it", lambda: self.policies() == {policy}, deadline_s=20
        )

    def keeps(self, weight: str) -> bool:
        return all(self.weight == weight for _ in range(8))


def test_the_slice_is_idle_only_until_a_snapshot_must_end_soon(boot):
    gated = Gated(boot(CONFIG))
    gated.start(CONFIG.replace("365d", "40s"))
    gated.wait_for_weight("idle")
    gated.wait_for_policy(os.SCHED_IDLE)
    gated.wait_for_weight("10")
    gated.wait_for_policy(os.SCHED_OTHER)
    assert gated.systemd.show("LimitNICE") == "1"
    gated.sh("systemctl stop ciuicd")

    gated.start()
    gated.wait_for_weight("idle")
    gated.sh("systemctl stop ciuicd")
    assert gated.weight == "10"

    gated.start()
    gated.wait_for_weight("idle")
    asking = gated.systemd.begin(sys.executable, "-c", ASK)
    gated.systemd.wait_for_journal("because an emergency snapshot goes first")
    gated.wait_for_weight("10")
    gated.wait_for_policy(os.SCHED_OTHER)
    assert gated.keeps("10")
    gated.sh("touch /srv/gate")
    assert asking.wait(60) == 0
    assert gated.weight == "10"
    gated.sh("systemctl stop ciuicd")
    journal = gated.systemd.journal()
    assert "Traceback" not in journal
    assert "ciuic.slice" not in journal


def test_only_an_idle_weight_of_ciuic_itself_is_set_back(boot):
    gated = Gated(boot(CONFIG))
    gated.start()
    gated.wait_for_weight("idle")
    gated.kill()
    assert gated.weight == "idle"

    # The next daemon sets it back. A snapshot with hooks leaves it as it is.
    gated.start(
        f"{CONFIG}before = while :; do systemctl show --property CPUWeight ciuic.slice; done"
    )
    gated.systemd.wait_for_journal("before: CPUWeight=10", 20)
    assert "CPUWeight=idle" not in gated.systemd.journal().partition("before: CPUWeight=10")[2]
    gated.kill()

    gated.sh("systemctl set-property --runtime ciuic.slice CPUWeight=77")
    gated.start()
    gated.wait_for_policy(os.SCHED_IDLE)
    assert gated.keeps("77")
    gated.kill()

    gated.sh("systemctl set-property ciuic.slice CPUWeight=idle")
    gated.start()
    gated.wait_for_policy(os.SCHED_IDLE)
    assert gated.keeps("idle")
    gated.kill()

    gated.sh("systemctl set-property ciuic.slice CPUWeight=10")
    gated.start()
    gated.wait_for_weight("idle")
    gated.sh("touch /srv/gate")
    gated.systemd.wait_for_journal("snapshot cs-")
    gated.wait_for_weight("10")
    journal = gated.systemd.journal()
    assert "Traceback" not in journal
    assert "ciuic.slice" not in journal.replace("ciuic.slice; done", "")
