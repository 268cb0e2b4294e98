"""What a person on call reads when something is wrong."""
