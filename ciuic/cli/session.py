"""The store and the settings of a command. This module opens no store: ``opening`` does.

What reads configurations is imported where one is read: ``--store`` needs none.
"""

import os
from typing import Final

from ciuic.config.settings import CopyTo, Settings
from ciuic.errors import ConfigError, UsageError
from ciuic.model import ExcludeRules
from ciuic.store.place.keys import is_url, refuse_cut_url

__all__ = ["Session"]

_WITHOUT_CONFIGURATION: Final = "'ciuic --store DIR snapshot PATH'"


class Session:
    """The store and the settings that the command line or the configuration names.

    Attributes:
        config: ``--config``, before or after the command; None: not given.
        store: ``--store``, before or after the command; None: not given.
        damaged: Snapshots that cannot be read and that the command left out, by ID, each with the
            reason. The command has named them, and its exit code reports them.
        reads_copies: The copies are asked for what the store has lost: no ``--no-copies``.
    """

    def __init__(self, config: str | None, store: str | None) -> None:
        self.config = config
        self.store = store
        self.damaged: dict[str, str] = {}
        self.reads_copies = True
        self._settings: Settings | None = None

    @property
    def options(self) -> list[str]:
        """What the user typed to name the store, for the commands in messages."""
        typed = (("--config", self.config), ("--store", self.store))
        return [word for name, value in typed if value is not None for word in (name, value)]

    @property
    def damaged_snapshots(self) -> list[dict[str, str]]:
        """``damaged`` in the form of JSON documents."""
        return [{"id": snapshot_id, "what": what} for snapshot_id, what in self.damaged.items()]

    @property
    def config_path(self) -> str | None:
        """The configuration file that applies; None if there is none."""
        from ciuic.config.load import find_config

        return find_config(self.config, os.environ)

    def settings(self) -> Settings:
        """Read the whole configuration, once.

        Raises:
            ConfigError: There is no configuration, or it is wrong.
        """
        from ciuic.config.load import load_settings

        path = self.config_path
        if path is None:
            raise ConfigError(
                "there is no configuration: neither --config nor $CIUIC_CONFIG names one, and"
                " /etc/ciuic.conf and /etc/ciuric.conf do not exist",
                hint="Write one; etc/ciuic.conf in the source has every key.",
            )
        if self._settings is None or self._settings.path != path:
            self._settings = load_settings(path)
        return self._settings

    def take_settings(self, *, names_paths: bool) -> Settings:
        """Return the settings for a snapshot.

        Directories on the command line together with ``--store`` need no configuration. Then the
        file in /etc does not apply: it is about its own store.

        Args:
            names_paths: The command line names the directories.

        Raises:
            ConfigError: Something is missing, or the configuration is wrong.
        """
        from ciuic.config.load import CONFIG_VARIABLE, default_settings

        if self.store is None and names_paths:
            return self._settings_for_store()
        is_named = bool(self.config or os.environ.get(CONFIG_VARIABLE))
        if self.store is not None and names_paths and not is_named:
            return default_settings(self.store_path())
        try:
            return self.settings()
        except ConfigError as error:
            names_both = self.store is not None and names_paths
            if names_both or (self.store is None and self.config_path is not None):
                raise
            hint = f"{error.hint} Or name both store and directories: {_WITHOUT_CONFIGURATION}."
            raise ConfigError(error.message, hint=hint) from error

    def _settings_for_store(self) -> Settings:
        """Read the configuration for a command that ``--store`` would be enough for."""
        try:
            return self.settings()
        except ConfigError as error:
            hint = f"{error.hint} Or name the store with --store DIR."
            raise ConfigError(error.message, hint=hint) from error

    def _configured(self) -> Settings | None:
        """Return the settings of the configuration's own store; None if ``--store`` names it."""
        if self.store is not None or self.config_path is None:
            return None
        return self._settings_for_store()

    def find_copy(self, text: str) -> CopyTo | None:
        """Return the configured copy of this name or address; none with ``--store``."""
        settings = self._configured()
        return None if settings is None else settings.find_copy(text)

    def copies(self) -> tuple[tuple[str, str], ...]:
        """Return the name and the address of each configured copy; none with ``--store``."""
        settings = self._configured()
        return () if settings is None else settings.copy_addresses

    def store_settings(self) -> Settings:
        """Return the settings of the configuration's own store; the defaults for ``--store``."""
        from ciuic.config.load import default_settings

        return self._configured() or default_settings("")

    def store_path(self, *, checked: bool = True) -> str:
        """Return the store's directory, or the URL of its bucket.

        Args:
            checked: Refuse a configuration that has a mistake in any of its lines.

        Raises:
            ConfigError: Neither the command line nor a configuration names a store, or ``--config``
                names no file.
            UsageError: The URL names a file of another machine.
        """
        if self.store is not None:
            if self.config is not None and not os.path.lexists(self.config):
                raise ConfigError(
                    f"{self.config}: there is no such file",
                    hint="Name the file that you mean, or leave --config out.",
                )
            return _absolute(self.store)
        path = self.config_path
        if path is None:
            raise ConfigError(
                "no store was given and there is no configuration",
                hint="Name the store with --store DIR, or a configuration with --config FILE.",
            )
        if checked:
            return self._settings_for_store().snapshot_dir
        from ciuic.config.load import read_store_path

        return read_store_path(path)

    @property
    def scopes(self) -> list[tuple[bytes, ...]]:
        """The directories of each configured schedule; none with ``--store``."""
        settings = self._configured()
        return [] if settings is None else settings.scopes

    def trash_s(self) -> float:
        """Return how long a forgotten snapshot can be brought back; the default for ``--store``."""
        return self.store_settings().trash_s

    def parity(self) -> float:
        """Return parity's share of a pack, 0 to 1; the default for ``--store``."""
        return self.store_settings().parity

    def exclude_rules(self) -> ExcludeRules:
        """Return what the configuration leaves out of snapshots; nothing for ``--store``."""
        settings = self._configured()
        return ExcludeRules() if settings is None else settings.exclude_rules

    def store_owner(self) -> int | None:
        """Return the other user who may own a store that is written to; None for ``--store``."""
        settings = self._configured()
        return None if settings is None else settings.store_owner

    def retention_policy(self) -> str:
        """Return the policy of the configuration, which applies to its own store only.

        Raises:
            ConfigError: There is no policy for this store.
        """
        if self.store is not None or self.config_path is None:
            raise ConfigError(
                "no retention policy is configured for this store",
                hint="Use --policy, or name the snapshots to forget.",
            )
        return self.settings().top_retention_policy


def _absolute(address: str) -> str:
    """Return the absolute path of a directory, even for ``file:///path``; other URLs as they are.

    Raises:
        UsageError: The URL names a file of another machine, or lacks a slash.
    """
    if not is_url(address):
        refuse_cut_url(address)
        return os.path.abspath(address)
    scheme, _, rest = address.partition("://")
    if scheme.lower() != "file":
        return address
    if not rest.startswith("/"):
        # Not quoted: a URL may hold a password.
        raise UsageError(
            "the store's address names another machine",
            hint="Write three slashes: file:///path.",
        )
    return os.path.abspath(rest)
