"""`gapless pub`: from JSON, files and standard input to the rows of a topic."""
