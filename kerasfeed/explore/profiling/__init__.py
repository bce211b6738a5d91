"""What a profile of a feed holds, and how it is shown as text and as HTML."""
