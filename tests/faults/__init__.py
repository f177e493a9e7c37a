"""Faults that come from outside: killed processes, full disks, damaged files, jumping clocks, numbers that are none."""
