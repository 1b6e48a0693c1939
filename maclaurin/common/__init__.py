"""Small tools that every other package may use, one idea a file. They know nothing of attention."""
