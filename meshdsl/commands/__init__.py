"""The commands of the command line, one file each: `add` declares its flags, and what it sets as `command` runs it."""
