"""Finds the checkpoints that a training left broken, and puts their newest valid versions back.

find      files that changed within a period -> those that are broken, and why
versions  a broken file -> the newest snapshot that has a valid version of it
replace   restore the version beside the file, check it, move the broken file aside
recover   the three steps in order
report    what was found and done
"""
