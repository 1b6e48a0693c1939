"""The machine this runs on: what it has, what its CPU supports, and what its allocator does."""
