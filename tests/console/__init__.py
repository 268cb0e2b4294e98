"""The console: what its pages say, what they refuse, and how they behave in a browser."""
