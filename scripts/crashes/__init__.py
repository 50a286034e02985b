"""Breaks ciuic on purpose, thousands of times, and counts what survives: see scripts/crash."""
