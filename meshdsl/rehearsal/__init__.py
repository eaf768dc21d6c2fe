"""A run rehearsed before it costs anything: what faults, saves and restarts will leave of its time.

    faults.py       which faults there are, and traces of them that are drawn
    run.py          what is known of a run: its steps, saves and restarts
    leg.py          steps and saves between two faults, in closed form
    simulate.py     a run meets a trace of faults
    closed_form.py  Young's and Daly's formulas, for the simplest case
    options.py      the ways to run it, each at its best interval between checkpoints
    text.py         what is printed, and picture.py what is drawn
    disturbed.py    the same trace, met by a real run on this machine

`meshdsl rehearse` is made of these; docs/reliability.md says how to read it.
"""
