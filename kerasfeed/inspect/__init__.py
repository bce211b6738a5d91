"""Looking at things: pictures."""
