"""How processes of this package work together: locks, children that end with their parent, and requests to stop."""
