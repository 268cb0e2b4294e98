"""What happened, one module a question: each looks at the lines of one group, in order, and yields rows of its tables.

Theory of operation. A fact is a small object with a `state` that is plain JSON. It sees each line before the group's
view has taken it in, yields the rows that the line closes, and can say at any time what its still open rows look like.
So `dump` and `load` at any line change nothing, and any cut of the journal gives the same rows.
"""
