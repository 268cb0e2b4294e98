"""What every implementation of a port must do, run against each of them."""
