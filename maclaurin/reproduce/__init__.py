"""The tables of the papers as commands: `maclaurin reproduce paper-2 build-up`. Each table is plain data in `papers/`."""
