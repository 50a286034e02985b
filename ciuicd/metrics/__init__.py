"""Metrics for Prometheus.

meter     what the daemon counts, if the configuration asks for it
gauges    what the daemon knows -> the text of a file
serving   that file over HTTP, from a service of its own: the daemon has no network
"""
