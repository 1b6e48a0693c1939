"""The commands of the shell, a module each: one function named as the command, whose arguments typer reads.

A module is imported when its command is asked for, and what the command needs when it runs: `--help` waits for no library.
"""
