"""Snapshots on the course of a training: the values it logged, and the snapshots between them.

curve           the values of one field, thinned to a bounded number of points
logs            a log -> curves, and the step and the values at given moments
stored          the log that a snapshot holds, against the log as it is now
placing         where snapshots are in logs
states          what a snapshot of the library says about its step and its metrics
timeline        the snapshots of a store on the curve of one field
compare         snapshots beside each other: metrics, sizes, files, tensors, configuration
runs            the snapshots of a run, by its name or its directory
courses         the metrics of a run by step
run_compare     runs beside each other
configuration   small text files that differ, as a diff
"""
