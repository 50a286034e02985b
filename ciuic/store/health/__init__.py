"""Inspecting stored bytes."""
