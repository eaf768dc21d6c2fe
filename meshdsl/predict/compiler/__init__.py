"""Compiling for machines that are not at hand, and reading what the compiler made of a program.

From the text of a compiled program to a report, in the order in which the modules use each other:

- `unread`: counts what of the text is not understood.
- `hlo_text`: the text as computations and instructions (`Module`).
- `collectives`: the collectives in it. `buffers`: its largest arrays. `instruction_time`: how long
  an instruction computes.
- `replay`: what a device does for each instruction, and the time of a step from that.
- `rewrites`: what compilers do to collectives. `match`: the collectives led back to the record.
- `report`: all of it as plain data. `compile`: compiles a step and fills in that report;
  `out_of_memory` reads what the compiler says where the step does not fit.

A training run uses three modules that need none of these: `topology` (devices to compile for),
`options` (of the compiler) and `executables` (what was compiled before).
"""
