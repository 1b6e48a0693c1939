"""The commands of the shell, one module per command: a function of its name, whose arguments typer reads.

A module is imported when its command is used, and libraries when the command runs: `--help` loads none of them.
"""
