"""What a server tells of itself: metrics, and what they count."""
