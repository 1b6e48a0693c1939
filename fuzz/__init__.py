"""A seeded search for what breaks the package: random calls judged by reference.py, malformed states, mutated files.

`python -m fuzz --help`; docs/fuzzing.md says what is searched and how a failure is replayed.
"""
