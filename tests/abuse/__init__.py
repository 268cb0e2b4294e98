"""What hostile or broken clients do to a real server: it stays up, and its memory stays bounded."""
