"""The values of a state: as JSON and plain arrays, and back."""
