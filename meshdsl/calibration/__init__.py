"""A machine that measures itself: what its devices and its network reach, as a hardware file.

timing.py    programs that repeat one operation on all devices at once, and their times
subjects.py  what is timed: products, passes over memory, collectives, calls, transfers
measure.py   times all of them, within a time
figures.py   the figures of a chip that these times come to
hardware_file.py  the figures as a file, in the format of `machine/hardware.toml`
"""
