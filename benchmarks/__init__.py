"""How fast inwit is beside TRL, and beside what the machine can do: `make bench`."""
