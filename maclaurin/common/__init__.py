"""Small tools that every other package may use, one idea per file. They know nothing of attention."""
