"""The examples, run as their readers would run them."""
