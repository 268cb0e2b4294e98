"""The command line, `rota`. Each command imports what it needs when it runs, so that `rota --help` is quick."""
