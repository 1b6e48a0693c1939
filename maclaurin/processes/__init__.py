"""How processes of this package live together: locks, children that end with their parent, and being asked to stop."""
