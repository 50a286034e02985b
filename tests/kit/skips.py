"""Every reason for a skip must be on a list: a suite that skips important tests proves nothing."""

import os
from pathlib import Path

import pytest

_ALLOWED = Path(__file__).parents[1] / "allowed-skips.txt"


class SkipGuard:
    """Fails the session if a test was skipped for a reason that is not allowed."""

    def __init__(self) -> None:
        self.unallowed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        allowed = [line for line in _ALLOWED.read_text().splitlines() if line.strip()]
        if not any(line in reason for line in allowed):
            self.unallowed.append(f"{report.nodeid}: {reason}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unallowed and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for skip in self.unallowed:
            terminalreporter.write_line(f"skipped without permission: {skip}", red=True)


def install(config: pytest.Config) -> None:
    """Register the guard if ``CIUIC_NO_SKIPS`` is set."""
    if os.environ.get("CIUIC_NO_SKIPS"):
        config.pluginmanager.register(SkipGuard(), "skip-guard")
