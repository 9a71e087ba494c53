"""One call of a program, as a timeline: `pygraph trace`."""
