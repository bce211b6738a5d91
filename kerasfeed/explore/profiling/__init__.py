"""What a profile of a feed measures and holds, and how it is shown as text and as HTML."""
