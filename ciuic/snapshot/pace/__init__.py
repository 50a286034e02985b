"""Slowing a snapshot down while other programs wait for the disk or for a processor.

pressure     how long others waited: the kernel's pressure-stall information
disk_waits   how long the processes of trainings waited for the disk
pacer        how fast the readers may read
idling       running only while nothing else wants the processors, for a limited time
"""
