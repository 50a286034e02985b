"""Logs of training programs: JSON Lines files that grow, are rotated and are truncated.

tail      the lines that were added to a file
records   a line -> its step and the fields that rules need
paths     the files that a pattern names
"""
