"""What the API answers about the course of a training.

runs        runs beside each other
timelines   the snapshots on a logged curve, and snapshots beside each other
"""
