"""The machine this runs on: what it has, what its CPU survives, and what its allocator does."""
