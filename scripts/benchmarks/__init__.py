"""Measures ciuic against restic, borg and cp, turn by turn; scripts/bench starts it."""
