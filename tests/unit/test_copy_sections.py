"""``copies`` and ``[copy NAME]`` sections."""

import pytest

from ciuic.config.load import load_settings
from ciuic.config.settings import Settings
from ciuic.errors import ConfigError

COPIES = """\
snapshot_paths = /srv
copies = /mnt/nas/ciuic, s3://near/run7
copy_retention = 30d
store_endpoint = https://near.example.org

[copy far]
to = s3://backup/run7
copy_retention = monthly:12
copy_limit = 5 MiB
store_endpoint = https://far.example.org
"""


def load(directory, text) -> Settings:
    path = directory / "ciuic.conf"
    path.write_text(text)
    return load_settings(str(path))


def test_a_copy_section_inherits_the_keys_that_it_does_not_set(tmp_path):
    settings = load(tmp_path, COPIES)
    assert [
        (
            one.name,
            one.address,
            one.settings.copy_retention,
            one.settings.copy_limit_bytes,
            one.settings.store_endpoint,
        )
        for one in settings.copies
    ] == [
        ("/mnt/nas/ciuic", "/mnt/nas/ciuic", "30d", 0, "https://near.example.org"),
        ("s3://near/run7", "s3://near/run7", "30d", 0, "https://near.example.org"),
        ("far", "s3://backup/run7", "monthly:12", 5 << 20, "https://far.example.org"),
    ]
    assert settings.find_copy("far") == settings.find_copy("s3://backup/run7")
    assert settings.snapshot_dir == "/.ciuic_snapshots"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("copies = /.ciuic_snapshots", 2, "the copy /.ciuic_snapshots is the store itself"),
        ("copies = /.ciuic_snapshots/packs", 2, "is inside the store"),
        ("snapshot_dir = /a/b\ncopies = /a", 3, "the store /a/b is inside the copy /a"),
        ("copies = /srv/copy", 2, "is inside /srv, so snapshots would contain it"),
        ("copies = nas", 2, "'nas' is not an absolute path"),
        ("copies = ftp://host/x", 2, "copies: "),
        ("copies = s3://user:secret@host/x", 2, "copies: "),
        ("copy_limit = 5", 2, "less than 1 KiB a second"),
        ("copy_retention = often", 2, "copy_retention: "),
        ("[copy nas]\ncopy_limit = 0", 2, "[copy nas] lacks the key 'to'"),
        ("[copy nas]\nto = /a\ntrash = 1d", 4, "'trash' is not a key of a copy"),
        ("copies = /a\n[copy nas]\nto = /a", 4, "/a is named twice"),
        ("[copy nas]\nto = s3://bucket/c\nstore_endpoint = http://x", 4, "unencrypted"),
    ],
)
def test_an_impossible_copy_is_refused_with_its_line(tmp_path, text, line, said):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"snapshot_paths = /srv\n{text}\n")
    assert f"ciuic.conf:{line}: " in caught.value.message
    assert said in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("pattern", ["/mnt/nas", "/mnt/nas/ciuic", "ciuic", "/mnt/*"])
def test_a_copy_below_a_root_is_accepted_if_a_pattern_excludes_it(tmp_path, pattern):
    text = f"snapshot_paths = /\nexclude_patterns = {pattern}\ncopies = /mnt/nas/ciuic\n"
    assert load(tmp_path, text).copies
    with pytest.raises(ConfigError, match="is inside /, so snapshots would contain it"):
        load(tmp_path, text.replace(f"= {pattern}\n", "= /mnt/other\n", 1))
