"""What runs inside the sandboxes: standard library only, and it is handed in as text.

Two processes, each in a sandbox of its own, speak over a socket. The `tests` side is trusted: it
holds the assertions and their expected values, and judges. The `program` side runs what a model
wrote. A test calls the program's functions through `Remote` objects; what comes back is rebuilt out
of a closed list of plain types, so no object, exit or patched builtin of the program's is ever
inside the process that judges. Whatever the program writes to the socket is only another answer.
"""
