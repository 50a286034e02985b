"""Scrub: reads all packs in turn, so that damage is found early."""
