"""Slowing a snapshot down while other programs wait for the disk or for a processor.

pressure   how long others waited: the kernel's pressure-stall information
pacer      how fast the readers may read
"""
