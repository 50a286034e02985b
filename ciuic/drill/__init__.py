"""Practices a recovery: restores a sample to a scratch directory, compares it, loads checkpoints.

choose    a snapshot -> the files to practice on
drill     restore, compare, load, remove; the record
compare   a restored file beside the snapshot
loading   a checkpoint -> its own package reads it, in another process
load      that process
report    what was found
"""
