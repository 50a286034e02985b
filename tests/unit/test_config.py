"""The configuration file: what it accepts, and its error messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ciuic.config.load import (
    SYSTEM_PATHS,
    find_config,
    load_settings,
    read_store_path,
)
from ciuic.config.settings import DEFAULTS
from ciuic.errors import ConfigError
from ciuic.model import ExcludeRules
from ciuic.retention import parse_policy
from ciuic.source.exclusions import Exclusions
from ciuic.store.place.location import PlaceOptions

REFERENCE = Path(__file__).parents[2] / "etc" / "ciuic.conf"


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "ciuic.conf"

    def write(text: str | bytes) -> str:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def refusal(path: str) -> ConfigError:
    """Return the error that both readers of the file raise, or that only the full check raises."""
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return caught.value


def test_an_empty_file_means_the_defaults(conf):
    path = conf("")
    settings = load_settings(path)
    assert settings.path == path
    assert settings.snapshot_paths == ("/",)
    assert settings.snapshot_interval_s == 3600
    assert settings.base_interval_s == 12 * 3600
    assert settings.retention_policy == "7d"
    assert settings.exclude_patterns == ()
    assert settings.snapshot_dir == "/.ciuic_snapshots"
    assert settings.io_priority == "idle"
    assert settings.hot_snapshots == 1
    assert settings.chain_cost == 3
    assert (settings.pressure_limit, settings.minimum_rate_bytes) == (0.1, 16 * 1024**2)
    assert (settings.threads, settings.buffer_memory_bytes) == (0, 48 * 1024**2)
    assert settings.parity == 0.04
    assert settings.trash_s == 86_400
    assert settings.exclude_rules == ExcludeRules()
    assert (settings.before, settings.after, settings.hook_timeout_s) == ("", "", 60)


def test_a_bucket_and_how_to_reach_it(conf):
    settings = load_settings(
        conf(
            "snapshot_dir = s3://runs/gpu7/\n"
            "store_endpoint = http://127.0.0.1:9000/\n"
            "store_region = eu-central-1\n"
            "store_credentials = /etc//ciuic.key\n"
            "store_path_style = no\n"
            "store_allow_http = yes\n"
        )
    )
    assert settings.snapshot_dir == "s3://runs/gpu7"
    assert settings.place_options == PlaceOptions(
        endpoint="http://127.0.0.1:9000",
        region="eu-central-1",
        credentials_file="/etc/ciuic.key",
        path_style=False,
    )


def test_without_keys_for_a_bucket_the_environment_says_how_to_reach_it(conf):
    assert load_settings(conf("snapshot_dir = gs://runs\n")).place_options == PlaceOptions()


@pytest.mark.parametrize(
    "line", ["store_endpoint = https://user:secret@host", "snapshot_dir = s3://u:secret@b/x"]
)
def test_a_password_in_a_url_is_not_quoted(conf, line):
    assert "secret" not in str(refusal(conf(f"{line}\n")))


def test_an_older_configuration_file_is_understood(conf):
    settings = load_settings(
        conf(
            "snapshot_interval = 1h\n"
            "retention_policy = 7d\n"
            "exclude_patterns = /tmp/*, /dev/*\n"
            "snapshot_dir = /.ciuric_snapshots\n"
            "io_priority = idle\n"
        )
    )
    assert settings.snapshot_interval_s == 3600
    assert settings.exclude_patterns == ("/tmp/*", "/dev/*")
    assert settings.snapshot_dir == "/.ciuric_snapshots"


def test_the_reference_file_holds_every_key_with_its_default_on_one_screen(conf):
    text = REFERENCE.read_text()
    reference = load_settings(str(REFERENCE))
    plain = load_settings(conf(""))

    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 100
    for key in DEFAULTS:
        assert any(line.startswith(f"{key} =") for line in text.splitlines()), key
    assert reference.snapshot_paths != ("/",)
    for field in plain.__slots__:
        if field not in {"path", "snapshot_paths"}:
            assert getattr(reference, field) == getattr(plain, field), field


def test_comments_blank_lines_windows_line_ends_and_a_byte_order_mark_are_accepted(conf):
    settings = load_settings(
        conf(
            b"\xef\xbb\xbf# first\r\n\r\n   # indented\r\n"
            b"snapshot_paths=/a#b, /c\t# behind a tab\r\n"
            b"  trash   =   2d # later\r\n"
        )
    )
    assert settings.snapshot_paths == ("/a#b", "/c")
    assert settings.trash_s == 2 * 86_400


def test_paths_are_normalized_and_unique_and_may_hold_commas_and_any_bytes(conf):
    settings = load_settings(
        conf(b"snapshot_paths = //a//b/./c/, /a/b/c, /run\\,lr=0.1, /\xff\xc3\xa9, /with space\n")
    )
    assert settings.snapshot_paths == (
        "/a/b/c",
        "/run,lr=0.1",
        os.fsdecode(b"/\xff\xc3\xa9"),
        "/with space",
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("snapshot_intervall = 1h\n", 1, "unknown key 'snapshot_intervall'"),
        ("\n\nnonsense\n", 3, "'nonsense' is not of the form 'key = value'"),
        ("= 3\n", 1, "'= 3' is not of the form 'key = value'"),
        ("[ciuic]\n", 1, "'[ciuic]' is not of the form 'key = value'"),
        ("trash = 1d\n#\ntrash = 2d\n", 3, "trash is set a second time; line 1 sets it already"),
        ("trash =\n", 1, "trash has no value"),
        ("trash = # 1d\n", 1, "trash has no value"),
        ("snapshot_dir = store\n", 1, "snapshot_dir: 'store' is not an absolute path"),
        ("snapshot_dir = s3:/bucket/runs\n", 1, "begins with 's3:/'"),
        ("snapshot_dir = ftp://bucket/runs\n", 1, "'ftp:' is not a kind of store"),
        ("snapshot_dir = s3://a:secret@bucket/x\n", 1, "holds a user name or a password"),
        ("snapshot_dir = s3://bucket/a b\n", 1, "has a prefix with a forbidden character"),
        ("snapshot_dir = s3://\n", 1, "has no valid bucket name"),
        ("snapshot_dir = file:///store\n", 1, "snapshot_dir: the store's address is that of a"),
        ("snapshot_dir = '/store'\n", 1, "write it without quotes"),
        ("snapshot_dir = //.\n", 1, "the store needs a directory of its own"),
        ("snapshot_dir = /a/../b\n", 1, "has '..' in it"),
        ("trash = 1d\x00\n", 1, "a control character"),
    ],
)
def test_both_readers_refuse_a_bad_line_and_name_it(conf, text, line, said):
    path = conf(text)
    whole = refusal(path)
    with pytest.raises(ConfigError) as caught:
        read_store_path(path)
    assert whole.message == caught.value.message
    assert whole.message.startswith(f"{path}:{line}: ")
    assert said in whole.message
    assert whole.hint


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("snapshot_interval = 30\n", 1, "snapshot_interval: '30' is not a duration"),
        ("snapshot_interval = 0\n", 1, "'0' is too short"),
        ("snapshot_interval = 0.5s\n", 1, "too short"),
        ("pressure_limit = 10\n", 1, "pressure_limit: '10' is not a fraction"),
        ("store_endpoint = s3.example.org\n", 1, "store_endpoint: it is not the URL of a server"),
        ("store_endpoint = https://a:secret@h\n", 1, "store_endpoint: it is not the URL of a"),
        ("store_endpoint = http://127.0.0.1:9\n", 1, "http:// sends everything unencrypted"),
        ("store_region = a/b\n", 1, "store_region: 'a/b' is not the name of a region"),
        ("store_credentials = keys\n", 1, "store_credentials: 'keys' is not an absolute path"),
        ("store_path_style = true\n", 1, "store_path_style: 'true' is neither yes nor no"),
        ("minimum_rate = 1 KiB\n", 1, "'1 KiB' is too slow"),
        ("threads = 1.5\n", 1, "'1.5' is not a whole number"),
        ("threads = 65\n", 1, "not a number from 0 to 64"),
        ("buffer_memory = 1 MiB\n", 1, "not a size from 12 MiB to 64 GiB"),
        ("snapshot_interval = 1 hour\n", 1, "'1 hour' is not a duration"),
        (f"base_interval = {'9' * 400}d\n", 1, "more than ten years"),
        ("trash = -1d\n", 1, "'-1d' is not a duration"),
        ("snapshot_paths = relative, /a\n", 1, "'relative' is not an absolute path"),
        ("snapshot_paths = /a,, /b\n", 1, "is empty"),
        ("snapshot_paths = /a,\n", 1, "is empty"),
        ("exclude_patterns = ,\n", 1, "is empty"),
        ("exclude_larger_than = 10 apples\n", 1, "'10 apples' is not a size"),
        ("exclude_larger_than = -1\n", 1, "'-1' is not a size"),
        ("hook_timeout = 0\n", 1, "too short"),
        ("hook_timeout = 2d\n", 1, "'2d' is more than a day"),
        ("exclude_caches = true\n", 1, "'true' is neither yes nor no"),
        ("exclude_if_present = a, b/c\n", 1, "'b/c' is not the name of a file"),
        ("exclude_patterns = *.pyc, step_[5-10]*\n", 1, "the range 5-1 in [...] is reversed"),
        ("io_priority = high\n", 1, "'high' is not one of idle, best-effort, none"),
        ("hot_snapshots = many\n", 1, "hot_snapshots: 'many' is not a number from 0 to 100"),
        ("hot_snapshots = -1\n", 1, "'-1' is not a number from 0 to 100"),
        ("hot_snapshots = 101\n", 1, "'101' is not a number from 0 to 100"),
        ("hot_snapshots = 1.5\n", 1, "'1.5' is not a whole number"),
        ("chain_cost = 0.5\n", 1, "'0.5' is not a number from 1 to 100"),
        ("chain_cost = nan\n", 1, "'nan' is not a number"),
        ("chain_cost = inf\n", 1, "'inf' is not a number"),
        ("parity = 0.04\n", 1, "'0.04' is not a fraction"),
        ("parity = 101%\n", 1, "is not a fraction"),
        ("retention_policy = 0\n", 1, "would keep nothing"),
        (f"retention_policy = {'0' * 60}7d\n", 1, "is not a duration"),
        ("retention_policy = 3651d\n", 1, "more than ten years"),
        ("retention_policy = forever\n", 1, "'forever' is not a duration"),
        ("retention_policy = yearly:3\n", 1, "'yearly' is not one of last, hourly"),
        ("retention_policy = 7d; last:3\n", 1, "'7d; last' is not one of last, hourly"),
        ("retention_policy = last:0\n", 1, "needs a count of at least 1"),
        ("retention_policy = last\n", 1, "'last' is not a duration"),
        ("retention_policy = last:3, daily\n", 1, "'daily' needs a count"),
        ("retention_policy = last:3, last:4\n", 1, "last appears twice"),
        ("trash = x\nparity = y\n", 1, "trash"),
        ("parity = y\ntrash = x\n", 1, "parity"),
        ("snapshot_dir = /s\nsnapshot_paths = /t, /s/in\n", 2, "/s/in is inside the store /s"),
        ("snapshot_paths = /s\nsnapshot_dir = /s\n", 2, "/s is inside the store /s"),
    ],
)
def test_a_bad_value_is_named_with_its_line(conf, text, line, said):
    path = conf(text)
    error = refusal(path)
    assert error.message.startswith(f"{path}:{line}: ")
    assert said in error.message
    assert "\n" not in error.message
    assert error.hint


def test_a_store_inside_a_snapshot_path_and_a_sibling_of_one_are_fine(conf):
    inside = load_settings(conf("snapshot_paths = /t\nsnapshot_dir = /t/store\n"))
    assert inside.snapshot_dir == "/t/store"
    sibling = load_settings(conf("snapshot_paths = /store2\nsnapshot_dir = /store\n"))
    assert sibling.snapshot_paths == ("/store2",)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("36h", "36h"),
        (
            "last:3,hourly:24, daily : 7, weekly:4, monthly:6",
            "last:3, hourly:24, daily:7, weekly:4, monthly:6",
        ),
        ("weekly:4", "weekly:4"),
    ],
)
def test_retention_policies_of_both_kinds_are_accepted(conf, written, expected):
    assert load_settings(conf(f"retention_policy = {written}\n")).retention_policy == expected


@pytest.mark.parametrize(
    ("written", "expected"), [("0", 0), ("0%", 0), ("4 %", 0.04), ("2.5%", 0.025)]
)
def test_parity_is_a_percentage(conf, written, expected):
    assert load_settings(conf(f"parity = {written}\n")).parity == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("snapshot_intervall", "snapshot_interval"),
        ("Trash", "trash"),
        ("snapshotpaths", "snapshot_paths"),
    ],
)
def test_a_misspelled_key_gets_the_nearest_key_as_a_hint(conf, key, near):
    assert f"Did you mean {near}?" in refusal(conf(f"{key} = 1\n")).hint


def test_a_key_unlike_all_others_gets_no_hint(conf):
    assert "Did you mean" not in refusal(conf("zzz = 1\n")).hint


def test_files_that_cannot_be_a_configuration_are_refused_at_once(tmp_path):
    missing = tmp_path / "missing"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(256)))
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(4 * 1024**4)
    loop = tmp_path / "loop"
    loop.symlink_to(loop)

    assert "there is no such file" in refusal(str(missing)).message
    assert "is a directory" in refusal(str(tmp_path)).message
    assert "is not a regular file" in refusal(str(fifo)).message
    assert "is not a regular file" in refusal("/dev/zero").message
    assert refusal(str(binary)).message.startswith(f"{binary}:1: a control character")
    assert "is larger than 1 MiB" in refusal(str(huge)).message
    assert "Too many levels of symbolic links" in refusal(str(loop)).message
    assert "null byte" in refusal(f"{missing}\x00").message


def test_a_file_without_permission_is_refused(conf):
    path = conf("")
    os.chmod(path, 0)
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        error = refusal(path)
    finally:
        os.seteuid(before)
    assert error.message == f"{path}: cannot be read: Permission denied"


@given(st.binary(max_size=300))
@example(b"snapshot_dir=")
@example(b"\xff=\xff")
@example("snapshot_dir = /\u2028/x".encode())
def test_any_bytes_raise_only_a_config_error(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.conf"
    path.write_bytes(data)
    try:
        settings = load_settings(str(path))
    except ConfigError as error:
        assert error.message.startswith(f"{path}")
    else:
        assert settings.snapshot_dir.startswith("/")
        assert read_store_path(str(path)) == settings.snapshot_dir


@given(key=st.sampled_from(sorted(DEFAULTS)), value=st.text(max_size=60))
def test_any_value_of_any_key_raises_only_a_config_error(tmp_path_factory, key, value):
    path = tmp_path_factory.getbasetemp() / "value.conf"
    path.write_bytes(f"{key} = {value}\n".encode("utf-8", "surrogatepass"))
    try:
        settings = load_settings(str(path))
    except ConfigError as error:
        assert error.message.startswith(f"{path}")
    else:
        assert settings.snapshot_interval_s >= 1


def test_the_option_wins_over_the_variable_and_the_variable_over_the_system_file(tmp_path):
    assert find_config("/x", {"CIUIC_CONFIG": "/y"}) == "/x"
    assert find_config(None, {"CIUIC_CONFIG": "/y"}) == "/y"
    system = find_config(None, {"CIUIC_CONFIG": ""})
    assert system in {None, *SYSTEM_PATHS}


def test_the_system_file_is_also_found_under_its_old_name(tmp_path, monkeypatch):
    new, old = str(tmp_path / "ciuic.conf"), str(tmp_path / "ciuric.conf")
    monkeypatch.setattr("ciuic.config.load.SYSTEM_PATHS", (new, old))
    assert find_config(None, {}) is None
    Path(old).write_text("")
    assert find_config(None, {}) == old
    Path(new).write_text("")
    assert find_config(None, {}) == new


def test_checking_the_entire_file_imports_only_what_list_imports():
    program = (
        "import sys; from ciuic.config.load import load_settings; load_settings(sys.argv[1]);"
        "print(*{'pydantic', 'ciuic.retention', 'ciuic.source.exclusions', 'ciuic.model'}"
        " & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, REFERENCE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_the_store_can_be_read_although_another_value_is_wrong(conf):
    path = conf("snapshot_dir = /there/store\nhot_snapshots = nonsense\n")
    assert read_store_path(path) == "/there/store"
    assert "hot_snapshots" in refusal(path).message


@given(st.text(max_size=40).filter(lambda text: "[" not in text))
def test_a_pattern_without_a_character_set_is_always_valid(text):
    Exclusions([text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")])


@given(
    st.from_regex(r"[0-9]{0,64}(\.[0-9]{0,3})? ?[smhdw]?", fullmatch=True)
    | st.sampled_from(["last:3", "7d, last:3", "3650d", "3651d", "0d", "520w"])
)
@example("521w")
def test_the_configuration_accepts_the_same_policies_as_the_command_line(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "policy.conf"
    path.write_text(f"retention_policy = {text}\n")
    try:
        policy = parse_policy(text.strip())
    except ValueError:
        with pytest.raises(ConfigError):
            load_settings(str(path))
    else:
        assert load_settings(str(path)).retention_policy == policy.text


@pytest.mark.parametrize("key", sorted(DEFAULTS))
@pytest.mark.parametrize("value", [b"\xff", b"\xff:5", b"/x\xff/..", b"5\xff", b"/x\xff,,"])
def test_a_wrong_value_that_is_not_utf8_is_an_error_like_any_other(tmp_path, key, value):
    path = tmp_path / "ciuic.conf"
    path.write_bytes(key.encode() + b" = " + value + b"\n")
    if (
        key in {"before", "after", "contacts"}
        or (key == "exclude_patterns" and b"," not in value)
        or (key == "exclude_if_present" and not set(value) & set(b"/,"))
    ):
        load_settings(str(path))
        return
    if key in {"snapshot_dir", "store_credentials", "metrics_file"} and value.endswith(b",,"):
        load_settings(str(path))
        return
    with pytest.raises(ConfigError, match=f"conf:1: {key}: "):
        load_settings(str(path))
